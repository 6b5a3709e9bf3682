// Any runs' curves in one chart, grouped, beside a baseline; and what two of them wrote. What is
// shown stands in the address, with the filters that the table of runs has.
"use strict";

const form = document.querySelector(".filters");
const find = (selector) => document.querySelector(selector);
const fields = [...document.querySelectorAll("main [name]")];
const field = (name) => fields.find((each) => each.name === name);
const values = find("output.values");

for (const [id, run] of Object.entries(data.runs)) {
  run.id = id;
  run.title = `${run.study} · ${run.arm}, seed ${run.seed}`;
  run.values = Object.fromEntries(data.columns.map((name, i) => [name, run.values[i]]));
}
const runs = Object.values(data.runs);
findNumeric(runs);

const FILTERS = ["q", "study", "status", ...data.columns];
const isFiltered = (state) => FILTERS.some((name) => state.has(name));

// The runs that the boxes of the table name; else those that pass its filters; else a study's.
const chosenRuns = (state) => {
  const ticked = state.getAll("run").filter((id) => id in data.runs);
  if (ticked.length) return ticked.map((id) => data.runs[id]);
  return runs.filter((run) => (isFiltered(state) ? passes(run, state) : run.study === runs[0].study));
};

const baselineOf = (run, state) => data.runs[`${run.study}/${state.get("base") || run.baseline}/${run.seed}`];

// A curve's value at a step, between its points; NaN outside.
const valueAt = ([steps, of], step) => {
  const next = steps.findIndex((each) => each >= step);
  if (next < 0 || step < steps[0]) return NaN;
  if (steps[next] === step) return of[next];
  const share = (step - steps[next - 1]) / (steps[next] - steps[next - 1]);
  return of[next - 1] + share * (of[next] - of[next - 1]);
};

// An exponential moving average, without the pull to zero of its beginning.
const smoothed = ([steps, of], weight) => {
  let [sum, total] = [0, 0];
  return [steps, of.map((value) => (sum = weight * sum + value) / (total = weight * total + 1))];
};

const curveOf = (run, state) => {
  const line = run.lines[state.get("view") || "dev_loss"];
  if (!line || state.get("view")) return line;
  const base = baselineOf(run, state);
  if (!base?.lines.dev_loss || base === run) return undefined;
  const kept = line[0].filter((step) => !Number.isNaN(valueAt(base.lines.dev_loss, step)));
  return [kept, kept.map((step) => valueAt(line, step) - valueAt(base.lines.dev_loss, step))];
};

const groupOf = (run, by) => {
  if (by in run.values) return `${run.values[by]}`;
  return { arm: run.arm, run: run.title, study: run.study }[by] ?? run.variant;
};

const mean = (of) => of.reduce((sum, value) => sum + value, 0) / of.length;

// The line of a group: steps that all its members reach, at each their mean and a band.
const lineOf = (name, members, state) => {
  const curves = members.map(({ curve }) => smoothed(curve, Number(state.get("smooth") ?? 0)));
  const last = Math.min(...curves.map(([steps]) => steps.at(-1)));
  const first = Math.max(...curves.map(([steps]) => steps[0]));
  const union = [...new Set(curves.flatMap(([steps]) => steps))].filter((step) => step >= first && step <= last);
  const steps = union.sort((a, b) => a - b).filter((_, i, all) => i % Math.ceil(all.length / 150) === 0 || i === all.length - 1);
  const pairs = new Set(members.map(({ run }) => run.seed)).size === members.length;
  const line = { name, steps, values: [], low: [], high: [], n: members.length };
  for (const step of steps) {
    const at = curves.map((curve) => valueAt(curve, step));
    const middle = mean(at);
    const spread = Math.sqrt(at.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (at.length - 1));
    const reach = !state.get("view") && pairs && (data.t[at.length - 2] * spread) / Math.sqrt(at.length);
    line.values.push(middle);
    line.low.push(reach ? middle - reach : Math.min(...at));
    line.high.push(reach ? middle + reach : Math.max(...at));
  }
  if (members.length === 1) delete line.low;
  return { ...line, dots: [0, 1].map((end) => members.flatMap(({ curve }) => curve[end])) };
};

const linesOf = (chosen, state) => {
  const by = state.get("by") ?? "";
  const drawn = chosen.map((run) => ({ run, curve: curveOf(run, state) })).filter(({ curve }) => curve?.[0].length);
  const groups = Map.groupBy(drawn, ({ run }) => groupOf(run, by));
  const names = [...groups.keys()].sort(inOrder);
  if (!by || by === "run") names.sort((a, b) => drawn.findIndex(({ run }) => groupOf(run, by) === a) - drawn.findIndex(({ run }) => groupOf(run, by) === b));
  return names.map((name, i) => {
    const members = groups.get(name);
    const completed = members.filter(({ run }) => run.status === "completed");
    const line = lineOf(name, completed.length ? completed : members, state);
    const [{ run }] = members;
    if (!by || (by === "run" && names.length < 3)) return { ...line, colour: run.colour, dashes: run.dashes };
    // From blue over green to red, in the order of the names.
    return { ...line, colour: `hsl(${220 - (220 * i) / Math.max(names.length - 1, 1)} 65% 45%)`, dashes: by === "run" ? run.dashes : "" };
  });
};

const options = (select, entries) => {
  const { value } = select;
  select.replaceChildren(...entries.map(([key, text]) => new Option(text, key)));
  select.value = value;
};

const signed = (value, state) => (state.get("view") || value < 0 ? "" : "+") + numberText(value, 4);

// The values of all lines at a step, beside the looks of the lines.
const tell = (lines, step, state) => {
  const entries = lines.map((line) => {
    const entry = document.createElement("span");
    const value = valueAt([line.steps, line.values], step);
    const band = line.low && [line.low, line.high].map((end) => signed(valueAt([line.steps, end], step), state));
    const text = Number.isNaN(value) ? "ends before" : signed(value, state) + (band ? ` [${band.join(", ")}]` : "");
    entry.append(swatch(line), `${line.name} (${line.n}): `, Object.assign(document.createElement("b"), { textContent: text }));
    return entry;
  });
  values.replaceChildren(`Step ${step}`, ...entries);
};

const draw = (state) => {
  const chosen = chosenRuns(state);
  const lines = linesOf(chosen, state);
  const view = state.get("view");
  const title = view ? data.axes[view] : "dev loss minus the baseline's of the same seed (nats)";
  const slider = field("step");
  slider.closest("label").hidden = lines.length === 0;
  find("#table").href = `index.html#${state}`;
  const count = lines.reduce((sum, line) => sum + line.n, 0);
  find("#chosen").textContent = `${chosen.length} of ${runs.length} runs chosen${filtersText(state)}; ${count} of them drawn.`;
  if (lines.length === 0) {
    values.replaceChildren();
    place.textContent = chosen.length
      ? "None of these runs has this curve and a baseline of the same seed: choose another one to show, or another baseline."
      : "No run passes the filter.";
    return;
  }
  const width = Math.min(Math.max(place.clientWidth, 300), 1100);
  const { svg, x } = chart(`${title} by step: ${lines.map(({ name }) => name).join("; ")}`, lines, {
    width,
    height: Math.min(0.5 * width + 80, 440),
    hold: view ? [] : [0],
    logX: field("logx").checked,
    logY: Boolean(view) && field("logy").checked,
  });
  const cursor = element("line", { class: "cursor", y1: 8, y2: svg.viewBox.baseVal.height - BOTTOM });
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const point = () => {
    const step = steps[Number(slider.value)];
    cursor.setAttribute("x1", x.at(step));
    cursor.setAttribute("x2", x.at(step));
    slider.setAttribute("aria-valuetext", `step ${step}`);
    tell(lines, step, state);
  };
  slider.max = slider.defaultValue = steps.length - 1;
  slider.value = state.get("step") ?? steps.length - 1;
  slider.oninput = point;
  svg.append(cursor);
  svg.addEventListener("pointermove", ({ clientX }) => {
    const at = ((clientX - svg.getBoundingClientRect().x) / svg.clientWidth) * width;
    const far = (step) => Math.abs(x.at(step) - at);
    slider.value = steps.reduce((best, step, i) => (far(step) < far(steps[best]) ? i : best), 0);
    point();
  });
  const figure = document.createElement("figure");
  figure.className = "charts one";
  const caption = document.createElement("figcaption");
  caption.textContent = title;
  figure.append(caption, svg);
  place.replaceChildren(figure);
  point();
};

// Filters that only the table has fields for.
const filtersText = (state) => {
  const told = FILTERS.slice(2).filter((name) => state.has(name));
  const bounds = (text) => {
    const [low, high] = endsOf(text);
    const ends = [low && (low.startsWith(">") ? low : `≥ ${low}`), high && (high.startsWith("<") ? high : `≤ ${high}`)];
    return ends.filter(Boolean).join(" and ");
  };
  const wanted = (name) => (numeric.has(name) ? bounds(state.get(name)) : state.get(name));
  return told.map((name) => `, ${name.split(".").at(-1).replaceAll("_", " ")} ${wanted(name)}`).join("");
};

const samples = (state) => {
  const chosen = chosenRuns(state);
  const beside = chosen.map((run) => baselineOf(run, state)).filter(Boolean);
  const entries = [...new Set([...chosen, ...beside])].map((run) => [run.id, run.title]);
  const { left = chosen[0], right } = Object.fromEntries(["left", "right"].map((side) => [side, data.runs[state.get(side)]]));
  const two = { left, right: right ?? (left && baselineOf(left, state) !== left ? baselineOf(left, state) : chosen[1]) };
  for (const [side, run] of Object.entries(two)) {
    const select = field(side);
    options(select, run && !entries.some(([id]) => id === run.id) ? [...entries, [run.id, run.title]] : entries);
    select.value = run?.id ?? "";
    select.closest("div").querySelector("pre").textContent = run?.sample || "Its notebook shows no text.";
  }
};

// Show what the address says, or `state`, which is about to stand there.
const apply = (state = readState()) => {
  const arms = new Set(chosenRuns(state).flatMap((run) => [run.baseline, run.arm]).filter(Boolean));
  options(field("base"), [["", "each run's own"], ...[...arms].map((arm) => [arm, arm])]);
  intoFields(fields.filter(({ name }) => !["step", "left", "right"].includes(name)), state);
  const anyStudy = isFiltered(state) || state.has("run");
  if (!state.has("study")) field("study").value = anyStudy ? "*" : runs[0].study;
  draw(state);
  samples(state);
  tellFaults(state, fields, runs);
};

const change = (event) => {
  const state = readState();
  const own = event.target.name;
  intoState([event.target], state);
  if (["q", "study"].includes(own)) for (const name of ["run", "base", "step", "left", "right"]) state.delete(name);
  if (own !== "step") apply(state);
  writeState(state);
};

for (const each of document.querySelectorAll(".scripted")) each.hidden = runs.length === 0;
if (runs.length) {
  for (const each of fields) each.addEventListener("input", change);
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", () => apply());
  window.addEventListener("resize", () => draw(readState()));
  apply();
  if ([...readState()].length) find("#curves").scrollIntoView();
}
