// The timeline of one or two recorded steps under each other, on one canvas and one time axis.
// Keys as in chrome://tracing; see KEYS. Nothing is drawn per event below one pixel.

const KEYS = [
  ["w  s", "zoom in, out at the mouse"],
  ["a  d", "move left, right"],
  ["← →", "previous, next event of the selection's row; without one, move"],
  ["↑ ↓", "enclosing event, first event inside"],
  ["f", "fit the selection, or everything"],
  ["0", "show everything"],
  ["c", "next call of a replaced chain (shift: previous)"],
  ["/", "search by name, file or shape; Enter: next, Shift+Enter: previous"],
  ["m", "mark the selection's time, to measure; again: remove"],
  ["1  2", "drag selects, drag moves"],
  ["Esc", "clear the selection"],
  ["?", "this list"],
];
const MOUSE = [
  ["click", "select an event: times, shapes, source, forward and backward partner"],
  ["drag", "select a time range over rows: sums by operator"],
  ["shift + drag", "move"],
  ["ctrl + wheel, pinch", "zoom at the mouse"],
  ["shift + wheel", "move"],
  ["double click", "fit the event"],
];

const ROW = 18, HEAD = 24, THREAD_HEAD = 16, AXIS = 24, GAP = 10;
const MIN_SPAN_NS = 200;

class Timeline {
  constructor(host, steps) {
    this.steps = steps;
    this.span = Math.max(1, ...steps.map((s) => s.duration));
    this.view = {from: 0, to: this.span};
    this.target = {...this.view};
    this.mode = "select";
    this.matches = [];
    this.matched = steps.map(() => new Set());
    this.pointers = new Map();
    this.mouse = {x: null, inside: false};
    this.layOut();
    this.build(host);
    this.listen();
    this.resize();
    new ResizeObserver(() => this.resize()).observe(this.stage);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.readColors());
    this.readColors();
    this.showNothing();
  }

  layOut() {
    this.lanes = [];
    this.heads = [];
    let y = AXIS;
    for (const step of this.steps) {
      this.heads.push({y, height: HEAD, text: step.title, step, main: true});
      y += HEAD;
      step.threads.forEach((thread, t) => {
        const name = thread.name || `thread ${t + 1}`;
        this.heads.push({y, height: THREAD_HEAD, text: name, step});
        y += THREAD_HEAD;
        for (const lane of thread.lanes) {
          lane.y = y;
          this.lanes.push(lane);
          y += ROW;
        }
        y += 4;
      });
      y += GAP;
    }
    this.height = y;
  }

  build(host) {
    this.canvas = el("canvas", {
      class: "timeline-canvas", tabindex: "0", role: "application",
      "aria-label": "Timeline of the recorded steps. Keys: w and s zoom, a and d move, question mark lists all keys.",
    });
    this.stage = el("div", {class: "timeline-stage"}, this.canvas);
    this.search = el("input", {type: "search", class: "timeline-search", placeholder: "Search  /",
      "aria-label": "Search events by name, file or shape", spellcheck: "false"});
    this.found = el("span", {class: "timeline-found", role: "status"});
    const button = (text, label, action) =>
      el("button", {type: "button", title: label, "aria-label": label, onclick: action}, text);
    this.modeButtons = ["select", "move"].map((mode) =>
      el("button", {type: "button", "aria-pressed": String(mode === this.mode),
        title: mode === "select" ? "Drag selects a range (1)" : "Drag moves (2)",
        onclick: () => this.setMode(mode)}, mode === "select" ? "Select" : "Move"));
    this.help = this.buildHelp();
    this.bar = el("div", {class: "timeline-bar"},
      el("span", {class: "group"}, this.modeButtons),
      el("span", {class: "group"},
        button("−", "Zoom out (s)", () => this.zoom(1 / 1.6, this.width / 2)),
        button("+", "Zoom in (w)", () => this.zoom(1.6, this.width / 2)),
        button("Fit", "Show everything (0)", () => this.fitAll())),
      el("span", {class: "group"},
        button("Next call", "Next call of a replaced chain (c)", () => this.nextCall(1))),
      this.search, this.found,
      el("span", {class: "group last"}, button("?", "Keys", () => this.toggleHelp())));
    this.panel = el("div", {class: "timeline-panel", "aria-live": "polite"});
    host.append(this.bar, this.help, this.stage, this.panel);
    this.draw2d = this.canvas.getContext("2d", {alpha: false});
  }

  buildHelp() {
    const list = (pairs) => el("dl", {class: "keys"}, pairs.map(([key, text]) =>
      el("div", {}, el("dt", {}, key.split("  ").map((k) => el("kbd", {}, k))), el("dd", {}, text))));
    return el("div", {class: "timeline-help", hidden: true, role: "region", "aria-label": "Keys of the timeline"},
      list(KEYS), list(MOUSE));
  }

  readColors() {
    const names = ["paper", "ink", "soft", "line", "old", "new", "mark", "find", "lane",
      "op-a", "op-b", "op-c", "node", "function", "scope", "on-old", "on-new", "on-op"];
    this.colors = Object.fromEntries(names.map((n) => [n, css(`--${n}`)]));
    this.redraw();
  }

  // View

  get width() { return this.stage.clientWidth; }
  xOf(time) { return ((time - this.view.from) / (this.view.to - this.view.from)) * this.width; }
  timeOf(x) { return this.view.from + (x / this.width) * (this.view.to - this.view.from); }
  range() { return {...this.target}; }

  show(from, to, smooth = true) {
    const span = Math.min(Math.max(to - from, MIN_SPAN_NS), this.span * 1.2);
    const middle = (from + to) / 2;
    const slack = this.span * 0.1;
    from = Math.min(Math.max(middle - span / 2, -slack), this.span + slack - span);
    this.target = {from, to: from + span};
    if (!smooth || matchMedia("(prefers-reduced-motion: reduce)").matches) this.view = {...this.target};
    this.redraw();
  }

  zoom(factor, x) {
    const {from, to} = this.target;
    const at = from + (x / this.width) * (to - from);
    this.show(at - (at - from) / factor, at + (to - at) / factor);
  }

  move(share) {
    const by = share * (this.target.to - this.target.from);
    this.show(this.target.from + by, this.target.to + by);
  }

  fitAll() { this.show(-this.span * 0.01, this.span * 1.01); }

  fit(from, to) {
    const pad = Math.max((to - from) * 0.15, MIN_SPAN_NS / 4);
    this.show(from - pad, to + pad);
  }

  // One frame at a time; frameTimes keeps the cost of the last ones for whoever measures.
  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      const begin = performance.now();
      const moving = this.approachTarget();
      this.draw();
      (this.frameTimes = this.frameTimes || []).push(performance.now() - begin);
      if (this.frameTimes.length > 500) this.frameTimes.shift();
      if (moving) this.redraw();
    });
  }

  approachTarget() {
    const {view, target} = this;
    const span = target.to - target.from;
    view.from += (target.from - view.from) * 0.4;
    view.to += (target.to - view.to) * 0.4;
    const off = Math.abs(target.from - view.from) + Math.abs(target.to - view.to);
    if (off > span * 0.002) return true;
    this.view = {...target};
    return false;
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(this.width * ratio));
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    this.ratio = ratio;
    this.redraw();
  }

  // Drawing

  draw() {
    const g = this.draw2d;
    if (!this.colors) return;
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.fillStyle = this.colors.paper;
    g.fillRect(0, 0, this.width, this.height);
    g.textBaseline = "middle";
    this.drawAxis(g);
    for (const head of this.heads) this.drawHead(g, head);
    g.font = "11px system-ui, sans-serif";
    for (const lane of this.lanes) this.drawLane(g, lane);
    this.drawMark(g);
    this.drawSelection(g);
    if (this.selected) this.drawArrows(g);
  }

  drawAxis(g) {
    const span = this.view.to - this.view.from;
    const rough = (span / this.width) * 110;
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = [1, 2, 5, 10].find((k) => k * power >= rough) * power;
    g.font = "11px system-ui, sans-serif";
    for (let i = Math.ceil(this.view.from / unit); i * unit <= this.view.to; i++) {
      const x = Math.round(this.xOf(i * unit)) + 0.5;
      g.strokeStyle = this.colors.line;
      g.beginPath();
      g.moveTo(x, AXIS - 6);
      g.lineTo(x, this.height);
      g.stroke();
      g.fillStyle = this.colors.soft;
      g.fillText(axisLabel(i * unit, unit), x + 4, AXIS / 2);
    }
  }

  drawHead(g, head) {
    if (head.main) {
      g.fillStyle = this.colors.lane;
      g.fillRect(0, head.y, this.width, HEAD - 4);
      g.fillStyle = this.colors.ink;
      g.font = "600 12px system-ui, sans-serif";
      const step = head.step;
      const roomy = this.width > 560;
      const left = step.leftOut && roomy ? `, ${formatCount(step.leftOut)} shortest left out` : "";
      g.fillText(`${sideTitle(step.title)}   ${formatNs(step.duration)}${roomy ? ` recorded, ${plural(step.count, "event")}` : ""}${left}`,
        6, head.y + HEAD / 2 - 2);
    } else {
      g.fillStyle = this.colors.soft;
      g.font = "11px system-ui, sans-serif";
      g.fillText(head.text, 6, head.y + THREAD_HEAD / 2);
    }
  }

  drawLane(g, lane) {
    const {step} = lane;
    const perPixel = (this.view.to - this.view.from) / this.width;
    let i = step.firstAfter(lane, this.view.from);
    while (i < lane.ids.length) {
      const id = lane.ids[i];
      const start = step.start[id];
      if (start > this.view.to) break;
      if (step.dur[id] >= perPixel) {
        this.drawEvent(g, lane, id);
        i++;
        continue;
      }
      // Everything short that starts within this pixel becomes one mark; only the last can be long.
      let next = Math.max(i + 1, step.firstFrom(lane, start + perPixel, i + 1));
      if (next > i + 1 && step.dur[lane.ids[next - 1]] >= perPixel) next--;
      this.drawMerged(g, lane, i, next);
      i = next;
    }
  }

  drawMerged(g, lane, first, next) {
    const {step} = lane;
    const ids = lane.ids;
    const end = step.end(ids[next - 1]);
    const x = this.xOf(step.start[ids[first]]);
    const marked = lane.marked[next] > lane.marked[first];
    const found = this.matches.length && hasAny(this.matched[step.index], ids, first, next);
    g.fillStyle = found ? this.colors.find : marked ? this.sideColor(step) : this.eventColor(step, ids[first]);
    g.globalAlpha = marked || found ? 1 : 0.75;
    g.fillRect(x, lane.y + 1, Math.max(this.xOf(end) - x, 1), ROW - 2);
    g.globalAlpha = 1;
  }

  drawEvent(g, lane, id) {
    const {step} = lane;
    const x0 = Math.max(this.xOf(step.start[id]), -2);
    const x1 = Math.min(this.xOf(step.end(id)), this.width + 2);
    const width = Math.max(x1 - x0 - (x1 - x0 > 4 ? 1 : 0), 1);
    const marked = step.chain[id] > 0;
    const found = this.matched[step.index].has(id);
    g.globalAlpha = this.matches.length && !found ? 0.35 : 1;
    g.fillStyle = marked ? this.sideColor(step) : this.eventColor(step, id);
    g.fillRect(x0, lane.y + 1, width, ROW - 2);
    if (found) {
      g.fillStyle = this.colors.find;
      g.fillRect(x0, lane.y + ROW - 4, width, 3);
    }
    if (width > 26) {
      g.fillStyle = marked ? this.colors[step.title === "after" ? "on-new" : "on-old"] : this.colors["on-op"];
      g.fillText(fitText(shortOp(step.nameOf(id)), width - 8), x0 + 4, lane.y + ROW / 2 + 0.5);
    }
    g.globalAlpha = 1;
  }

  sideColor(step) { return step.title === "after" ? this.colors.new : this.colors.old; }

  eventColor(step, id) {
    const kind = KINDS[step.kind[id]];
    if (kind === "autograd node") return this.colors.node;
    if (kind === "function") return this.colors.function;
    if (kind === "scope") return this.colors.scope;
    return this.colors[["op-a", "op-b", "op-c"][step.name[id] % 3]];
  }

  drawSelection(g) {
    if (this.box) {
      const x0 = this.xOf(this.box.from), x1 = this.xOf(this.box.to);
      g.fillStyle = this.colors.mark;
      g.globalAlpha = 0.16;
      g.fillRect(x0, this.box.top, x1 - x0, this.box.bottom - this.box.top);
      g.globalAlpha = 1;
      g.strokeStyle = this.colors.mark;
      g.strokeRect(x0 + 0.5, this.box.top + 0.5, x1 - x0, this.box.bottom - this.box.top);
      this.label(g, formatNs(this.box.to - this.box.from), (x0 + x1) / 2, this.box.top - 10);
    }
    if (this.selected) {
      const {lane, id} = this.selected;
      const x0 = this.xOf(lane.step.start[id]), x1 = this.xOf(lane.step.end(id));
      g.strokeStyle = this.colors.mark;
      g.lineWidth = 2;
      g.strokeRect(x0 - 1, lane.y, Math.max(x1 - x0, 2) + 1, ROW);
      g.lineWidth = 1;
    }
  }

  drawMark(g) {
    if (!this.marked) return;
    const x0 = this.xOf(this.marked.from), x1 = this.xOf(this.marked.to);
    g.fillStyle = this.colors.mark;
    g.globalAlpha = 0.1;
    g.fillRect(x0, 0, x1 - x0, this.height);
    g.globalAlpha = 1;
    g.fillRect(x0, 0, 1, this.height);
    g.fillRect(x1, 0, 1, this.height);
    this.label(g, formatNs(this.marked.to - this.marked.from), (x0 + x1) / 2, AXIS / 2);
  }

  label(g, text, x, y) {
    g.font = "600 11px system-ui, sans-serif";
    const width = g.measureText(text).width + 10;
    x = Math.min(Math.max(x - width / 2, 2), this.width - width - 2);
    y = Math.max(y, 9);
    g.fillStyle = this.colors.paper;
    g.fillRect(x, y - 8, width, 16);
    g.fillStyle = this.colors.mark;
    g.fillText(text, x + 5, y);
  }

  // From the selected operator to its backward node, or back.
  drawArrows(g) {
    const {lane, id} = this.selected;
    const step = lane.step;
    const {forward, backward} = step.partnersOf(id);
    if (!forward.length || !backward.length) return;
    g.strokeStyle = this.colors.mark;
    g.fillStyle = this.colors.mark;
    const from = forward[0];
    for (const to of backward) {
      const x0 = this.xOf(step.end(from)), y0 = this.laneOf(step, from).y + ROW / 2;
      const x1 = this.xOf(step.start[to]), y1 = this.laneOf(step, to).y + ROW / 2;
      const bend = Math.min(Math.max(Math.abs(x1 - x0) / 2, 30), 260);
      g.beginPath();
      g.moveTo(x0, y0);
      g.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
      g.stroke();
      g.beginPath();
      g.moveTo(x1, y1);
      g.lineTo(x1 - 7, y1 - 4);
      g.lineTo(x1 - 7, y1 + 4);
      g.fill();
    }
  }

  laneOf(step, id) {
    const thread = step.threads.findIndex((t) => id >= t.first && id < t.last);
    return step.threads[thread].lanes[step.depth[id]];
  }

  // Selecting

  hit(x, y) {
    const lane = this.lanes.find((l) => y >= l.y && y < l.y + ROW);
    if (!lane) return null;
    const {step, ids} = lane;
    const slack = ((this.view.to - this.view.from) / this.width) * 2;
    const time = this.timeOf(x);
    const i = step.firstAfter(lane, time);
    // The event under the mouse; else the nearest one, so that what is one pixel wide can be hit.
    const off = (id) => Math.max(step.start[id] - time, time - step.end(id), 0);
    const near = [ids[i], ids[i - 1]].filter((id) => id !== undefined && off(id) <= slack);
    return near.length ? {lane, id: near.sort((a, b) => off(a) - off(b))[0]} : null;
  }

  select(lane, id) {
    this.selected = {lane, id};
    this.box = null;
    this.showEvent();
    this.redraw();
  }

  selectId(step, id, fit) {
    this.select(this.laneOf(step, id), id);
    if (fit) this.fit(step.start[id], step.end(id));
    else this.reveal(step.start[id], step.end(id));
  }

  reveal(from, to) {
    const {target} = this;
    if (from >= target.from && to <= target.to) return;
    const span = Math.max(target.to - target.from, (to - from) * 1.2);
    this.show((from + to) / 2 - span / 2, (from + to) / 2 + span / 2);
  }

  clear() {
    this.selected = this.box = null;
    this.showNothing();
    this.redraw();
  }

  // Events of the rows that the box touches which start inside it, or are cut by its left edge.
  selectBox() {
    const chosen = new Map();
    for (const lane of this.lanes) {
      if (lane.y + ROW <= this.box.top || lane.y >= this.box.bottom) continue;
      const ids = chosen.get(lane.step) || [];
      for (let i = lane.step.firstAfter(lane, this.box.from); i < lane.ids.length; i++) {
        if (lane.step.start[lane.ids[i]] >= this.box.to) break;
        ids.push(lane.ids[i]);
      }
      chosen.set(lane.step, ids);
    }
    this.selected = null;
    this.showSums(chosen, `Range of ${formatNs(this.box.to - this.box.from)}`);
  }

  selectionSpan() {
    if (this.box) return [this.box.from, this.box.to];
    if (!this.selected) return null;
    const {lane, id} = this.selected;
    return [lane.step.start[id], lane.step.end(id)];
  }

  neighbour(by) {
    const {lane, id} = this.selected;
    const next = lane.ids[lane.ids.indexOf(id) + by];
    if (next !== undefined) this.selectId(lane.step, next, false);
  }

  outerOrInner(out) {
    const {lane, id} = this.selected;
    const {step} = lane;
    const next = out ? step.parent[id] : step.within([id])[1] ?? -1;
    if (next >= 0) this.selectId(step, next, false);
  }

  nextCall(by) {
    const calls = this.steps.flatMap((step) => step.calls.filter((c) => c.forward.length).map((call) => ({step, call})));
    if (!calls.length) return;
    this.call = ((this.call ?? (by > 0 ? -1 : 0)) + by + calls.length) % calls.length;
    const {step, call} = calls[this.call];
    this.selectId(step, call.forward[0], true);
    this.found.textContent = `call ${step.calls.indexOf(call) + 1} of ${step.calls.length}, ${step.title}`;
  }

  // Search

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = [];
    this.matched = this.steps.map(() => new Set());
    this.match = -1;
    if (!wanted) {
      this.found.textContent = "";
      return this.redraw();
    }
    const chosen = new Map();
    for (const step of this.steps) {
      const cache = new Map();
      const ids = [];
      for (let i = 0; i < step.count; i++) {
        const key = `${step.name[i]}|${step.stack[i]}|${step.shapes[i]}`;
        let hit = cache.get(key);
        if (hit === undefined) {
          hit = `${step.nameOf(i)} ${step.placeOf(i)} ${step.shapesOf(i)}`.toLowerCase().includes(wanted);
          cache.set(key, hit);
        }
        if (!hit) continue;
        ids.push(i);
        this.matches.push({step, id: i});
        this.matched[step.index].add(i);
      }
      chosen.set(step, ids);
    }
    this.found.textContent = this.matches.length ? `${formatCount(this.matches.length)} found` : "nothing found";
    this.selected = this.box = null;
    this.showSums(chosen, `Events that match “${text.trim()}”`);
    this.redraw();
  }

  nextMatch(by) {
    if (!this.matches.length) return;
    this.match = (this.match + by + this.matches.length) % this.matches.length;
    const {step, id} = this.matches[this.match];
    this.selectId(step, id, false);
    const span = Math.min(this.target.to - this.target.from, Math.max(step.dur[id] * 30, 1e5));
    const middle = step.start[id] + step.dur[id] / 2;
    this.show(middle - span / 2, middle + span / 2);
    this.found.textContent = `${formatCount(this.match + 1)} of ${formatCount(this.matches.length)}`;
  }

  // The panel below

  showNothing() {
    this.panel.replaceChildren(el("p", {class: "note"},
      "Click an operator, or drag over some, for name, wall, self, average and count. ",
      el("span", {class: "keys-hint"}, el("kbd", {}, "w"), el("kbd", {}, "a"), el("kbd", {}, "s"), el("kbd", {}, "d"),
        " move and zoom, ", el("kbd", {}, "?"), " lists all keys.")));
  }

  showEvent() {
    const {lane, id} = this.selected;
    const {step} = lane;
    const facts = [
      ["wall", formatNs(step.dur[id])], ["self", formatNs(step.self[id])],
      ["start", formatNs(step.start[id])], ["kind", KINDS[step.kind[id]]],
      ["thread", step.threads[lane.thread].name || `thread ${lane.thread + 1}`],
    ];
    if (step.shapes[id]) facts.push(["tensors", step.shapesOf(id)]);
    if (step.chain[id]) facts.push(["chain", step.title === "after" ? "runs in place of a replaced chain" : "part of a replaced chain"]);
    const frames = step.framesOf(id);
    const name = step.name[id];
    const rows = this.steps.map((s) => {
      const ids = [];
      const own = s === step ? name : s.strings.indexOf(step.nameOf(id));
      for (let i = 0; i < s.count; i++) if (s.name[i] === own) ids.push(i);
      const sum = sumByName([[s, ids]])[0] || {count: 0, wall: 0, self: 0};
      return [`all in ${sideTitle(s.title).toLowerCase()}`, num(sum.count ? formatNs(sum.wall) : "–"), num(sum.count ? formatNs(sum.self) : "–"),
        num(sum.count ? formatNs(sum.wall / sum.count) : "–"), num(formatCount(sum.count))];
    });
    rows.unshift(["this one", num(formatNs(step.dur[id])), num(formatNs(step.self[id])), num(formatNs(step.dur[id])), num("1")]);
    this.panel.replaceChildren(
      el("h4", {}, el("code", {}, step.nameOf(id)), el("span", {class: "note"}, ` ${sideTitle(step.title).toLowerCase()}`)),
      el("div", {class: "event"},
        el("dl", {class: "facts"}, facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))),
        table(["", num("wall"), num("self"), num("average"), num("count")], rows)),
      frames.length ? el("details", {open: frames.length < 4}, el("summary", {}, `called from ${baseName(frames[0].file)}:${frames[0].line}`),
        el("ol", {class: "stack"}, frames.map((f) => el("li", {}, el("code", {}, `${baseName(f.file)}:${f.line}`), ` ${f.name}`)))) : null);
  }

  showSums(chosen, title) {
    const rows = sumByName([...chosen]);
    const total = rows.reduce((t, r) => ({count: t.count + r.count, self: t.self + r.self}), {count: 0, self: 0});
    const sides = [...chosen].filter(([, ids]) => ids.length);
    const perSide = sides.length < 2 ? "" : ": " + sides.map(([step, ids]) => {
      const self = ids.reduce((sum, id) => sum + step.self[id], 0);
      return `${sideTitle(step.title).toLowerCase()} ${plural(ids.length, "event")}, self ${formatNs(self)}`;
    }).join("; ");
    this.panel.replaceChildren(
      el("h4", {}, title, el("span", {class: "note"}, perSide)),
      rows.length === 0 ? el("p", {class: "note"}, "No event.") :
        table(["name", num("wall"), num("self"), num("average"), num("count")], [
          ...rows.slice(0, 200).map((r) => [el("code", {class: r.marked ? "chain-name" : null}, r.name),
            num(formatNs(r.wall)), num(formatNs(r.self)), num(formatNs(r.wall / r.count)), num(formatCount(r.count))]),
          ["sum", num(""), num(formatNs(total.self)), num(""), num(formatCount(total.count))],
        ], {class: "sums"}));
  }

  toggleHelp(open = this.help.hidden) { this.help.hidden = !open; }

  setMode(mode) {
    this.mode = mode;
    this.modeButtons.forEach((b, i) => b.setAttribute("aria-pressed", String((i === 0) === (mode === "select"))));
    this.canvas.style.cursor = mode === "select" ? "default" : "grab";
  }

  // Input

  listen() {
    const {canvas} = this;
    canvas.addEventListener("pointerdown", (e) => this.pointerDown(e));
    canvas.addEventListener("pointermove", (e) => this.pointerMove(e));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (e) => this.pointerUp(e));
    canvas.addEventListener("pointerenter", () => (this.mouse.inside = true));
    canvas.addEventListener("pointerleave", () => (this.mouse.inside = false));
    canvas.addEventListener("wheel", (e) => this.wheel(e), {passive: false});
    canvas.addEventListener("dblclick", (e) => {
      const hit = this.hit(...this.place(e));
      if (hit) this.selectId(hit.lane.step, hit.id, true);
    });
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (e) => {
      if (e.key === "Enter") this.nextMatch(e.shiftKey ? -1 : 1);
      if (e.key === "Escape") {
        this.search.value = "";
        this.find("");
        this.canvas.focus();
      }
      e.stopPropagation();
    });
    window.addEventListener("keydown", (e) => this.key(e));
  }

  // Keys count while the timeline has the focus or the mouse is over it.
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const typing = e.target.closest && e.target.closest("input, textarea, select");
    const active = this.mouse.inside || document.activeElement === this.canvas;
    if (typing) return;
    if (e.key === "?") this.toggleHelp();
    else if (e.key === "Escape") {
      if (!this.help.hidden) this.toggleHelp(false);
      else if (active) this.clear();
      else return;
    } else if (!active || !this.command(e)) return;
    e.preventDefault();
  }

  command(e) {
    const x = this.mouse.inside && this.mouse.x !== null ? this.mouse.x : this.width / 2;
    const key = e.key.length === 1 ? e.key.toLowerCase() : e.key;
    const span = this.selectionSpan();
    const actions = {
      w: () => this.zoom(1.5, x),
      s: () => this.zoom(1 / 1.5, x),
      a: () => this.move(-0.2),
      d: () => this.move(0.2),
      f: () => (span ? this.fit(...span) : this.fitAll()),
      0: () => this.fitAll(),
      c: () => this.nextCall(e.shiftKey ? -1 : 1),
      m: () => {
        const same = this.marked && span && this.marked.from === span[0] && this.marked.to === span[1];
        this.marked = span && !same ? {from: span[0], to: span[1]} : null;
        this.redraw();
      },
      1: () => this.setMode("select"),
      2: () => this.setMode("move"),
      "/": () => this.search.focus(),
      ArrowLeft: () => (this.selected ? this.neighbour(-1) : this.move(-0.2)),
      ArrowRight: () => (this.selected ? this.neighbour(1) : this.move(0.2)),
      ArrowUp: this.selected && (() => this.outerOrInner(true)),
      ArrowDown: this.selected && (() => this.outerOrInner(false)),
    };
    const action = actions[key];
    if (!action) return false;
    action();
    return true;
  }

  place(e) {
    const box = this.canvas.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  }

  pointerDown(e) {
    if (e.button > 1) return;
    const [x, y] = this.place(e);
    this.canvas.focus({preventScroll: true});
    this.canvas.setPointerCapture(e.pointerId);
    this.pointers.set(e.pointerId, {x, y});
    const pan = e.pointerType === "touch" || this.mode === "move" || e.shiftKey || e.button === 1;
    this.drag = {x, y, time: this.timeOf(x), moved: false, pan, view: {...this.view}};
    if (this.pointers.size === 2) this.startPinch();
    if (e.button === 1) e.preventDefault();
  }

  startPinch() {
    const [a, b] = [...this.pointers.values()];
    this.drag = {pinch: true, moved: true, gap: Math.abs(a.x - b.x) || 1, time: this.timeOf((a.x + b.x) / 2),
      span: this.view.to - this.view.from};
  }

  pointerMove(e) {
    const [x, y] = this.place(e);
    this.mouse.x = x;
    this.mouse.inside = e.pointerType !== "touch";
    if (!this.pointers.has(e.pointerId)) {
      const hit = this.hit(x, y);
      this.canvas.title = hit ? `${hit.lane.step.nameOf(hit.id)}\n${formatNs(hit.lane.step.dur[hit.id])}` : "";
      return;
    }
    this.pointers.set(e.pointerId, {x, y});
    if (this.drag.pinch) return this.pinch();
    if (Math.abs(x - this.drag.x) + Math.abs(y - this.drag.y) > 4) this.drag.moved = true;
    if (!this.drag.moved) return;
    if (this.drag.pan) {
      const by = ((this.drag.x - x) / this.width) * (this.drag.view.to - this.drag.view.from);
      this.show(this.drag.view.from + by, this.drag.view.to + by, false);
    } else {
      const time = this.timeOf(Math.min(Math.max(x, 0), this.width));
      this.box = {from: Math.min(time, this.drag.time), to: Math.max(time, this.drag.time),
        top: Math.max(Math.min(y, this.drag.y), AXIS), bottom: Math.max(y, this.drag.y, AXIS + 1)};
      this.selected = null;
      this.redraw();
    }
  }

  pinch() {
    if (this.pointers.size < 2) return;
    const [a, b] = [...this.pointers.values()];
    const span = (this.drag.span * this.drag.gap) / (Math.abs(a.x - b.x) || 1);
    const from = this.drag.time - ((a.x + b.x) / 2 / this.width) * span;
    this.show(from, from + span, false);
  }

  pointerUp(e) {
    if (!this.pointers.delete(e.pointerId) || !this.drag) return;
    const [x, y] = this.place(e);
    const {drag} = this;
    if (this.pointers.size) return;
    this.drag = null;
    if (drag.pinch || e.type === "pointercancel") return;
    if (!drag.moved) {
      const hit = this.hit(x, y);
      if (hit) this.select(hit.lane, hit.id);
      else this.clear();
    } else if (!drag.pan) this.selectBox();
  }

  wheel(e) {
    const [x] = this.place(e);
    if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(-e.deltaY * (e.deltaMode ? 0.05 : 0.0025)), x);
    else if (e.shiftKey) this.move((e.deltaY || e.deltaX) / this.width);
    else if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) this.move(e.deltaX / this.width);
    else return;
    e.preventDefault();
  }
}

function hasAny(set, ids, first, next) {
  if (!set.size) return false;
  for (let i = first; i < next; i++) if (set.has(ids[i])) return true;
  return false;
}

// Widths of an 11 px sans serif are close to 6 px a letter.
function fitText(text, width) {
  const letters = Math.floor(width / 6);
  return text.length <= letters ? text : letters < 3 ? "" : text.slice(0, letters - 1) + "…";
}

function axisLabel(ns, unit) {
  const [scale, name] = unit >= 1e8 ? [1e9, "s"] : unit >= 1e5 ? [1e6, "ms"] : [1e3, "µs"];
  const digits = Math.max(0, Math.ceil(-Math.log10(unit / scale) - 1e-9));
  return `${(ns / scale).toFixed(digits)} ${name}`;
}

const sideTitle = (title) =>
  title === "before" ? "Original step" : title === "after" ? "Step with the replacement" : title === "recorded" ? "Recorded step" : title;
