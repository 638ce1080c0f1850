// What stands below the first screen. Each function returns its section, or null when the run has
// nothing for it; the first screen has said why then.

function section(id, title, lead, ...content) {
  return el("section", {id, "aria-labelledby": `${id}-title`},
    el("h2", {id: `${id}-title`}, title), lead ? el("p", {class: "lead"}, lead) : null, ...content);
}

function legend() {
  return el("p", {class: "legend"},
    el("span", {class: "key old"}, "original"), el("span", {class: "key new"}, "replaced"),
    el("span", {class: "key other"}, "other steps"));
}

// Step times

function timesSection(report) {
  if (report.steps.length < 2) return null;
  const {old, new: replaced, plain} = report.sides;
  const compared = old.steps && replaced.steps;
  const rows = compared ? timesRows(old, replaced) : plainRows(plain);
  const intervals = ratioRows(report);
  const cost = report.costs.total_in_plain_steps > 0
    ? `Recording and proof took ${report.costs.total_in_plain_steps.toFixed(1)} plain steps’ time in all.` : "";
  return section("times", "Step times",
    compared ? "Original and replaced steps took turns in random order, so that whatever slows the machine down falls on both."
      : "TIME of each step, in order. The two sides were never compared.",
    el("div", {class: "two wide-left"},
      el("figure", {}, stepChart(report), legend()),
      intervals.length ? el("figure", {}, ratioChart(intervals),
        el("figcaption", {}, "Ratio of TIME, original to replaced, with its 95 % interval: right of 1 is faster."))
        : rows.length && !compared ? table(["", num("")], rows) : null),
    compared ? table(["", num("original"), num("replaced"), num("ratio")], rows, {class: "narrow"}) : null,
    el("p", {class: "note"}, "TIME is a step without DATA, the time between steps. ",
      old.images_per_s || plain.images_per_s ? `images/s is batch${report.run.world_size > 1 ? " × processes" : ""} over the median TIME. ` : "",
      cost));
}

function timesRows(old, replaced) {
  const row = (name, key, format, invert) => [name, num(format(old[key])), num(format(replaced[key])),
    num(old[key] > 0 && replaced[key] > 0 ? times(invert ? replaced[key] / old[key] : old[key] / replaced[key]) : "–")];
  const rows = [
    row("TIME, median", "time_median_s", formatSeconds),
    row("TIME, mean", "time_mean_s", formatSeconds),
    [...row("DATA, mean", "data_mean_s", formatSeconds).slice(0, 3), num("")],
  ];
  if (old.images_per_s > 0 && replaced.images_per_s > 0) rows.push(row("images/s", "images_per_s", formatRate, true));
  rows.push(["steps counted", num(formatCount(old.steps)), num(formatCount(replaced.steps)), num("")]);
  return rows;
}

function plainRows(plain) {
  if (!plain.steps) return [];
  return [
    ["TIME, median", num(formatSeconds(plain.time_median_s))],
    ["TIME, mean", num(formatSeconds(plain.time_mean_s))],
    ["DATA, mean", num(formatSeconds(plain.data_mean_s))],
    ...(plain.images_per_s > 0 ? [["images/s", num(formatRate(plain.images_per_s))]] : []),
    ["steps", num(formatCount(plain.steps))],
  ];
}

function ratioRows(report) {
  const {choosing, headline_wall: wall, headline_cpu: cpu} = report.speed;
  const row = (name, i, strong) => i.pairs > 0 && {name: `${name}: ${times(i.ratio)} [${i.low.toFixed(2)}, ${i.high.toFixed(2)}], ${plural(i.pairs, "pair")}`, ...i, strong};
  return [
    row("headline, fresh pairs", wall, true),
    row("pairs that chose", choosing, wall.pairs === 0),
    row("CPU time, fresh pairs", cpu, false),
  ].filter(Boolean);
}

// What was tried by itself: kinds of replacement, levers

function triedCells(name, speed, note) {
  const i = speed.headline_wall.pairs > 0 ? speed.headline_wall : speed.choosing;
  return [name, num(i.pairs ? formatSeconds(speed.old_step_s) : "–"), num(i.pairs ? formatSeconds(speed.new_step_s) : "–"),
    num(i.pairs ? `${times(i.ratio)} [${i.low.toFixed(2)}, ${i.high.toFixed(2)}]` : "–"), note];
}

function triedRows(list) {
  return list.map((l) => triedCells(`${l.name}${l.what ? `: ${l.what}` : ""}`, l.speed, l.kept ? "kept" : l.reason));
}

function searchSection(report) {
  if (!report.search.length) return null;
  return section("search", "Each kind by itself", "Each kind of replacement against the code as it was by then, taking turns. What did not pay by itself was left out.",
    table(["replacement", num("without"), num("with"), num("ratio"), ""], triedRows(report.search)));
}

function leversSection(report) {
  if (!report.levers.length) return null;
  const rows = triedRows(report.levers);
  if (report.together.choosing.pairs > 0) rows.push(triedCells("everything that is kept, against the original code", report.together, ""));
  const lines = report.levers.filter((l) => l.kept).flatMap((l) => [`# ${l.where || "at the top of the script"}`, ...l.lines]);
  return section("levers", "Beside operators", "Tried after the operators were decided, off and on taking turns. Memory changes no bit; the others were proved first and may differ in rounding.",
    table(["lever", num("off"), num("on"), num("ratio"), ""], rows),
    lines.length ? el("figure", {}, el("figcaption", {}, "To keep what won"), el("pre", {}, lines.join("\n"))) : null);
}

// What would have to change where nothing is legal

function adviceSection(report) {
  if (!report.advice?.length) return null;
  const rows = report.advice.map((a) => [a.text, num(`at most ${times(a.at_most)}`)]);
  return section("advice", "What else would help", "Predicted from the recorded step, not measured: the most it could gain if what is named cost nothing.",
    table(["what", num("predicted")], rows));
}

// torch.compile, measured on request

function versusSection(report) {
  if (!report.versus?.name) return null;
  return section("versus", "Against torch.compile", "The same command once more: the original and the compiled model taking turns.",
    el("p", {}, report.versus.sentence));
}

// What changed

function changesSection(report, steps) {
  const sites = report.sites.filter((s) => !s.refusal);
  if (!sites.length) return null;
  const ran = sites.some((s) => s.kept !== null) || report.outcome === "plan_applied";
  return section("changes", ran ? "What replaced what" : "What could be replaced", null, sites.map((site) => siteBlock(report, site, steps)));
}

function siteBlock(report, site, steps) {
  const facts = [
    ["calls a step", formatCount(site.calls)],
    ["equivalence", EQUIVALENCE[site.equivalence] ? `${EQUIVALENCE[site.equivalence]} (${site.equivalence})` : site.equivalence],
    ["domain", site.domain ? `${site.domain}; the operator raises for anything else` : "every input that the chain takes"],
    ["time of the chain in the recorded step", `${site.forward_ms.toFixed(1)} ms forward, ${site.backward_ms.toFixed(1)} ms backward`],
    ["kept", site.kept === null ? "not measured" : site.kept ? "yes" : "no, the original runs on"],
  ];
  return el("article", {class: "site"},
    el("h3", {}, el("code", {}, site.now), " → ", el("code", {}, site.becomes)),
    el("div", {class: "two"},
      el("div", {}, sourceLines(site), chainSource(site)),
      el("div", {}, chainPictures(site, steps),
        el("dl", {class: "facts"}, facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))),
        shapesList(site))));
}

const EQUIVALENCE = {
  E0: "bit-identical", E1: "same formula, other or fewer roundings", E2: "explicit casts at other places",
  E3: "a different function, allowed by hand", E4: "random",
};

function sourceBlock(file, first, lines, marked, caption) {
  if (!first || !lines.length) return null;
  return el("figure", {class: "source"},
    el("figcaption", {}, el("code", {title: file}, `${baseName(file)}:${marked}`), ` ${caption}`),
    el("pre", {}, lines.map((line, i) => el("span", {class: first + i === marked ? "line hit" : "line"},
      el("span", {class: "number", "aria-hidden": "true"}, String(first + i)), `${line}\n`))));
}

const sourceLines = (site) => sourceBlock(site.file, site.source_first_line, site.source, site.line, "where the edit stands");
const chainSource = (site) => sourceBlock(site.chain_file, site.chain_source_first_line, site.chain_source, site.chain_line, "where the chain stands");

// From the record when there is one: it also knows the backward pass and the times.
function chainPictures(site, steps) {
  const lane = (title, passes, side, from, to) => passes.length
    ? el("div", {class: "lane"}, el("h5", {}, `${title}, ${plural(passes.length, "pass")} over memory`), chainPicture(passes, side, from, to)) : null;
  const recorded = (step) => {
    const call = step && largestCall(step, site.id);
    return call ? {forward: passesOf(step, call.forward), backward: call.backward.length ? passesOf(step, call.backward) : []} : null;
  };
  const before = recorded(steps.find((s) => s.title !== "after")) || {
    forward: site.operators.map((o) => ({name: shortOp(o.op)})),
    backward: site.backward_operators.map((o) => ({name: shortOp(o.op)})),
  };
  const after = recorded(steps.find((s) => s.title === "after")) || {forward: [{name: shortOp(site.target)}], backward: []};
  return el("figure", {class: "chains"},
    lane("before: forward", before.forward, "old", "x", "y"), lane("before: backward", before.backward, "old", "dy", "dx"),
    lane("after: forward", after.forward, "new", "x", "y"), lane("after: backward", after.backward, "new", "dy", "dx"));
}

function largestCall(step, site) {
  const calls = step.calls.filter((c) => c.site === site && c.forward.length);
  return calls.reduce((best, c) => (!best || spanOf(step, c.forward) > spanOf(step, best.forward) ? c : best), null);
}

function shapesList(site) {
  const shapes = Object.entries(site.shapes);
  if (!shapes.length) return null;
  return el("details", {}, el("summary", {}, `${plural(shapes.length, "input shape")}`),
    table(["shape", num("calls")], shapes.map(([shape, calls]) => [el("code", {}, shape), num(formatCount(calls))])));
}

// One call before and after

function callSection(report, steps) {
  const [before, after] = [steps.find((s) => s.title === "before"), steps.find((s) => s.title === "after")];
  if (!before || !after) return null;
  const sites = report.sites.filter((s) => !s.refusal && largestCall(before, s.id) && largestCall(after, s.id));
  if (!sites.length) return null;
  const site = sites[0];
  const pairs = pairCalls(before, after, site.id);
  const body = el("div", {class: "call-body"});
  const position = el("span", {class: "call-position", role: "status"});
  let index = pairs.findIndex((p) => p.before === largestCall(before, site.id));
  if (index < 0) index = 0;
  const show = (by) => {
    index = (index + by + pairs.length) % pairs.length;
    position.textContent = `call ${index + 1} of ${pairs.length}`;
    body.replaceChildren(...callRows(before, after, pairs[index]));
  };
  show(0);
  return section("call", "The same call, before and after",
    "One execution of the chain in the two recorded steps, on one time scale. Single events are noisy; the ratio above is the measurement.",
    el("p", {class: "call-choice"},
      el("button", {type: "button", "aria-label": "Previous call", onclick: () => show(-1)}, "‹"), position,
      el("button", {type: "button", "aria-label": "Next call", onclick: () => show(1)}, "›")),
    body);
}

// The n-th call of the one step is the n-th of the other.
function pairCalls(before, after, site) {
  const of = (step) => step.calls.filter((c) => c.site === site && c.forward.length);
  const [a, b] = [of(before), of(after)];
  return a.slice(0, b.length).map((call, i) => ({before: call, after: b[i]}));
}

function callRows(before, after, pair) {
  const rows = [];
  for (const part of ["forward", "backward"]) {
    const [a, b] = [pair.before[part], pair.after[part]];
    if (!a.length || !b.length) continue;
    const longest = Math.max(spanOf(before, a), spanOf(after, b));
    rows.push(el("h3", {}, part === "forward" ? "Forward" : "Backward", el("span", {class: "note"}, ` ${before.shapesOf(firstWithShapes(before, a))}`)));
    for (const [step, roots, side, name] of [[before, a, "old", "original"], [after, b, "new", "replaced"]])
      rows.push(el("div", {class: "call-row"},
        el("div", {class: "call-name"}, el("span", {class: `key ${side}`}, name), el("strong", {}, formatNs(spanOf(step, roots)))),
        callPicture(step, roots, longest, side)));
  }
  return rows;
}

const firstWithShapes = (step, roots) => step.within(roots).find((i) => step.shapes[i]) ?? roots[0];

// Same function

function proofSection(report) {
  const {sites, step, validation} = report.verdict;
  if (!sites.length && !step.values_checked && !validation.attempts) return null;
  return section("proof", "The same function, as accurate",
    "Both codes were run in double precision on the captured inputs and on generated ones (both signs, zeros, infinities, NaN, denormals, the largest numbers). Errors are distances to that double-precision truth.",
    sites.map((s) => siteProof(report, s)), wholeStep(step, validation));
}

function siteProof(report, verdict) {
  const site = report.sites.find((s) => s.id === verdict.site);
  const row = (set) => (e) => [set, e.what, num(formatError(e.error_old)), num(formatError(e.error_new)),
    num(e.error_old > 0 ? `${(e.error_new / e.error_old).toFixed(2)}×` : "–"), num(formatError(e.same_function)),
    num(formatCount(e.nonfinite_differences) + (e.mended ? `, ${formatCount(e.mended)} mended` : "")), num(formatCount(e.elements))];
  const rows = [...verdict.captured.map(row("captured")), ...verdict.generated.map(row("generated"))];
  return el("article", {},
    el("h3", {}, site ? el("code", {}, `${baseName(site.file)}:${site.line}`) : `site ${verdict.site}`, " ",
      el("span", {class: verdict.accepted ? "badge good" : "badge bad"}, verdict.accepted ? "proved" : "refused")),
    verdict.reason ? el("p", {}, verdict.reason) : null,
    rows.length ? table(["inputs", "result", num("largest error, original"), num("replaced"), num("ratio"),
      num("formula differs by"), num("NaN or ∞ differ"), num("elements")], rows) : null,
    el("p", {class: "note"}, `${plural(verdict.captured_calls, "captured call")}, ${plural(verdict.generated_cases, "generated case")}. `,
      verdict.input_set ? `Worst on ${verdict.input_set}. ` : "",
      "“Formula differs by” is |T − R| / S in double precision and must stay below 2⁻⁴⁰ = 9.1e-13."));
}

function wholeStep(step, validation) {
  const items = [];
  if (step.values_checked > 0)
    items.push(["replay of the recorded step", step.replayed_exactly
      ? `exact: all ${formatCount(step.values_checked)} values, gradients, buffers and the loss agree bit for bit`
      : `${formatCount(step.values_wrong)} of ${formatCount(step.values_checked)} values differ, first ${step.first_wrong || "unknown"}`]);
  if (step.fp64_floors > 0 || step.run_floors > 0)
    items.push(["rewritten step against the original", `${step.fp64_floors.toFixed(1)} noise floors in double precision, ${step.run_floors.toFixed(1)} in the run’s precision (at most 8)${step.worst_tensor ? `; worst ${step.worst_tensor}` : ""}`]);
  if (step.gradient_error_old > 0)
    items.push(["total gradient error to double precision", `${formatError(step.gradient_error_old)} original, ${formatError(step.gradient_error_new)} replaced`]);
  if (validation.attempts > 0)
    items.push(["first switched step", validation.accepted
      ? `became what was planned: ${plural(validation.sites_replaced, "forward chain")} and ${formatCount(validation.backward_replaced)} backward ones replaced, ${formatCount(validation.operators_equal)} other operators equal`
      : `refused: ${validation.reason}`]);
  if (step.cut_points.length) items.push(["nothing is claimed across", step.cut_points.join(", ")]);
  if (!step.accepted && step.reason) items.push(["whole step refused", step.reason]);
  if (!items.length) return null;
  return el("article", {}, el("h3", {}, "The whole step"),
    el("dl", {class: "facts wide"}, items.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v)))));
}

// Left alone

function leftSection(report) {
  const refused = report.sites.filter((s) => s.refusal);
  if (!refused.length && !report.near_misses.length) return null;
  const place = (file, line) => (file ? el("code", {title: file}, `${baseName(file)}:${line}`) : "–");
  const rows = [
    ...refused.map((s) => [el("code", {}, s.now || s.rule), place(s.file, s.line), num(formatCount(s.calls)), "refused",
      [s.refusal.reason, s.refusal.node ? el("code", {class: "node"}, s.refusal.node) : null].flat().filter(Boolean)]),
    ...report.near_misses.map((m) => [el("code", {}, m.rule), place(m.file, m.line), num(formatCount(m.calls)), "almost", [m.reason]]),
  ];
  const body = rows.map((cells) => el("tr", {}, cells.map((c) =>
    el("td", {class: c && c.right !== undefined ? "num" : null}, Array.isArray(c) ? c : c && c.right !== undefined ? c.right : c))));
  return section("left", "Found and left alone", null,
    el("div", {class: "scroll"}, el("table", {},
      el("thead", {}, el("tr", {}, ["chain", "place", "calls", "", "reason"].map((h) => el("th", {scope: "col", class: h === "calls" ? "num" : null}, h)))),
      el("tbody", {}, body))));
}

// Timeline and log

function timelineSection(steps) {
  if (!steps.length || !steps.some((s) => s.count)) return null;
  const host = el("div", {class: "timeline"});
  const marked = steps.some((s) => s.calls.length);
  const node = section("timeline", steps.length > 1 ? "Both steps on one time axis" : "The recorded step",
    marked ? "Coloured: the chain in the original step (orange) and the operator that replaced it (blue). Rows are nested calls of one thread." : "Rows are nested calls of one thread.", host);
  return {node, start: () => new Timeline(host, steps)};
}

function logSection(report) {
  const parts = [];
  if (report.processes.length > 1)
    parts.push(el("h3", {}, "Processes"), table(["process", "outcome", num("steps"), num("TIME, median"), ""],
      report.processes.map((p) => [p.rank === null ? `pid ${p.pid}` : `rank ${p.rank} (pid ${p.pid})`, p.outcome.replaceAll("_", " "),
        num(formatCount(p.steps)), num(p.time_median_s > 0 ? formatSeconds(p.time_median_s) : "–"), p.main ? "this report" : p.reason])));
  if (report.events.length)
    parts.push(el("details", {open: report.events.length < 12}, el("summary", {}, "What happened when"),
      table([num("time"), num("step"), ""], report.events.map((e) => [num(formatDuration(e.t)), num(formatCount(e.step)), e.text]), {class: "log"})));
  const costs = Object.entries({record_s: "record", values_s: "record values", find_s: "find chains", facts_s: "read the source",
    prove_s: "prove", validate_s: "validate"}).filter(([key]) => report.costs[key] > 0);
  if (costs.length)
    parts.push(el("details", {}, el("summary", {}, "What it cost"), table(["", num("seconds")], [
      ...costs.map(([key, name]) => [name, num(formatSeconds(report.costs[key]))]),
      ["in plain steps, all in", num(report.costs.total_in_plain_steps.toFixed(1))],
    ], {class: "narrow"})));
  const lost = Object.entries(report.losses);
  if (lost.length)
    parts.push(el("h3", {}, "Lost while recording"), el("ul", {}, lost.map(([name, n]) => el("li", {}, `${formatCount(n)} × ${name}`))));
  return parts.length ? section("log", "The run", null, parts) : null;
}
