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

const RANGE = /^(.*?)\.\.(.*)$/;

// Whether a value lies on the right side of a bound; `>3e-3` and `<3e-3` leave the bound itself out.
const beyond = (value, bound, side) => {
  const gap = side * (value - Number(bound.replace(/[<>]/, "")));
  return !bound || Number.isNaN(gap) || (/[<>]/.test(bound) ? gap > 0 : gap >= 0);
};

const fits = (value, wanted) => {
  const range = RANGE.exec(wanted);
  if (!range) return String(value) === wanted;
  return typeof value === "number" && beyond(value, range[1], 1) && beyond(value, range[2], -1);
};

// Whether a run ({words, study, status, values}) passes the filters.
const passes = (run, state) =>
  (state.get("q") ?? "").toLowerCase().split(/\s+/).every((word) => run.words.includes(word)) &&
  ["study", "status"].every((name) => ["", "*", run[name]].includes(state.get(name) ?? "")) &&
  [...state].every(([name, wanted]) => !(name in run.values) || fits(run.values[name], wanted));

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
