// The recorded steps: decodes the columns, finds depth, parent and self time of every event.

const KINDS = ["operator", "autograd node", "function", "scope", "kernel", "other"];

// Unsigned LEB128 in base64 -> numbers.
function decodeColumn(base64, count) {
  const bytes = atob(base64);
  const out = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes.charCodeAt(at++);
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    out[i] = value;
  }
  return out;
}

// How many of the first i ids are.
function countTo(ids, is) {
  const counts = new Int32Array(ids.length + 1);
  for (let i = 0; i < ids.length; i++) counts[i + 1] = counts[i] + (is(ids[i]) ? 1 : 0);
  return counts;
}

class RecordedStep {
  constructor(packed, strings, index) {
    this.index = index;
    this.title = packed.title;
    this.count = packed.count;
    this.leftOut = packed.left_out;
    this.duration = packed.duration;
    this.calls = packed.calls;
    this.strings = strings;
    this.frames = packed.frames;
    this.stacks = packed.stacks;
    for (const name of ["name", "kind", "start", "dur", "stack", "shapes", "link", "chain"])
      this[name] = decodeColumn(packed[name], this.count);
    this.threads = packed.threads;
    this.nest();
    this.linkEvents();
  }

  // Starts are deltas within a thread; events come in order of start, parents first.
  nest() {
    this.parent = new Int32Array(this.count).fill(-1);
    this.depth = new Int32Array(this.count);
    this.self = Float64Array.from(this.dur);
    this.lanes = [];
    this.threads.forEach((thread, t) => {
      const end = t + 1 < this.threads.length ? this.threads[t + 1].first : this.count;
      const byDepth = [];
      const open = [];
      for (let i = thread.first; i < end; i++) {
        if (i > thread.first) this.start[i] += this.start[i - 1];
        while (open.length && this.end(open[open.length - 1]) <= this.start[i]) open.pop();
        const depth = open.length;
        this.depth[i] = depth;
        if (depth) {
          this.parent[i] = open[depth - 1];
          this.self[open[depth - 1]] -= this.dur[i];
        }
        (byDepth[depth] = byDepth[depth] || []).push(i);
        open.push(i);
      }
      thread.last = end;
      thread.lanes = byDepth.map((ids, depth) => this.makeLane(ids, t, depth));
      this.lanes.push(...thread.lanes);
    });
    for (let i = 0; i < this.count; i++) if (this.self[i] < 0) this.self[i] = 0;
  }

  // `marked[i]`: how many of the first i events belong to a chain; `found`: are found by the search.
  makeLane(ids, thread, depth) {
    const marked = countTo(ids, (id) => this.chain[id] > 0);
    return {step: this, thread, depth, ids: Int32Array.from(ids), marked, found: null};
  }

  // Autograd sequence number -> events that carry it.
  linkEvents() {
    this.byLink = new Map();
    for (let i = 0; i < this.count; i++) {
      if (!this.link[i]) continue;
      const list = this.byLink.get(this.link[i]);
      if (list) list.push(i);
      else this.byLink.set(this.link[i], [i]);
    }
  }

  end(i) { return this.start[i] + this.dur[i]; }
  nameOf(i) { return this.strings[this.name[i]]; }
  shapesOf(i) { return this.strings[this.shapes[i]]; }
  siteOf(i) { return this.chain[i] - 1; }

  // Innermost frame first.
  framesOf(i) {
    const list = [];
    for (let at = this.stack[i] - 1; at >= 0; at = this.stacks[at][1]) {
      const frame = this.frames[this.stacks[at][0]];
      if (frame) list.push({file: this.strings[frame[0]], line: frame[1], name: this.strings[frame[2]]});
    }
    return list;
  }

  placeOf(i) {
    const frame = this.framesOf(i)[0];
    return frame ? `${baseName(frame.file)}:${frame.line}` : "";
  }

  // Forward and backward events of the operator that `i` is part of.
  partnersOf(i) {
    for (let at = i; at >= 0; at = this.parent[at])
      if (this.link[at]) {
        const forward = [], backward = [];
        for (const id of this.byLink.get(this.link[at])) (this.kind[id] === 1 ? backward : forward).push(id);
        return {forward, backward};
      }
    return {forward: [], backward: []};
  }

  // `roots` and everything inside them, in order of start.
  within(roots) {
    const list = [];
    for (const root of roots)
      for (let i = root; i < this.count && (i === root || this.start[i] < this.end(root)); i++) {
        if (i > root && this.depth[i] <= this.depth[root]) break;
        list.push(i);
      }
    return list;
  }

  // First index of `lane` whose event ends after `time`.
  firstAfter(lane, time) {
    let low = 0, high = lane.ids.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end(lane.ids[middle]) <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // First index of `lane`, from `low` on, whose event starts at `time` or later: most often near.
  firstFrom(lane, time, low) {
    let high = low, step = 1;
    while (high < lane.ids.length && this.start[lane.ids[high]] < time) {
      low = high + 1;
      high += step;
      step *= 2;
    }
    high = Math.min(high, lane.ids.length);
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.start[lane.ids[middle]] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

// Sums by name: [{name, count, wall, self}], most self time first. Wall counts an event only when no
// event of the same name encloses it, so that nothing is counted twice.
function sumByName(selected) {
  const rows = new Map();
  for (const [step, ids] of selected) {
    const chosen = new Set(ids);
    for (const id of ids) {
      const key = step.name[id];
      let row = rows.get(key);
      if (!row) rows.set(key, (row = {name: step.nameOf(id), count: 0, wall: 0, self: 0, marked: 0}));
      row.count++;
      row.self += step.self[id];
      row.marked += step.chain[id] ? 1 : 0;
      let outer = step.parent[id];
      while (outer >= 0 && !(chosen.has(outer) && step.name[outer] === key)) outer = step.parent[outer];
      if (outer < 0) row.wall += step.dur[id];
    }
  }
  return [...rows.values()].sort((a, b) => b.self - a.self);
}

function readSteps(packed) {
  return packed.steps.map((step, i) => new RecordedStep(step, packed.strings, i));
}
