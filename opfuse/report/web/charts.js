// Pictures as SVG: step times of both sides, intervals of the ratio, one call before and after, the
// chain as passes over memory. Original: orange, round, open. Replaced: blue, square, filled.

// A scale with round ticks that covers [low, high].
function niceScale(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 2.5, 5, 10].find((k) => k * power >= rough * 0.999) * power;
  const first = Math.floor(low / unit + 1e-9), last = Math.ceil(high / unit - 1e-9);
  const ticks = [];
  for (let i = first; i <= last; i++) ticks.push(i * unit);
  return {low: first * unit, high: last * unit, ticks, digits: Math.max(0, -Math.floor(Math.log10(unit) + 1e-9)) + (unit / power === 2.5 ? 1 : 0)};
}

function sideMark(side, x, y, title) {
  const label = el("title", {}, title);
  if (side === "new") return el("rect", {class: "dot new", x: x - 3.5, y: y - 3.5, width: 7, height: 7}, label);
  if (side === "old") return el("circle", {class: "dot old", cx: x, cy: y, r: 3.6}, label);
  return el("path", {class: "dot other", d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`}, label);
}

const SIDE_WORDS = {plain: "before anything was switched", record: "recorded", values: "recorded with values",
  validate: "validated", old: "original", new: "replaced", skipped: "not counted",
  warm: "not counted: warming up after a change", memory_off: "lever memory off", memory_on: "lever memory on",
  graph_off: "lever graph off", graph_on: "lever graph on", layout_off: "lever layout off", layout_on: "lever layout on",
  optimizer_off: "lever optimizer off", optimizer_on: "lever optimizer on", capture: "not counted: capturing and proving", replayed: "recorded, to be replayed",
  all_off: "original, no lever", all_on: "everything that is kept"};

// Every step in order, with the median of each side over the steps in which both took turns.
function stepChart(report) {
  const steps = report.steps;
  const W = 760, H = 250, left = 58, right = 118, top = 14, bottom = 34;
  const shown = Math.max(...steps.filter((s) => s.side !== "skipped").map((s) => s.wall));
  const inPair = steps.filter((s) => s.side === "old" || s.side === "new").map((s) => s.wall);
  // One slow recorded step must not press all others flat.
  const body = inPair.length ? Math.max(...inPair) : shown;
  const high = Math.min(shown, body * 1.35);
  const low = Math.min(...steps.map((s) => s.wall));
  const scale = niceScale(Math.max(0, low - (high - low) * 0.15), high, 4);
  const unit = scale.high >= 1 ? [1, "s"] : scale.high >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const digits = Math.max(0, scale.digits - Math.log10(unit[0]));
  const x = (i) => left + ((i + 0.5) / steps.length) * (W - left - right);
  const y = (v) => top + (1 - (Math.min(v, scale.high) - scale.low) / (scale.high - scale.low)) * (H - top - bottom);
  const svg = el("svg", {viewBox: `0 0 ${W} ${H}`, class: "chart long", role: "img",
    "aria-label": "TIME of each step in order, original and replaced steps"});
  for (const tick of scale.ticks)
    svg.append(el("line", {class: "grid", x1: left, x2: W - right, y1: y(tick), y2: y(tick)}),
      el("text", {class: "tick", x: left - 8, y: y(tick) + 4, "text-anchor": "end"}, `${(tick * unit[0]).toFixed(digits)} ${unit[1]}`));
  steps.forEach((s, i) => {
    const over = s.wall > scale.high;
    const title = `step ${s.step}: ${formatSeconds(s.wall)}, ${SIDE_WORDS[s.side] || s.side}`;
    svg.append(sideMark(s.side, x(i), y(s.wall), title));
    if (over) svg.append(el("text", {class: "tick small", x: x(i) + 6, y: top + 4}, formatSeconds(s.wall)));
  });
  const labels = [];
  for (const [side, name] of [["old", "original"], ["new", "replaced"]]) {
    const facts = report.sides[side];
    if (!facts.steps) continue;
    const at = y(facts.time_median_s);
    const first = steps.findIndex((s) => s.side === side);
    svg.append(el("line", {class: `median ${side}`, x1: x(first) - 6, x2: W - right + 4, y1: at, y2: at}));
    labels.push({side, name, at, value: facts.time_median_s});
  }
  labels.sort((a, b) => a.at - b.at);
  if (labels.length === 2 && labels[1].at - labels[0].at < 32) {
    const middle = (labels[0].at + labels[1].at) / 2;
    labels[0].at = middle - 16;
    labels[1].at = middle + 16;
  }
  for (const {side, name, at, value} of labels)
    svg.append(el("text", {class: `side-label ${side}`, x: W - right + 10, y: at - 2}, name),
      el("text", {class: "side-value", x: W - right + 10, y: at + 12}, formatSeconds(value)));
  for (const i of spread(steps.length, 8))
    svg.append(el("text", {class: "tick", x: x(i), y: H - bottom + 18, "text-anchor": "middle"}, String(steps[i].step)));
  svg.append(el("text", {class: "tick", x: W - right + 10, y: H - bottom + 18}, "step"));
  return svg;
}

// At most `wanted` indices, evenly.
function spread(count, wanted) {
  const by = Math.max(1, Math.ceil(count / wanted));
  return Array.from({length: Math.ceil(count / by)}, (_, i) => i * by);
}

// rows: [{name, ratio, low, high, strong}]; the line at 1 is "no change".
function ratioChart(rows) {
  const W = 420, rowHeight = 38, top = 8, bottom = 30, left = 12, right = 12;
  const H = top + rows.length * rowHeight + bottom;
  const low = Math.min(1, ...rows.map((r) => r.low)), high = Math.max(1, ...rows.map((r) => r.high));
  const scale = niceScale(low - (high - low) * 0.02, high + (high - low) * 0.02, 4);
  const x = (v) => left + ((v - scale.low) / (scale.high - scale.low)) * (W - left - right);
  const svg = el("svg", {viewBox: `0 0 ${W} ${H}`, class: "chart", role: "img", "aria-label": "Ratio original to replaced with its interval"});
  for (const tick of scale.ticks)
    svg.append(el("line", {class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: H - bottom}),
      el("text", {class: "tick", x: x(tick), y: H - bottom + 17, "text-anchor": "middle"}, `${tick.toFixed(Math.max(1, scale.digits))}×`));
  svg.append(el("line", {class: "one", x1: x(1), x2: x(1), y1: top, y2: H - bottom + 4}));
  rows.forEach((r, i) => {
    const y = top + i * rowHeight + 26;
    svg.append(el("text", {class: "tick", x: left + 2, y: y - 11}, r.name),
      el("line", {class: r.strong ? "whisker strong" : "whisker", x1: x(r.low), x2: x(r.high), y1: y, y2: y}),
      el("circle", {class: r.strong ? "point strong" : "point", cx: x(r.ratio), cy: y, r: r.strong ? 5 : 3.5},
        el("title", {}, `${times(r.ratio)} [${r.low.toFixed(2)}, ${r.high.toFixed(2)}]`)));
  });
  return svg;
}

// Pictures are drawn for the width of the page, so that their letters keep their size.
const pictureWidth = (widest) => Math.min(widest, document.documentElement.clientWidth - 34);

// The events of one call on a scale where `longest` nanoseconds fill the width, rows by depth.
function callPicture(step, roots, longest, side) {
  const W = pictureWidth(900), scale = (W - 2) / longest;
  const ids = step.within(roots);
  const start = step.start[roots[0]];
  const base = Math.min(...roots.map((r) => step.depth[r]));
  const depth = Math.max(...ids.map((i) => step.depth[i])) - base;
  const rowHeight = 22, H = (depth + 1) * rowHeight + 4;
  const svg = el("svg", {viewBox: `0 0 ${W} ${H}`, class: `call ${side}`, role: "img",
    "aria-label": `${roots.map((r) => step.nameOf(r)).join(", ")}: ${formatNs(spanOf(step, roots))}`});
  for (const id of ids) {
    const x = (step.start[id] - start) * scale;
    const width = Math.max(step.dur[id] * scale - 1, 1);
    const y = (step.depth[id] - base) * rowHeight + 2;
    const leaf = !ids.some((i) => step.parent[i] === id);
    const name = fitText(shortOp(step.nameOf(id)), width - 6);
    svg.append(el("g", {},
      el("title", {}, `${step.nameOf(id)}: ${formatNs(step.dur[id])}`),
      el("rect", {class: leaf ? "leaf" : "inner", x, y, width, height: rowHeight - 3}),
      name ? el("text", {class: leaf ? "leaf-name" : "inner-name", x: x + 5, y: y + 14}, name) : null));
  }
  return svg;
}

const spanOf = (step, roots) => step.end(roots[roots.length - 1]) - step.start[roots[0]];

// Operators without others inside, in order: what passes over memory.
function passesOf(step, roots) {
  const ids = step.within(roots).filter((i) => KINDS[step.kind[i]] === "operator");
  const inside = new Set(ids);
  const top = ids.filter((i) => {
    for (let p = step.parent[i]; p >= 0; p = step.parent[p]) if (inside.has(p)) return false;
    return true;
  });
  return top.map((i) => ({name: shortOp(step.nameOf(i)), ns: step.dur[i]}));
}

// x -> [sigmoid] -> [mul] -> y; wraps into rows of boxes.
function chainPicture(passes, side, from, to) {
  const height = 30, gap = 22, W = pictureWidth(560);
  const boxes = [{text: from, end: true}, ...passes.map((p) => ({text: p.name, ns: p.ns})), {text: to, end: true}];
  let x = 0, row = 0;
  for (const box of boxes) {
    box.width = box.end ? 14 + box.text.length * 7 : Math.max(48, 20 + box.text.length * 6.8);
    if (x + box.width > W) {
      x = 0;
      row++;
    }
    Object.assign(box, {x, row});
    x += box.width + gap;
  }
  const rowHeight = height + (passes.some((p) => p.ns) ? 26 : 14);
  const used = Math.ceil(Math.max(...boxes.map((b) => b.x + b.width))) + 14;
  const svg = el("svg", {viewBox: `0 0 ${used} ${(row + 1) * rowHeight}`, width: used, class: `chain ${side}`, role: "img",
    "aria-label": `${from}, ${passes.map((p) => p.name).join(", ")}, ${to}`});
  boxes.forEach((box, i) => {
    const y = box.row * rowHeight + 2;
    if (!box.end) svg.append(el("rect", {class: "box", x: box.x + 0.5, y, width: box.width, height: height - 4, rx: 4}));
    svg.append(el("text", {class: box.end ? "value" : "op", x: box.x + box.width / 2, y: y + 17, "text-anchor": "middle"}, box.text));
    if (box.ns) svg.append(el("text", {class: "tick", x: box.x + box.width / 2, y: y + 39, "text-anchor": "middle"}, formatNs(box.ns)));
    if (i + 1 < boxes.length && boxes[i + 1].row === box.row) {
      const x0 = box.x + box.width + 3, x1 = boxes[i + 1].x - 3;
      svg.append(el("path", {class: "arrow", d: `M${x0} ${y + 13}H${x1}m-5 -4l5 4l-5 4`}));
    } else if (i + 1 < boxes.length) {
      svg.append(el("text", {class: "tick", x: box.x + box.width + 6, y: y + 17}, "…"));
    }
  });
  return svg;
}
