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

class Timeline extends TimelinePanel {
  constructor(host, steps) {
    super();
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

  build(host) {
    this.canvas = el("canvas", {
      class: "timeline-canvas", tabindex: "0", role: "application",
      "aria-label": "Timeline of the recorded steps. Keys: w and s zoom, a and d move, question mark lists all keys.",
    });
    this.filler = el("div", {"aria-hidden": "true"});
    this.stage = el("div", {class: "timeline-stage"}, this.canvas, this.filler);
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

  // Input

  listen() {
    const {canvas} = this;
    this.stage.addEventListener("scroll", () => this.redraw());
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
    return [e.clientX - box.left, e.clientY - box.top + this.top];
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
