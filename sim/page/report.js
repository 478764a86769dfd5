"use strict";
const report = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const SERIES = 8;
const byId = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (share) => number(100 * share, 1) + "%";
const color = (n) => (n < SERIES ? `var(--s${n})` : "var(--rest)");

function add(parent, name, attributes = {}, text = null) {
  const made = parent instanceof SVGElement || name === "svg"
    ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  parent.appendChild(made);
  return made;
}

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= size) return number(value / size, value < 10 * size ? 2 : 1) + unit;
  }
  return number(value, value && value < 10 ? 2 : 0);
}

// --- tip -------------------------------------------------------------------------------------------------

function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18;
  const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
  tip.style.left = Math.max(left, 4) + "px";
  tip.style.top = Math.max(top, 4) + "px";
}

function explain(element, text) {
  element.addEventListener("pointermove", (event) => showTip(event, typeof text === "function" ? text() : text));
  element.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
}

function legend(parent, names) {
  parent.replaceChildren();
  names.forEach(([name, fill]) => {
    const item = add(parent, "span");
    add(item, "i", { style: `background:${fill}` });
    item.append(name);
  });
}

// --- runs ------------------------------------------------------------------------------------------------

function fillTable(table, head, rows) {
  const top = add(add(table, "thead"), "tr");
  head.forEach((name) => add(top, "th", { scope: "col" }, name));
  const body = add(table, "tbody");
  rows.forEach((cells) => {
    const row = add(body, "tr");
    cells.forEach((cell) => add(row, "td", {}, cell));
  });
}

function drawRuns() {
  const first = report.runs[0];
  const head = [
    "run", "cycles", "tokens", "cycles/token", "tokens/Mcycle", "throughput", "bytes/token", "bytes",
    "MHA", "GEMM", "port", "DRAM",
  ];
  fillTable(byId("runs"), head, report.runs.map((run) => [
    run.name,
    number(run.cycles),
    number(run.tokens),
    number(run.cycles / run.tokens),
    number(1e6 * run.tokens / run.cycles, 2),
    number(first.cycles / first.tokens / (run.cycles / run.tokens), 2) + "x",
    number(run.total_bytes / run.tokens),
    number(run.total_bytes / run.tokens / (first.total_bytes / first.tokens), 3) + "x",
    ...["mha", "gemm", "port", "dram"].map((name) => percent(run.use[name])),
  ]));
  const keys = [...new Set(report.runs.flatMap((run) => Object.keys(run.config)))];
  const rows = report.runs.map((run) => [run.name, ...keys.map((key) => run.config[key] ?? "")]);
  fillTable(byId("configs"), ["run", ...keys], rows);
}

// --- timeline --------------------------------------------------------------------------------------------

const LANE = 30, GAP = 6, LEFT = 62, RIGHT = 74, BOTTOM = 24;
const timeline = { run: 0, begin: 0, end: 1, svg: null };

function describe(run, lane, spans) {
  const [start, , tag, begin] = spans[0], end = spans.at(-1)[1];
  const [batch, stage, sequence, head] = run.tags[tag], owner = `batch ${report.letters[batch] ?? batch}`;
  const cycles = `cycles ${number(start)} to ${number(end)}: ${number(end - start)}`;
  if (spans.length > 1) return `${lane.name}: ${spans.length} commands of ${owner}\n${cycles}`;
  const lines = [`${lane.name}: ${stage}, ${owner}`];
  if (sequence !== null) lines.push(`sequence ${sequence}` + (head === null ? "" : `, KV head ${head}`));
  lines.push(cycles);
  if (begin < start) lines.push(`could begin at ${number(begin)}, behind the one before`);
  return lines.join("\n");
}

function firstAfter(spans, time) {
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle][1] < time) low = middle + 1; else high = middle;
  }
  return low;
}

function ticks(begin, end, count) {
  const rough = (end - begin) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, power * [1, 2, 5, 10].find((n) => n * power >= rough));
  const made = [];
  for (let at = Math.ceil(begin / step) * step; at <= end; at += step) made.push(at);
  return made;
}

function drawLane(run, lane, y, width) {
  const { begin, end, svg } = timeline, scale = width / (end - begin);
  const place = (time) => LEFT + Math.min(Math.max((time - begin) * scale, 0), width);
  add(svg, "rect", { class: "lane", x: LEFT, y, width, height: LANE });
  add(svg, "text", { class: "strong lane-name", x: 0, y: y + LANE / 2 + 4 }, lane.name);
  add(svg, "text", { x: LEFT + width + 8, y: y + LANE / 2 + 4 }, percent(lane.busy) + " busy");
  let merged = null;
  const flush = () => {
    if (!merged) return;
    const { x, right, batch, spans } = merged;
    const box = add(svg, "rect", {
      class: "span", x, y: y + 3, width: Math.max(right - x, .8), height: LANE - 8,
      fill: color(batch), "data-batch": batch,
    });
    explain(box, () => describe(run, lane, spans));
    const name = run.tags[spans[0][2]][1];
    if (spans.length === 1 && right - x > 7 * name.length + 6) {
      add(svg, "text", { class: "inside", x: x + 4, y: y + LANE / 2 + 3 }, name);
    }
    merged = null;
  };
  for (let n = firstAfter(lane.spans, begin); n < lane.spans.length && lane.spans[n][0] <= end; n += 1) {
    const span = lane.spans[n], x = place(span[0]), right = place(span[1]), batch = run.tags[span[2]][0];
    const small = merged && Math.min(right - x, merged.right - merged.x) < 2;
    const near = small && merged.batch === batch && x - merged.right < 1;
    if (near) {
      merged.right = right;
      merged.spans.push(span);
    } else {
      flush();
      merged = { x, right, batch, spans: [span] };
    }
  }
  flush();
  let from = null, to = null;
  const line = () => {
    const low = y + LANE - 1;
    if (from !== null) add(svg, "line", { class: "waits", x1: from, x2: Math.max(to, from + .5), y1: low, y2: low });
  };
  for (let n = firstAfter(lane.waits, begin); n < lane.waits.length && lane.waits[n][0] <= end; n += 1) {
    const x = place(lane.waits[n][0]), right = place(lane.waits[n][1]);
    if (from !== null && x - to < 1) to = right;
    else { line(); [from, to] = [x, right]; }
  }
  line();
}

function drawTimeline() {
  const run = report.runs[timeline.run], place = byId("timeline");
  const width = Math.max((place.clientWidth || 1000) - LEFT - RIGHT, 200);
  const height = run.lanes.length * (LANE + GAP) + BOTTOM;
  place.replaceChildren();
  timeline.svg = add(place, "svg", { height, viewBox: `0 0 ${LEFT + width + RIGHT} ${height}` });
  timeline.width = width;
  run.lanes.forEach((lane, n) => drawLane(run, lane, n * (LANE + GAP), width));
  const y = height - BOTTOM;
  for (const at of ticks(timeline.begin, timeline.end, Math.max(width / 130, 2))) {
    const x = LEFT + (at - timeline.begin) / (timeline.end - timeline.begin) * width;
    add(timeline.svg, "line", { class: "axis", x1: x, x2: x, y1: y - GAP, y2: y });
    add(timeline.svg, "text", { class: "tick", x, y: y + 15, "text-anchor": "middle" }, number(at));
  }
}

function setView(begin, end) {
  const last = Math.max(report.runs[timeline.run].cycles, 1), size = Math.min(Math.max(end - begin, 20), last);
  timeline.begin = Math.min(Math.max(begin, 0), last - size);
  timeline.end = timeline.begin + size;
  drawTimeline();
}

function zoom(factor, where = .5) {
  const size = timeline.end - timeline.begin, at = timeline.begin + where * size;
  setView(at - where * size * factor, at + (1 - where) * size * factor);
}

function chooseRun(n) {
  timeline.run = n;
  [...byId("choice").children].forEach((button, i) => button.setAttribute("aria-pressed", i === n));
  const batches = [...new Set(report.runs[n].tags.map((tag) => tag[0]))].sort((a, b) => a - b);
  byId("lost").hidden = !report.runs[n].lost;
  legend(byId("batches"), batches.map((batch) => [`batch ${report.letters[batch] ?? batch}`, color(batch)]));
  setView(0, report.runs[n].cycles);
}

function startTimeline() {
  report.runs.forEach((run, n) => {
    add(byId("choice"), "button", { type: "button" }, run.name).addEventListener("click", () => chooseRun(n));
  });
  byId("zoom-in").addEventListener("click", () => zoom(.5));
  byId("zoom-out").addEventListener("click", () => zoom(2));
  byId("zoom-all").addEventListener("click", () => zoom(Infinity));
  const place = byId("timeline");
  const share = (event) => {
    const x = event.clientX - place.getBoundingClientRect().left - LEFT;
    return Math.min(Math.max(x / timeline.width, 0), 1);
  };
  place.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : .8, share(event));
  }, { passive: false });
  place.addEventListener("dblclick", (event) => zoom(.25, share(event)));
  let held = null;
  place.addEventListener("pointerdown", (event) => { held = [event.clientX, timeline.begin, timeline.end]; });
  window.addEventListener("pointerup", () => { held = null; });
  window.addEventListener("pointermove", (event) => {
    if (!held) return;
    const shift = (held[0] - event.clientX) / timeline.width * (held[2] - held[1]);
    setView(held[1] + shift, held[2] + shift);
  });
  place.addEventListener("keydown", (event) => {
    const step = (timeline.end - timeline.begin) / 5;
    const keys = {
      "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), "0": () => zoom(Infinity),
      ArrowLeft: () => setView(timeline.begin - step, timeline.end - step),
      ArrowRight: () => setView(timeline.begin + step, timeline.end + step),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  window.addEventListener("resize", drawTimeline);
  chooseRun(0);
}

// --- roofline --------------------------------------------------------------------------------------------

function drawRoofline() {
  const runs = report.runs, place = byId("roofline");
  const width = 620, height = 380, left = 64, right = 16, top = 12, bottom = 44;
  const points = runs.map((run) => [run.operations / run.total_bytes, run.operations / run.cycles]);
  const roofs = [...new Map(runs.map(({ roof }) => [`${roof.operations}/${roof.bytes}`, roof])).values()];
  const ridges = roofs.map((roof) => [roof.operations / roof.bytes, roof.operations]);
  const range = (values) => {
    const logs = values.map(Math.log10);
    return [Math.floor(Math.min(...logs) - .15), Math.ceil(Math.max(...logs) + .15)];
  };
  const [x0, x1] = range([...points, ...ridges].map((point) => point[0]));
  const [y0, y1] = range([...points, ...ridges].map((point) => point[1]));
  const x = (value) => left + (Math.log10(value) - x0) / (x1 - x0) * (width - left - right);
  const y = (value) => height - bottom - (Math.log10(value) - y0) / (y1 - y0) * (height - top - bottom);
  const svg = add(place, "svg", { viewBox: `0 0 ${width} ${height}` });
  const plain = (power) => power >= 0 ? number(10 ** power) : number(10 ** power, -power);
  for (let power = x0; power <= x1; power += 1) {
    add(svg, "line", { class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: top, y2: height - bottom });
    add(svg, "text", { x: x(10 ** power), y: height - bottom + 16, "text-anchor": "middle" }, plain(power));
  }
  for (let power = y0; power <= y1; power += 1) {
    add(svg, "line", { class: "grid", x1: left, x2: width - right, y1: y(10 ** power), y2: y(10 ** power) });
    add(svg, "text", { x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, plain(power));
  }
  add(svg, "text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, "operations per byte");
  const upright = `translate(12 ${(top + height - bottom) / 2}) rotate(-90)`;
  add(svg, "text", { transform: upright, "text-anchor": "middle" }, "operations per cycle");
  for (const roof of roofs) {
    const ridge = roof.operations / roof.bytes, least = Math.max(10 ** x0, 10 ** y0 / roof.bytes);
    const path = [[least, least * roof.bytes], [ridge, roof.operations], [10 ** x1, roof.operations]];
    add(svg, "polyline", { class: "roof", points: path.map(([a, b]) => `${x(a)},${y(b)}`).join(" ") });
    const name = `${short(roof.operations)} operations, ${short(roof.bytes)} bytes a cycle`;
    add(svg, "text", { x: width - right, y: y(roof.operations) - 6, "text-anchor": "end" }, name);
  }
  const taken = [];
  runs.forEach((run, i) => {
    const [a, b] = points[i];
    const dot = add(svg, "circle", { class: "point", cx: x(a), cy: y(b), r: 6, fill: color(i) });
    const share = percent(b / Math.min(run.roof.operations, a * run.roof.bytes));
    explain(dot, `${run.name}\n${number(a, 2)} operations per byte\n${number(b, 2)} per cycle, ${share} of the roof`);
    const flip = x(a) + 12 + 7 * run.name.length > width - right;
    let at = y(b) + 4;
    while (taken.some(([u, v]) => Math.abs(u - x(a)) < 120 && Math.abs(v - at) < 13)) at += 13;
    taken.push([x(a), at]);
    const anchor = flip ? "end" : "start";
    add(svg, "text", { class: "strong", x: x(a) + (flip ? -12 : 12), y: at, "text-anchor": anchor }, run.name);
  });
}

// --- traffic ---------------------------------------------------------------------------------------------

function drawTraffic() {
  const names = report.requesters, place = byId("traffic");
  const shown = names.slice(0, names.length > SERIES ? SERIES - 1 : SERIES), others = names.slice(shown.length);
  const rest = others.length ? [["others", "var(--rest)"]] : [];
  legend(byId("requesters"), [...shown.map((name, n) => [name, color(n)]), ...rest]);
  const width = 620, row = 34, left = 8, right = 70, height = report.runs.length * (row + 16) + 8;
  const most = Math.max(...report.runs.map((run) => run.total_bytes / run.tokens), 1);
  const svg = add(place, "svg", { viewBox: `0 0 ${width} ${height}` });
  report.runs.forEach((run, n) => {
    const y = n * (row + 16) + 14;
    add(svg, "text", { class: "strong", x: left, y: y - 2 }, run.name);
    let x = left;
    const segments = shown.map((name, i) => [name, run.bytes[name] ?? 0, color(i)]);
    const sum = others.reduce((total, name) => total + (run.bytes[name] ?? 0), 0);
    segments.push(["others", sum, "var(--rest)"]);
    for (const [name, bytes, fill] of segments) {
      const size = bytes / run.tokens / most * (width - left - right);
      if (!bytes) continue;
      const box = add(svg, "rect", { class: "span bytes", x, y: y + 3, width: size, height: row - 12, fill });
      const share = percent(bytes / run.total_bytes);
      explain(box, `${run.name}: ${name}\n${number(bytes / run.tokens)} bytes per token, ${share}`);
      x += size;
    }
    add(svg, "text", { x: x + 6, y: y + row / 2 + 1 }, short(run.total_bytes / run.tokens));
  });
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = (root.dataset.theme ?? (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
});
drawRuns();
startTimeline();
drawRoofline();
drawTraffic();
