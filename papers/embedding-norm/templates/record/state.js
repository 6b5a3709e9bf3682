// What a page shows, as it stands in the address: `#study=dose&training.learning_rate=>3e-3..`.
// Shared by the table of runs and by the overlay of curves.
"use strict";

document.documentElement.classList.add("script"); // for the sheet: scripts do run

const readState = () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

const writeState = (state) => history.replaceState(null, "", `#${state}`);

// Two fields of one name are the ends of a range.
const named = (fields) => Map.groupBy(fields, (field) => field.name);

const intoState = (fields, state) => {
  for (const [name, of] of named(fields)) {
    const texts = of.map((field) => (field.type === "checkbox" ? (field.checked ? "1" : "") : field.value.trim()));
    const usual = of.every((field, i) => !texts[i] || (field.type === "range" && texts[i] === field.defaultValue));
    if (usual) state.delete(name);
    else state.set(name, texts.join(".."));
  }
};

const intoFields = (fields, state) => {
  for (const [name, of] of named(fields)) {
    const text = state.get(name) ?? "";
    const texts = of.length > 1 ? text.split("..") : [text];
    of.forEach((field, i) => {
      if (field.type === "checkbox") field.checked = texts[i] === "1";
      else field.value = texts[i] || (field.type === "range" ? field.defaultValue : "");
    });
  }
};

// The two ends of a range, `3e-3..1e-2`; without dots the lower one, as the fields show it.
const endsOf = (text) => [...text.split(".."), ""].slice(0, 2);

// A bound of a range; `>3e-3` below and `<3e-3` above leave the bound itself out. Its value is NaN
// where it is none.
const boundOf = (text, sign) => {
  const isOpen = text.startsWith(sign);
  const digits = isOpen ? text.slice(1) : text;
  return { isOpen, value: digits.trim() ? Number(digits) : NaN };
};

// Whether a value lies on the right side of a bound; of any, where that is none.
const beyond = (value, text, side) => {
  const bound = boundOf(text, side > 0 ? ">" : "<");
  const gap = side * (value - bound.value);
  return Number.isNaN(gap) || (bound.isOpen ? gap > 0 : gap >= 0);
};

const fits = (value, wanted, isNumber) => {
  if (!isNumber) return String(value) === wanted;
  const [low, high] = endsOf(wanted);
  return typeof value === "number" && beyond(value, low, 1) && beyond(value, high, -1);
};

// Whether a run ({words, study, status, values}) passes the filters.
const passes = (run, state) =>
  (state.get("q") ?? "").toLowerCase().split(/\s+/).every((word) => run.words.includes(word)) &&
  ["study", "status"].every((name) => ["", "*", run[name]].includes(state.get(name) ?? "")) &&
  [...state].every(([name, wanted]) => !(name in run.values) || fits(run.values[name], wanted, numeric.has(name)));

// The columns that hold numbers, though not of every run.
const numeric = new Set();
const findNumeric = (runs) => {
  for (const { values } of runs) for (const name in values) if (typeof values[name] === "number") numeric.add(name);
};

// What an address has beside the columns, on this page or on the other.
const OTHERS = "q study status sort page run view base by smooth step logx logy left right".split(" ");
const SORTED = "arm seed study status seconds weights notebook".split(" ");

const faultOf = (name, text, fields, runs) => {
  const columns = Object.keys(runs[0].values);
  const select = fields.find((field) => field.name === name && field.localName === "select");
  const unknown = (asked, known, remedy) => {
    const near = known.find((each) => each.includes(asked) || asked.includes(each));
    return near ? `did you mean ${near}?` : remedy;
  };
  if (![...OTHERS, ...columns].includes(name)) return `there is no such field; ${unknown(name, columns, "leave it out")}`;
  const column = text.replace("-", "");
  if (name === "sort" && ![...SORTED, ...columns].includes(column))
    return `there is no column '${column}'; ${unknown(column, columns, "click on the heading of one")}`;
  if (name === "run" && !runs.some(({ id }) => id === text)) return `there is no run ${text}; tick one in the table`;
  const isAny = name === "study" && text === "*"; // as compare.html asks for runs of all studies
  if (select && !isAny && ![...select.options].some(({ value }) => value === text)) return `'${text}' is not among its choices; choose one`;
  if (!numeric.has(name)) return "";
  const wrong = endsOf(text).findIndex((end, i) => end.trim() && Number.isNaN(boundOf(end, "><"[i]).value));
  return wrong < 0 ? "" : `'${endsOf(text)[wrong]}' is no ${["lower", "upper"][wrong]} bound; write 3e-3 or ${"><"[wrong]}3e-3`;
};

// Say of what the address asks for, and the page cannot show, what is wrong with it.
const tellFaults = (state, fields, runs) => {
  const faults = [...state].map(([name, text]) => [name, text && faultOf(name, text, fields, runs)]);
  const lines = faults.filter(([, fault]) => fault).map(([name, fault]) => `${name}: ${fault}`);
  document.querySelector("#faults").replaceChildren(
    ...lines.map((line) => Object.assign(document.createElement("span"), { className: "trouble", textContent: line })),
  );
};

const NUMBER = /((?:(?<!\w)-)?\d+(?:\.\d+)?(?:e[-+]?\d+)?)/;

// The order of two texts, by the value of numbers in them: learning_rate=0.003 is before
// learning_rate=0.01, and n_layer=4 before n_layer=16.
const inOrder = (a, b) => {
  const [left, right] = [a, b].map((text) => text.split(NUMBER)); // texts and numbers by turns
  const at = left.findIndex((part, i) => part !== right[i]);
  if (at < 0) return left.length - right.length;
  if (at >= right.length) return 1;
  return at % 2 ? left[at] - right[at] || left[at].localeCompare(right[at]) : left[at].localeCompare(right[at]);
};

// A button that copies the address of the view; what it did is said beside it.
document.addEventListener("click", async ({ target }) => {
  if (!target.matches("button.copy")) return;
  const said = target.nextElementSibling;
  try {
    await navigator.clipboard.writeText(location.href);
    said.textContent = "copied";
  } catch {
    said.textContent = location.href; // no permission: to be copied by hand
  }
});
