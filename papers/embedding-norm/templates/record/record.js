// Sorting by any column; filtering and paging of runs. Without scripts all tables read whole.
"use strict";

const PAGE = 100; // rows: a page of a thousand is slow to lay out and to read

const collator = new Intl.Collator("en", { numeric: true });

const valueOf = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
};

// What is missing stays last in both directions.
const compare = (a, b, direction) => {
  const missing = (value) => value === "" || value === "n/a";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const numbers = [Number(a), Number(b)];
  const order = numbers.some(Number.isNaN) ? collator.compare(a, b) : numbers[0] - numbers[1];
  return direction * order;
};

for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const descending = header.getAttribute("aria-sort") === "ascending";
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
      rows.sort(([a], [b]) => compare(a, b, descending ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
      table.dispatchEvent(new Event("sorted"));
    });
  });
}

const form = document.querySelector(".filters");
const pager = document.querySelector(".pager");
const table = document.querySelector("#run-table");
const [text, study, status] = form.elements;
const rows = [...table.tBodies[0].rows];
// Full hashes stand in titles.
const titles = (row) => [...row.querySelectorAll("[title]")].map((cell) => cell.title);
const words = new Map(
  rows.map((row) => [row, [row.textContent, ...titles(row)].join(" ").toLowerCase()]),
);
let first = 0;

const matches = (row) => {
  const wanted = text.value.toLowerCase().split(/\s+/);
  return (
    (!study.value || row.dataset.study === study.value) &&
    (!status.value || row.dataset.status === status.value) &&
    wanted.every((word) => words.get(row).includes(word))
  );
};

const show = (from) => {
  const found = [...table.tBodies[0].rows].filter(matches); // in the order of the last sort
  first = Math.max(0, from < found.length ? from : 0);
  const shown = new Set(found.slice(first, first + PAGE));
  for (const row of rows) row.hidden = !shown.has(row);
  document.querySelector("#shown").textContent = `${found.length} of ${rows.length} runs`;
  const last = Math.min(first + PAGE, found.length);
  document.querySelector("#part").textContent = `${first + 1} to ${last} of ${found.length}`;
  document.querySelector("#before").disabled = first === 0;
  document.querySelector("#after").disabled = last === found.length;
  pager.hidden = found.length <= PAGE;
};

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => show(0));
table.addEventListener("sorted", () => show(0));
document.querySelector("#before").addEventListener("click", () => show(first - PAGE));
document.querySelector("#after").addEventListener("click", () => show(first + PAGE));
form.hidden = false;
show(0);
