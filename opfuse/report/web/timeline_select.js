// Events and ranges that are chosen, by mouse, key or search.

class TimelineSelection extends TimelineDrawing {
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
      for (const lane of step.lanes) lane.found = countTo(lane.ids, (id) => this.matched[step.index].has(id));
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
}
