"use strict";
// The page "Will it fit?": shows the stored prediction for what is chosen. fit_page.py writes the
// data into the page; sizes in it are units of 512 bytes.
(() => {
  const data = JSON.parse(document.getElementById("fit-data").textContent);
  const form = document.getElementById("fit");
  // Okabe and Ito's palette and two greys, as in the notebooks.
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
  COLOURS.push("#666666", "#222222");
  const SIGNS = { fits: "✔", tight: "≈", "does not fit": "✘" };
  const GIB = 2 ** 30;
  const byId = (id) => document.getElementById(`fit-${id}`);
  const menus = Object.keys(data.choices).map(byId);

  /** Return units as GiB with two decimals. Python rounds a tie to the even digit, so this does. */
  function gib(units) {
    const hundredths = (units * data.unit * 100) / GIB;
    let whole = Math.round(hundredths);
    if (hundredths % 1 === 0.5 && whole % 2 === 1) whole -= 1;
    return (whole / 100).toFixed(2);
  }

  /** Return what is chosen, by the names of the menus, as the data calls it. */
  function chosen() {
    return Object.fromEntries(
      menus.map((menu) => [menu.name, data.choices[menu.name][menu.selectedIndex]]),
    );
  }

  /** Return the key of a choice without its model: inference has no lever. */
  function way({ mode, dtype, lever }) {
    return [mode, dtype, mode === "inference" ? "none" : lever].join(" | ");
  }

  /** Return the prediction for a choice: units by part, their sum, and the moment of the peak. */
  function predicted(choice) {
    const peaks = data.peaks[`${choice.model} | ${way(choice)}`];
    const at =
      data.batch.indexOf(choice.batch) * data.length.length + data.length.indexOf(choice.length);
    const value = (name) => (Array.isArray(peaks[name]) ? peaks[name][at] : peaks[name]);
    const parts = data.terms.map(value);
    const total = parts.reduce((sum, part) => sum + part, 0);
    return { parts, total, moment: data.moments[value("moment")] };
  }

  /** Return what a memory of so many GiB says to a prediction; a tenth of it is held back. */
  function verdict(total, size) {
    if (total * data.unit <= size * GIB * (1 - 0.1)) return "fits";
    return total * data.unit <= size * GIB ? "tight" : "does not fit";
  }

  /** Return the largest batch on offer that fits, as text. */
  function largestBatch(choice, size) {
    const fitting = data.batch.filter(
      (batch) => verdict(predicted({ ...choice, batch }).total, size) === "fits",
    );
    if (!fitting.length) return "none";
    return fitting.length === data.batch.length ? `${fitting.at(-1)} or more` : `${fitting.at(-1)}`;
  }

  /** Return a new element that holds texts and other elements. */
  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    made.append(...children);
    return made;
  }

  /** Fill a table with rows of cells; the first cell of each names its row. */
  function fill(table, rows) {
    const made = rows.map(([first, ...cells]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, ...[first].flat()),
        ...cells.map((cell) => element("td", {}, cell)),
      ),
    );
    byId(table).tBodies[0].replaceChildren(...made);
  }

  function drawBar(parts, total) {
    const larger = data.gpus.slice(1).find((size) => size * GIB >= total * data.unit);
    const scale = larger ? (larger * GIB) / data.unit : total;
    const percent = (units) => `${(100 * units) / scale}%`;
    const segments = parts.map((part, which) =>
      element("span", { style: `width: ${percent(part)}; background: ${COLOURS[which]}` }),
    );
    const marks = data.gpus
      .map((size) => [size, (size * GIB) / data.unit])
      .filter(([, units]) => units <= scale)
      .map(([size, units]) => element("i", { style: `left: ${percent(units)}` }, `${size}`));
    byId("bar").replaceChildren(
      element("div", { class: "fit-segments" }, ...segments),
      element("div", { class: "fit-marks" }, ...marks),
    );
  }

  function show() {
    const choice = chosen();
    const { parts, total, moment } = predicted(choice);
    const options = ["mode", "dtype"].map((kind) => data.options[kind][choice[kind]]);
    if (choice.mode !== "inference") options.push(data.options.lever[choice.lever]);
    const call =
      `predict_peak("${choice.model}", ${choice.batch}, ${choice.length}, ` +
      `device="cuda"${options.join("")})`;
    const reached = `${gib(total)} GiB, reached in the ${moment}.`;
    const verdicts = data.gpus.map((size) => `${size} GiB: ${verdict(total, size)}`).join(", ");
    byId("lever").disabled = choice.mode === "inference";
    byId("total").textContent = `${gib(total)} GiB`;
    byId("said").textContent = `at the highest moment, in the ${moment}. Fits, with a tenth to spare, from: ${fitsFrom(total)}.`;
    byId("bar").setAttribute("aria-label", `${call}: ${reached} ${verdicts}.`);
    byId("call").textContent = call;
    byId("own").textContent = data.codes[way(choice)]
      .replace("MODEL", data.hub[choice.model])
      .replace("BATCH", choice.batch)
      .replace("LENGTH", choice.length);
    drawBar(parts, total);
    showTables(choice, parts, total);
  }

  function fitsFrom(total) {
    const size = data.gpus.find((memory) => verdict(total, memory) === "fits");
    return size ? `${size} GiB` : "none of these";
  }

  function showTables(choice, parts, total) {
    const named = data.terms.map((name, which) => {
      const swatch = element("span", { class: "fit-swatch", style: `background: ${COLOURS[which]}` });
      return [[swatch, name], gib(parts[which]), data.parts[name]];
    });
    fill("parts", named);
    const memories = data.gpus.map((size) => {
      const said = verdict(total, size);
      const colour = `fit-${said.replaceAll(" ", "-")}`;
      const shown = element("span", { class: colour }, `${SIGNS[said]} ${said}`);
      return [`${size} GiB`, shown, largestBatch(choice, size), data.examples[size]];
    });
    fill("gpus", memories);
    byId("levers").hidden = choice.mode === "inference";
    const levers = data.choices.lever.map((lever) => {
      const other = predicted({ ...choice, lever }).total;
      return [lever, gib(other), fitsFrom(other)];
    });
    fill("levers", levers);
  }

  /** Choose what the address says; what it does not say, or says wrong, is the default. */
  function readAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    menus.forEach((menu) => {
      const options = [...menu.options];
      const found = options.findIndex((option) => option.value === wanted.get(menu.name));
      const usual = options.findIndex((option) => option.defaultSelected);
      menu.selectedIndex = found < 0 ? usual : found;
    });
    show();
  }

  function writeAddress() {
    const said = new URLSearchParams(menus.map((menu) => [menu.name, menu.value]));
    history.replaceState(null, "", `#${said}`);
    show();
  }

  /** Copy a text; a page that is a file may have no clipboard, so the text is then selected. */
  async function copy(event) {
    const code = document.getElementById(event.currentTarget.dataset.copies);
    try {
      await navigator.clipboard.writeText(code.textContent);
      byId("copied").textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(code);
      byId("copied").textContent = "Selected: press Ctrl-C (on a Mac Cmd-C).";
    }
  }

  form.addEventListener("change", writeAddress);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.querySelectorAll("[data-copies]").forEach((button) => button.addEventListener("click", copy));
  // A link to a heading of this page leaves the choice.
  addEventListener("hashchange", () => location.hash.includes("=") && readAddress());
  readAddress();
  form.hidden = byId("result").hidden = false;
})();
