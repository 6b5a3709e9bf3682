// Sorting by any column and filtering of runs. Without scripts both tables still read whole.
"use strict";

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
    });
  });
}

const form = document.querySelector(".filters");
const [text, study, status] = form.elements;
const rows = [...document.querySelectorAll("#run-table tbody tr")];
// Full hashes stand in titles.
const titles = (row) => [...row.querySelectorAll("[title]")].map((cell) => cell.title);
const words = new Map(
  rows.map((row) => [row, [row.textContent, ...titles(row)].join(" ").toLowerCase()]),
);

const filter = () => {
  const wanted = text.value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const row of rows) {
    row.hidden = !(
      (!study.value || row.dataset.study === study.value) &&
      (!status.value || row.dataset.status === status.value) &&
      wanted.every((word) => words.get(row).includes(word))
    );
    shown += !row.hidden;
  }
  document.querySelector("#shown").textContent = `${shown} of ${rows.length} runs`;
};

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", filter);
form.hidden = false;
filter();
