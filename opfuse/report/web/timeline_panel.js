// The panel below the canvas: the chosen event, or sums of what was chosen.

class TimelinePanel extends TimelineSelection {
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
}
