// The first screen, then the sections that the run has something for.

function readJson(id) { return JSON.parse(document.getElementById(id).textContent); }

const OUTCOME_BADGES = {
  tuned: ["good", "tuned"], plan_applied: ["good", "plan applied"], recorded: ["plain", "recorded"],
  dry_run: ["plain", "dry run"], nothing_found: ["plain", "nothing found"], not_faster: ["plain", "not faster"],
  refused: ["warn", "refused"], undecided: ["warn", "undecided"], failed: ["bad", "failed"],
  ended_early: ["warn", "ended early"], not_armed: ["warn", "not armed"], running: ["plain", "running"],
};

function firstScreen(report, steps) {
  const [tone, name] = OUTCOME_BADGES[report.outcome] || ["plain", report.outcome];
  return el("header", {class: "first"},
    el("p", {class: "brand"}, el("strong", {}, "opfuse"), ` ${report.run.verb} report`,
      report.run.script ? ` · ${baseName(report.run.script)}` : "",
      report.run.started_unix_s > 0 ? ` · ${new Date(report.run.started_unix_s * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC` : "",
      " ", el("span", {class: `badge ${tone}`}, name)),
    el("h1", {}, report.summary.replace(/(\d)x\b/g, "$1×")),
    el("div", {class: "two first-body"},
      el("div", {}, ratioBlock(report), commandBlock(report), conditions(report)),
      el("div", {}, evidence(report, steps), nextBlock(report))));
}

// What the verdict is about: everything that is kept, the one lever that is, or the operators.
function verdictSpeed(report) {
  const kept = report.levers.filter((l) => l.kept);
  if (report.together.choosing.pairs) return [report.together, "original ÷ everything that is kept"];
  if (kept.length && report.speed.outcome !== "tuned") return [kept[0].speed, `without ÷ with the lever ${kept[0].name}`];
  return [report.speed, "original ÷ replaced"];
}

function ratioBlock(report) {
  const [speed, sides] = verdictSpeed(report);
  const {choosing, headline_wall: wall} = speed;
  const best = wall.pairs > 0 ? wall : choosing;
  if (!best.pairs) return progressBlock(report);
  const batch = report.step.batch * Math.max(1, report.run.world_size);
  return el("div", {class: `ratio ${report.outcome}`},
    el("p", {class: "big"}, times(best.ratio)),
    el("div", {class: "ratio-side"},
      el("p", {class: "interval"}, `${best.low.toFixed(2)} to ${best.high.toFixed(2)}`, el("span", {}, " 95 % interval")),
      el("p", {class: "note"}, wall.pairs > 0 ? `step time, ${sides}, from ${plural(best.pairs, "fresh pair")} measured after the choice`
        : `step time, ${sides}, from ${plural(best.pairs, "pair")}`),
      beforeAfter("TIME", formatSeconds(speed.old_step_s), formatSeconds(speed.new_step_s)),
      batch > 0 && speed.old_step_s > 0 && speed.new_step_s > 0
        ? beforeAfter("images/s", formatRate(batch / speed.old_step_s), formatRate(batch / speed.new_step_s)) : null));
}

function beforeAfter(name, a, b) {
  return el("p", {class: "before-after"}, el("span", {class: "name"}, name),
    el("span", {class: "key old"}, a), el("span", {"aria-label": "to"}, "→"), el("span", {class: "key new"}, b));
}

// Without a ratio: what the run did get to know.
function progressBlock(report) {
  const {plain} = report.sides;
  const facts = [];
  if (plain.steps) facts.push([formatSeconds(plain.time_median_s), `TIME of a step, median of ${plain.steps}`]);
  if (plain.images_per_s > 0) facts.push([formatRate(plain.images_per_s), "images/s"]);
  if (report.step.operators > 0) facts.push([formatCount(report.step.operators), "operators a step"]);
  const calls = report.sites.reduce((sum, s) => sum + s.calls, 0);
  if (report.sites.length) facts.push([formatCount(calls), `calls of ${plural(report.sites.length, "chain")} found`]);
  if (!facts.length) return null;
  return el("dl", {class: "numbers"}, facts.map(([value, name]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

function commandBlock(report) {
  if (!report.run.command.length) return null;
  const set = report.run.environment.map((v) => `${v.name}=${v.value}`).join(" ");
  const command = `${set ? `${set} ` : ""}opfuse ${report.run.verb} -- ${shellQuoted(report.run.command)}`;
  return el("div", {class: "command"},
    el("pre", {tabindex: "0", "aria-label": "Command"}, el("code", {}, command)), copyButton(command, "Copy the command"));
}

function conditions(report) {
  const {run, step, machine, versions} = report;
  const workers = Math.max(1, run.processes - run.launchers);
  const facts = [
    ["model", [step.root, step.batch > 0 ? `batch ${formatCount(step.batch)}` : step.root && "batch unknown",
      step.boundary_name ? `step = ${step.boundary_name}` : step.boundary_kind === "root" ? "step = forward" : "",
      step.operators > 0 ? plural(step.operators, "operator") : ""]],
    ["processes", [workers > 1 ? plural(workers, "process") : "1 process", run.threads > 0 ? plural(run.threads, "thread") : "",
      run.seconds > 0 ? `ran ${formatDuration(run.seconds)}` : "", run.exit_status !== null ? `status ${run.exit_status}` : ""]],
    ["machine", [machine.cpu, machine.cores > 0 ? plural(machine.cores, "core") : "", machine.isa, machine.memory_bytes > 0 ? formatBytes(machine.memory_bytes) : ""]],
    ["versions", [versions.torch && `torch ${versions.torch}`, versions.python && `Python ${versions.python}`, versions.opfuse && `opfuse ${versions.opfuse}`]],
    ["peak memory", [report.costs.memory_peak_mb > 0 ? formatBytes(report.costs.memory_peak_mb * 2 ** 20) : ""]],
  ].map(([k, v]) => [k, v.filter(Boolean).join(", ")]).filter(([, v]) => v);
  return el("dl", {class: "facts conditions"}, facts.map(([k, v]) => el("div", {}, el("dt", {}, k), el("dd", {}, v))));
}

// The diff, or what stands in its place when there is none.
function evidence(report, steps) {
  if (report.diffs.length) return report.diffs.map(diffBlock);
  if (["failed", "ended_early", "not_armed", "running"].includes(report.outcome)) return progressList(report);
  const refused = report.sites.filter((s) => s.refusal);
  if (refused.length) return reasonList("Why nothing was changed", refused.map((s) => [placeText(s), s.refusal.reason]));
  if (report.sites.length) return reasonList("What was tried", report.sites.map((s) => [placeText(s), triedText(report, s)]));
  if (report.outcome === "nothing_found" && report.near_misses.length)
    return reasonList("What came near", report.near_misses.slice(0, 4).map((m) => [m.file ? placeText(m) : m.rule, m.reason]));
  return steps.length ? busiest(steps[0]) : null;
}

const placeText = (what) => `${baseName(what.file)}:${what.line}`;

function triedText(report, site) {
  const proof = report.verdict.sites.find((v) => v.site === site.id);
  const state = site.kept === null ? "not measured" : site.kept ? "kept" : "not kept: the interval does not lie above 1";
  return [el("code", {}, site.now), " → ", el("code", {}, site.becomes),
    `, ${plural(site.calls, "call")} a step, ${proof ? (proof.accepted ? `proved (${site.equivalence})` : "refused by the proof") : "not proved"}, ${state}`];
}

// How far a run came that ended without a verdict.
function progressList(report) {
  if (!report.events.length) return null;
  return el("div", {class: "card"}, el("h2", {class: "small"}, "How far it came"),
    el("ol", {class: "plain"}, report.events.slice(-5).map((e) => el("li", {}, el("span", {class: "note"}, `step ${e.step}: `), e.text))));
}

function reasonList(title, reasons) {
  return el("div", {class: "card"}, el("h2", {class: "small"}, title),
    el("dl", {class: "reasons"}, reasons.map(([place, reason]) => el("div", {}, el("dt", {}, el("code", {}, place)), el("dd", {}, reason)))));
}

function busiest(step) {
  const all = Array.from({length: step.count}, (_, i) => i).filter((i) => KINDS[step.kind[i]] === "operator");
  const rows = sumByName([[step, all]]).slice(0, 6);
  return el("div", {class: "card"}, el("h2", {class: "small"}, "Where the step’s time goes"),
    table(["operator", num("self"), num("count")], rows.map((r) => [el("code", {}, shortOp(r.name)), num(formatNs(r.self)), num(formatCount(r.count))])));
}

function diffBlock(diff) {
  const lines = diff.diff.replace(/\n$/, "").split("\n");
  const kind = (line) => line.startsWith("+++") || line.startsWith("---") ? "file" : line.startsWith("@@") ? "hunk"
    : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "same";
  const note = !diff.verified ? "for a device that is not here: not verified on this machine"
    : diff.package ? `in the installed package ${diff.package}: edited in memory only` : "the code that was measured";
  return el("div", {class: "diff"},
    el("div", {class: "diff-head"}, el("code", {title: diff.file}, baseName(diff.file)), el("span", {class: diff.verified ? "note" : "note warn"}, note),
      copyButton(diff.diff, `Copy the diff of ${baseName(diff.file)}`)),
    el("pre", {tabindex: "0", "aria-label": `Diff of ${baseName(diff.file)}`},
      lines.map((line) => el("span", {class: `line ${kind(line)}`}, `${line}\n`))));
}

function nextBlock(report) {
  return [
    report.trouble.length ? el("div", {class: "card trouble"}, el("h2", {class: "small"}, "Trouble"),
      el("ul", {}, report.trouble.slice(0, 6).map((t) => el("li", {}, t))),
      report.trouble.length > 6 ? el("p", {class: "note"}, `and ${report.trouble.length - 6} more in report.json`) : null) : null,
    report.next_steps.length ? el("div", {class: "card next"}, el("h2", {class: "small"}, "What to do next"),
      el("ol", {}, report.next_steps.map((s) => el("li", {}, withCode(s))))) : null,
  ];
}

function main() {
  const report = readJson("report-data");
  const steps = readSteps(readJson("timeline-data"));
  const timeline = timelineSection(steps);
  const sections = [timesSection(report), searchSection(report), leversSection(report), versusSection(report), adviceSection(report), changesSection(report, steps), callSection(report, steps), proofSection(report),
    timeline && timeline.node, leftSection(report), logSection(report)].filter(Boolean);
  const links = sections.map((s) => el("a", {href: `#${s.id}`}, s.querySelector("h2").textContent));
  document.getElementById("main").append(firstScreen(report, steps),
    links.length ? el("nav", {"aria-label": "Sections"}, links) : "", ...sections,
    el("footer", {}, `Made by opfuse ${report.versions.opfuse}. Every number was measured in this run. This page loads nothing from anywhere.`));
  if (timeline) window.opfuseTimeline = timeline.start();
}

main();
