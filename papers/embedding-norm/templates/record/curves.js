// Curves drawn as SVG from the data block of a page: by itself on a run's and a study's page, by
// overlay.js where runs are chosen.
"use strict";

const [LEFT, RIGHT, BOTTOM] = [58, 16, 26];

const place = document.querySelector(".curves");
const SPACE = place.querySelector("svg").namespaceURI;
const data = JSON.parse(document.querySelector("#curve-data").textContent);

const element = (name, attributes, text = "") => {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
};

// Round numbers between two ends: multiples of 1, 2 or 5, on a logarithmic axis times powers of ten.
const ticks = (low, high, logarithmic) => {
  const found = [];
  if (logarithmic && high > 3 * low) {
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

const numberText = (value, digits = 3) => String(Number(value.toPrecision(digits))).replace("-", "−");

// One axis: where a value stands between two places. What a logarithm does not have is NaN.
const scale = (values, from, to, logarithmic) => {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values)
    if (!logarithmic || value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high) [low, high] = [1, 2];
  const turn = logarithmic ? (value) => (value > 0 ? Math.log10(value) : NaN) : Number;
  const span = turn(high) - turn(low) || 1;
  const at = (value) => from + ((turn(value) - turn(low)) / span) * (to - from);
  return { at, low, high, ticks: ticks(low, high, logarithmic) };
};

const spansMagnitudes = (values) => {
  const { low, high } = scale(values, 0, 1, true);
  return values.every((value) => value > 0) && high > 10 * low;
};

const points = (steps, values, x, y) =>
  steps
    .map((step, i) => [x.at(step), y.at(values[i])])
    .filter((point) => !point.some(Number.isNaN))
    .map((point) => point.map((each) => each.toFixed(1)).join(","));

// Black is the colour of the text, so that it shows on a dark page.
const paint = ({ colour }) => (colour === "#000000" ? "currentColor" : colour);

const stroke = (line, drawn) =>
  element("polyline", {
    points: drawn.join(" "),
    stroke: paint(line),
    "stroke-dasharray": line.dashes ?? "",
    class: line.pale ? "pale" : "",
  });

const swatch = (line) => {
  const svg = element("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
  svg.append(stroke(line, ["0,4", "24,4"]));
  return svg;
};

// A chart of lines, each with steps and values, perhaps low and high (a band) and dots (steps and
// values of single runs). Its vertical axis also holds the values of `hold`.
const chart = (label, lines, { width = 420, height = 240, hold = [], logX = false, logY = false } = {}) => {
  const all = (...parts) => lines.flatMap((line) => parts.flatMap((part) => line[part] ?? []));
  const dots = (end) => lines.flatMap((line) => line.dots?.[end] ?? []);
  const x = scale([...all("steps"), ...dots(0)], LEFT, width - RIGHT, logX);
  const y = scale([...hold, ...all("values", "low", "high"), ...dots(1)], height - BOTTOM, 8, logY);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const tick of x.ticks)
    svg.append(element("text", { x: x.at(tick), y: height - 8, "text-anchor": "middle" }, String(tick)));
  for (const tick of y.ticks) {
    const at = y.at(tick);
    svg.append(element("line", { class: tick === 0 ? "grid zero" : "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
    svg.append(element("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, numberText(tick)));
  }
  for (const line of lines) {
    if (line.low) {
      const ends = [points(line.steps, line.low, x, y), points(line.steps, line.high, x, y).reverse()];
      svg.append(element("polygon", { points: ends.flat().join(" "), fill: paint(line), class: "band" }));
    }
    if (line.dots) {
      const d = points(...line.dots, x, y).map((point) => `M${point}h0`);
      svg.append(element("path", { d: d.join(""), stroke: paint(line), class: "dots" }));
    }
  }
  for (const line of lines) svg.append(stroke(line, points(line.steps, line.values, x, y)));
  return { svg, x };
};

// Every run of the page, in a chart for each curve. Of two, the second is the baseline.
const drawAll = () => {
  const runs = Object.entries(data.runs);
  const beside = place.dataset.curves === "beside";
  const charts = document.createElement("div");
  charts.className = "charts";
  for (const [curve, axis] of Object.entries(data.axes)) {
    const lines = runs
      .filter(([, run]) => run.lines[curve])
      .map(([, run], i) => ({ ...run, steps: run.lines[curve][0], values: run.lines[curve][1], pale: beside && i > 0 }))
      .reverse();
    if (lines.length === 0) continue;
    const label = `${axis} by step: ${runs.map(([name]) => name).join("; ")}`;
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = `${axis}, by step`;
    const values = lines.flatMap((line) => line.values);
    figure.append(caption, chart(label, lines, { logY: spansMagnitudes(values) }).svg);
    charts.append(figure);
  }
  const legend = document.createElement("p");
  legend.className = "legend";
  const shown = new Map(runs.map(([name, run]) => [beside ? name : run.variant, run]));
  for (const [name, run] of shown) {
    const entry = document.createElement("span");
    entry.append(swatch({ ...run, pale: beside && run !== runs[0][1] }), name);
    legend.append(entry);
  }
  place.replaceChildren(legend, charts);
};

if (Object.keys(data.runs).length === 0) place.textContent = "No run has left a curve yet.";
else if (place.dataset.curves !== "chosen") drawAll();
