// The slider over the initial RMS: what starts with another one turns pale. All lines are in the
// page, and the place of each slider in its address.
"use strict";

for (const section of document.querySelectorAll(".initial-rms")) {
  const form = section.querySelector("form");
  const [slider, said] = form.elements;
  const parts = [...section.querySelectorAll("[data-place]")];
  const rows = parts.filter((part) => part.matches("tr"));

  const show = () => {
    for (const part of parts) {
      const isShown = part.dataset.place === slider.value;
      part.classList.toggle("pale", !isShown);
      part.classList.toggle("chosen", isShown);
      if (isShown && part.matches("g")) part.parentNode.append(part); // above the others
    }
    const [first, ...more] = rows.filter((row) => row.dataset.place === slider.value);
    const of = (column) => [first, ...more].map((row) => Number(row.cells[column].textContent.replace("×", "")));
    const range = (numbers, digits) => {
      const ends = [Math.min(...numbers), Math.max(...numbers)].map((number) => number.toFixed(digits));
      return ends[0] === ends[1] ? ends[0] : `${ends[0]} to ${ends[1]}`;
    };
    const rms = first.cells[0].textContent.trim();
    const gaps = [first, ...more].map((row) => row.cells[4].textContent.split(" ")[0]);
    const different = new Map(gaps.map((gap) => [Number(gap.replace("−", "-")), gap])); // 0 and 0.000 are one
    said.textContent =
      `${rms}: dev loss ends at ${range(of(2), 2)}, and blocks multiply the RMS by ${range(of(3), 1)}. ` +
      `Dev loss minus that without a layer: ${[...different.values()].join(", ")}.`;
    slider.setAttribute("aria-valuetext", rms);
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  slider.addEventListener("input", () => {
    const state = readState();
    intoState([slider], state);
    show();
    writeState(state);
  });
  const apply = () => {
    intoFields([slider], readState());
    show();
  };
  window.addEventListener("hashchange", apply);
  form.hidden = false;
  apply();
}
