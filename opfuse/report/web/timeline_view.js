// What of the timeline is seen: rows, the range of time, and when it is drawn.

const ROW = 18, HEAD = 24, THREAD_HEAD = 16, AXIS = 24, GAP = 10;
const MIN_SPAN_NS = 200;
const TALL = 1500;

class TimelineView {
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

  readColors() {
    const names = ["paper", "ink", "soft", "line", "old", "new", "mark", "find", "lane",
      "op-a", "op-b", "op-c", "node", "function", "scope", "on-old", "on-new", "on-op"];
    this.colors = Object.fromEntries(names.map((n) => [n, css(`--${n}`)]));
    this.redraw();
  }

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

  // More rows than TALL scroll inside the stage, under the axis: a canvas of any height is blank in
  // some browsers, and rows that are not seen are not drawn.
  resize() {
    const ratio = window.devicePixelRatio || 1;
    const tall = this.height > TALL;
    this.shown = tall ? Math.max(400, Math.round(window.innerHeight * 0.8)) : this.height;
    this.stage.classList.toggle("tall", tall);
    this.stage.style.height = tall ? `${this.shown}px` : "";
    this.filler.style.height = `${this.height - this.shown}px`;
    this.canvas.width = Math.max(1, Math.round(this.width * ratio));
    this.canvas.height = Math.round(this.shown * ratio);
    this.canvas.style.height = `${this.shown}px`;
    this.ratio = ratio;
    this.redraw();
  }

  // The first row of pixels that is seen.
  get top() { return this.shown < this.height ? this.stage.scrollTop : 0; }
}
