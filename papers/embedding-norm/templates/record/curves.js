// Curves of runs, drawn as SVG from the data block of the page.
"use strict";

const { axes, runs } = JSON.parse(document.querySelector("#curve-data").textContent);
const [WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM] = [420, 240, 46, 16, 26];

const place = document.querySelector(".curves");
const SPACE = place.querySelector("svg").namespaceURI;

const element = (name, attributes, text = "") => {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
};

// Round numbers between two ends: multiples of 1, 2 or 5, on a logarithmic axis times powers of ten.
const ticks = (low, high, logarithmic) => {
  const found = [];
  if (logarithmic) {
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
      for (const factor of high / low > 100 ? [1] : [1, 2, 5]) found.push(factor * 10 ** power);
  } else {
    const rough = (high - low) / 5 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    for (let i = Math.ceil(low / step); i * step <= high; i += 1) found.push(i * step);
  }
  return found.filter((value) => value >= low && value <= high);
};

// One axis: where a value stands between two places, linear or, over many magnitudes, logarithmic.
const scale = (values, from, to, mayBeLogarithmic) => {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const logarithmic = mayBeLogarithmic && low > 0 && high > 10 * low;
  const turn = logarithmic ? Math.log10 : Number;
  const span = turn(high) - turn(low) || 1;
  const place = (value) => from + ((turn(value) - turn(low)) / span) * (to - from);
  return { place, ticks: ticks(low, high, logarithmic) };
};

const line = (name, [steps, values], x, y, pale) =>
  element("polyline", {
    points: steps.map((step, i) => `${x.place(step).toFixed(1)},${y.place(values[i]).toFixed(1)}`).join(" "),
    // Black is the colour of the text, so that it shows on a dark page.
    stroke: runs[name].colour === "#000000" ? "currentColor" : runs[name].colour,
    "stroke-dasharray": runs[name].dashes,
    class: pale ? "pale" : "",
  });

// One chart of a curve for some runs, on axes that hold all of `within`.
const chart = (curve, shown, within) => {
  const lines = within.map((name) => runs[name].lines[curve]).filter(Boolean);
  const x = scale(lines.flatMap(([steps]) => steps), LEFT, WIDTH - RIGHT, false);
  const y = scale(lines.flatMap(([, values]) => values), HEIGHT - BOTTOM, 8, true);
  const label = `${axes[curve]} by step: ${shown.join("; ")}`;
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const tick of x.ticks)
    svg.append(element("text", { x: x.place(tick), y: HEIGHT - 8, "text-anchor": "middle" }, String(tick)));
  for (const tick of y.ticks) {
    const place = y.place(tick);
    svg.append(element("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: place, y2: place }));
    const text = String(Number(tick.toPrecision(3)));
    svg.append(element("text", { x: LEFT - 6, y: place + 4, "text-anchor": "end" }, text));
  }
  const drawn = [...within].sort((a, b) => shown.includes(a) - shown.includes(b));
  for (const name of drawn) {
    const found = runs[name].lines[curve];
    if (found) svg.append(line(name, found, x, y, !shown.includes(name)));
  }
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  caption.textContent = shown.length > 1 ? axes[curve] : `${axes[curve]}: ${shown[0]}`;
  figure.append(caption, svg);
  return figure;
};

const names = Object.keys(runs);

const choice = (label, chosen) => {
  const frame = document.createElement("label");
  const select = document.createElement("select");
  const groups = new Map();
  for (const name of names) {
    const [study, run] = name.split(" · ");
    if (!groups.has(study)) {
      const group = document.createElement("optgroup");
      group.label = study;
      groups.set(study, group);
      select.append(group);
    }
    groups.get(study).append(new Option(run, name, false, name === chosen));
  }
  frame.append(`${label} `, select);
  return frame;
};

const drawTwo = () => {
  const asked = decodeURIComponent(location.hash.slice(1));
  const first = names.includes(asked) ? asked : names[0];
  // Beside it, a run of the same study and seed that differs in its arm.
  const seed = first.split(", seed ").pop();
  const [study] = first.split(" · ");
  const like = (name) => name.startsWith(`${study} · `) && name.endsWith(`, seed ${seed}`);
  const second = names.find((name) => name !== first && like(name)) ?? names.at(-1);
  const form = document.createElement("form");
  form.className = "filters";
  form.append(choice("Left", first), choice("Right", second));
  const charts = document.createElement("div");
  charts.className = "charts two";
  const draw = () => {
    const two = [...form.elements].map((select) => select.value);
    const curves = Object.keys(axes).filter((curve) => two.some((name) => runs[name].lines[curve]));
    charts.replaceChildren(...curves.flatMap((curve) => two.map((name) => chart(curve, [name], two))));
  };
  form.addEventListener("change", draw);
  place.replaceChildren(form, charts);
  draw();
  if (names.includes(asked)) place.scrollIntoView();
};

const drawAll = () => {
  const charts = document.createElement("div");
  charts.className = "charts";
  const curves = Object.keys(axes).filter((curve) => names.some((name) => runs[name].lines[curve]));
  charts.append(...curves.map((curve) => chart(curve, names, names)));
  const legend = document.createElement("p");
  legend.className = "legend";
  for (const variant of new Set(names.map((name) => runs[name].variant))) {
    const of = names.find((name) => runs[name].variant === variant);
    const sample = element("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
    sample.append(line(of, [[0, 24], [4, 4]], { place: Number }, { place: Number }, false));
    const entry = document.createElement("span");
    entry.append(sample, variant);
    legend.append(entry);
  }
  place.replaceChildren(legend, charts);
};

if (names.length === 0) place.textContent = "No run has left a curve yet.";
else if (place.dataset.curves === "two") {
  drawTwo();
  window.addEventListener("hashchange", drawTwo);
} else drawAll();
