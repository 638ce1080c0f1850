// The canvas. Nothing is drawn per event below one pixel.

class TimelineDrawing extends TimelineView {
  draw() {
    const g = this.draw2d;
    if (!this.colors) return;
    g.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    g.fillStyle = this.colors.paper;
    g.fillRect(0, 0, this.width, this.height);
    g.textBaseline = "middle";
    this.drawGrid(g, (x) => {
      g.beginPath();
      g.moveTo(x, AXIS - 6);
      g.lineTo(x, this.shown);
      g.stroke();
    });
    this.marks = 0;
    g.translate(0, -this.top);
    const seen = (row, height) => row.y + height > this.top && row.y < this.top + this.shown;
    for (const head of this.heads) if (seen(head, head.height)) this.drawHead(g, head);
    g.font = "11px system-ui, sans-serif";
    for (const lane of this.lanes) if (seen(lane, ROW)) this.drawLane(g, lane);
    this.drawMark(g);
    this.drawSelection(g);
    if (this.selected) this.drawArrows(g);
    g.translate(0, this.top);
    g.font = "11px system-ui, sans-serif";
    if (this.top > 0) {
      g.fillStyle = this.colors.paper;
      g.fillRect(0, 0, this.width, AXIS - 6);
    }
    this.drawGrid(g, (x, time, unit) => {
      const label = axisLabel(time, unit);
      g.fillStyle = this.colors.soft;
      if (x + 8 + 7 * label.length < this.width) g.fillText(label, x + 4, AXIS / 2);
    });
  }

  // Round times, at least 110 pixels apart.
  drawGrid(g, draw) {
    const span = this.view.to - this.view.from;
    const rough = (span / this.width) * 110;
    const power = 10 ** Math.floor(Math.log10(rough));
    const unit = [1, 2, 5, 10].find((k) => k * power >= rough) * power;
    g.strokeStyle = this.colors.line;
    for (let i = Math.ceil(this.view.from / unit); i * unit <= this.view.to; i++)
      draw(Math.round(this.xOf(i * unit)) + 0.5, i * unit, unit);
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
    this.run = null;
    while (i < lane.ids.length) {
      const id = lane.ids[i];
      const start = step.start[id];
      if (start > this.view.to) break;
      if (step.dur[id] >= perPixel) {
        this.endRun(g, lane);
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
    this.endRun(g, lane);
  }

  drawMerged(g, lane, first, next) {
    const {step} = lane;
    const ids = lane.ids;
    const x = this.xOf(step.start[ids[first]]);
    const end = Math.max(this.xOf(step.end(ids[next - 1])), x + 1);
    const marked = lane.marked[next] > lane.marked[first];
    const found = this.matches.length && lane.found[next] > lane.found[first];
    const color = found ? this.colors.find : marked ? this.sideColor(step)
      : next === first + 1 ? this.eventColor(step, ids[first]) : this.colors["op-b"];
    // Marks of one colour that touch are one.
    if (this.run && this.run.color === color && x <= this.run.end + 0.5) {
      this.run.end = Math.max(this.run.end, end);
      return;
    }
    this.endRun(g, lane);
    this.run = {color, x, end, strong: marked || found};
  }

  endRun(g, lane) {
    if (!this.run) return;
    const {color, x, end, strong} = this.run;
    g.fillStyle = color;
    g.globalAlpha = strong ? 1 : 0.75;
    g.fillRect(x, lane.y + 1, end - x, ROW - 2);
    g.globalAlpha = 1;
    this.marks++;
    this.run = null;
  }

  drawEvent(g, lane, id) {
    const {step} = lane;
    const x0 = Math.max(this.xOf(step.start[id]), -2);
    const x1 = Math.min(this.xOf(step.end(id)), this.width + 2);
    const width = Math.max(x1 - x0 - (x1 - x0 > 4 ? 1 : 0), 1);
    const marked = step.chain[id] > 0;
    const found = this.matched[step.index].has(id);
    this.marks++;
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
}

// Widths of an 11 px sans serif are close to 6 px a letter.
function fitText(text, width) {
  const letters = Math.floor(width / 6);
  return text.length <= letters ? text : letters < 3 ? "" : text.slice(0, letters - 1) + "…";
}

function axisLabel(ns, unit) {
  const [scale, name] = unit >= 1e8 ? [1e9, "s"] : unit >= 1e5 ? [1e6, "ms"] : [1e3, "µs"];
  const digits = Math.max(0, Math.ceil(-Math.log10(unit / scale) - 1e-9));
  const [whole, part] = (ns / scale).toFixed(digits).split(".");
  return `${whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",")}${part ? `.${part}` : ""} ${name}`;
}

const sideTitle = (title) =>
  title === "before" ? "Original step" : title === "after" ? "Step with the replacement" : title === "recorded" ? "Recorded step" : title;
