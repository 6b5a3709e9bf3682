// Sorting by any column; filtering and paging of runs, all of it in the address. Without scripts all
// tables read whole.
"use strict";

const PAGE = 100; // rows, as in record.css; a page of a thousand is slow to lay out and to read

const valueOf = (row, column) => {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
};

// What is missing stays last in both directions.
const compare = (a, b, direction) => {
  const missing = (value) => value === "" || value === "n/a";
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const numbers = [Number(a), Number(b)];
  const order = numbers.some(Number.isNaN) ? inOrder(a, b) : numbers[0] - numbers[1];
  return direction * order;
};

const sort = (table, header, descending) => {
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row, header.cellIndex), row]);
  rows.sort(([a], [b]) => compare(a, b, descending ? -1 : 1));
  table.tBodies[0].append(...rows.map(([, row]) => row));
};

for (const table of document.querySelectorAll("table.sortable"))
  for (const header of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("click", () => {
      const descending = header.getAttribute("aria-sort") === "ascending";
      sort(table, header, descending);
      table.dispatchEvent(new CustomEvent("sorted", { detail: (descending ? "-" : "") + header.dataset.column }));
    });
  }

const form = document.querySelector(".filters");
const pager = document.querySelector(".pager");
const table = document.querySelector("#run-table");
const headers = [...table.tHead.rows[0].cells];
const fields = [...form.elements].filter((field) => field.name);
const part = (id) => document.querySelector(`#${id}`);

const runs = [...table.tBodies[0].rows].map((row) => {
  const cells = [...row.cells].slice(0, 4);
  const hashes = [...row.querySelectorAll(".hash")].map((cell) => cell.title);
  const values = {};
  for (const header of headers.slice(cells.length, -2)) {
    const value = valueOf(row, header.cellIndex);
    const isNumber = header.classList.contains("number") && value && value !== "n/a";
    values[header.dataset.column] = isNumber ? Number(value.replaceAll(",", "")) : value;
  }
  const words = [...cells.map((cell) => cell.textContent), ...hashes].join(" ").toLowerCase();
  const [, , study, status] = cells.map((cell) => cell.textContent.trim());
  return { row, id: row.dataset.run, words, study, status: row.className || status, values };
});
findNumeric(runs);
const runOf = new Map(runs.map((run) => [run.row, run]));
const asListed = runs.map((run) => run.row);

// A box before a run's name adds it to those whose curves are drawn.
const box = (row) => {
  const made = document.createElement("input");
  made.type = "checkbox";
  made.setAttribute("aria-label", `Draw the curves of ${row.cells[0].textContent}, ${runOf.get(row).study}`);
  made.addEventListener("change", () => {
    const state = readState();
    if (made.checked) state.append("run", row.dataset.run);
    else state.delete("run", row.dataset.run);
    show(state);
    writeState(state);
  });
  row.cells[0].prepend(made);
  return made;
};

const show = (state) => {
  const found = [...table.tBodies[0].rows].filter((row) => passes(runOf.get(row), state)); // as sorted
  const asked = (Number(state.get("page") || 1) - 1) * PAGE;
  const first = asked > 0 && asked < found.length ? asked : 0;
  const shown = found.slice(first, first + PAGE);
  const chosen = state.getAll("run");
  const isOthers = ({ dataset }) => Boolean(dataset.study) && dataset.study !== state.get("study");
  const isEmpty = ({ cellIndex }) => shown.every((row) => ["", "n/a"].includes(valueOf(row, cellIndex)));
  const isHidden = headers.map((header) => isOthers(header) || (shown.length > 0 && isEmpty(header)));
  for (const { row } of runs) row.hidden = true;
  for (const row of shown) {
    row.hidden = false;
    isHidden.forEach((hidden, i) => (row.cells[i].hidden = hidden));
    (row.querySelector("input") ?? box(row)).checked = chosen.includes(row.dataset.run);
  }
  headers.forEach((header, i) => {
    header.hidden = isHidden[i];
    const range = form.querySelector(`[data-column="${header.dataset.column}"]`);
    if (range) range.hidden = isOthers(header);
  });
  part("shown").textContent = `${found.length} of ${runs.length} runs`;
  part("part").textContent = `${first + 1} to ${first + shown.length} of ${found.length}`;
  part("before").disabled = first === 0;
  part("after").disabled = first + PAGE >= found.length;
  pager.hidden = found.length <= PAGE;
  part("overlay").textContent = chosen.length ? `Curves of the ${chosen.length} ticked` : "Curves of these runs";
  part("overlay").href = `compare.html#${state}`;
  if (runs.length) tellFaults(state, fields, runs);
};

const change = (changes) => {
  const state = readState();
  intoState(fields, state);
  state.delete("page");
  for (const [name, value] of Object.entries(changes)) state.set(name, value);
  show(state);
  writeState(state);
};

const turn = (pages) => change({ page: Number(readState().get("page") || 1) + pages });

// Show what the address says.
const apply = () => {
  const state = readState();
  intoFields(fields, state);
  const [, minus, name] = /^(-?)(.*)$/.exec(state.get("sort") ?? "");
  const header = headers.find((each) => each.dataset.column === name);
  if (header) sort(table, header, Boolean(minus));
  else if (table.querySelector("[aria-sort]")) {
    for (const each of headers) each.removeAttribute("aria-sort");
    table.tBodies[0].append(...asListed);
  }
  show(state);
  form.querySelector("details").open ||= fields.slice(3).some((field) => field.value);
};

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => change({}));
table.addEventListener("sorted", (event) => change({ sort: event.detail }));
part("before").addEventListener("click", () => turn(-1));
part("after").addEventListener("click", () => turn(1));
part("clear").addEventListener("click", () => {
  writeState(new URLSearchParams());
  apply();
});
window.addEventListener("hashchange", apply);
form.hidden = false;
apply();
table.classList.add("paged");
if ([...readState()].length) part("runs").scrollIntoView();
