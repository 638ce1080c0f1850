// The page of `opfuse view` and `opfuse analyze --html`: what was found in each trace, how far ranks
// differ, and the timelines.

const readJson = (id) => JSON.parse(document.getElementById(id).textContent);
const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : "–");
const range = (r, format) => `${format(r.mid)} [${format(r.low)}, ${format(r.high)}]`;
const place = (f) => [f.module, f.source].filter(Boolean).join("  ") || "place not in the file";

// A range in two lines: the middle, and below it from the lowest to the highest.
const rangeCell = (r, format) => num(el("div", {}, format(r.mid), el("div", {class: "note"}, `${format(r.low)} – ${format(r.high)}`)));

function findingRow(report, f) {
  const gain = report.step && f.predicted_step_gain_ns;
  const share = (ns) => percent(Math.max(0, ns), report.step.recorded_ns);
  return [el("div", {}, el("strong", {}, f.rule), el("div", {class: "note"}, el("code", {}, f.shapes))),
    el("div", {}, place(f), f.backward ? " (backward)" : "", 
      f.backward_calls ? el("div", {class: "note"}, `backward of ${plural(f.backward_calls, "call")}: ${formatNs(f.backward_now_ns)}${f.predicted_backward_ns ? `, predicted ${range(f.predicted_backward_ns, formatNs)}` : ""}`) : null,
      f.conditions.map((c) => el("div", {class: "note"}, c))),
    num(formatCount(f.calls)), num(el("div", {}, formatNs(f.now_ns), el("div", {class: "note"}, percent(f.now_ns, report.total_ns)))),
    f.predicted_ns ? rangeCell(f.predicted_ns, formatNs) : num("–"), gain ? rangeCell(gain, share) : num("–"),
    f.proof, el("code", {}, f.target.split(/(?<=[._])/).flatMap((part) => [part, el("wbr")]))];
}

function findingsTable(report) {
  if (!report.findings.length) return el("p", {}, "No chain of small operators that a rule knows.");
  const head = ["chain", "where", num("calls"), num("now, share"), num("fused (predicted)"), num("step gains (predicted)"), "proof", "target"];
  return table(head, report.findings.map((f) => findingRow(report, f)));
}

function verdict(report) {
  const step = report.step;
  if (!step) return null;
  const bound = report.bound ? `${report.bound}-bound. ` : "";
  const gain = report.findings.length ? `All chains together: ${range(step.predicted_gain_ns, (ns) => percent(Math.max(0, ns), step.recorded_ns))} of the recorded time (predicted). ` : "";
  return el("p", {}, el("strong", {}, bound), gain,
    report.on_device ? `Played again it takes ${formatNs(step.replayed_ns)} of ${formatNs(step.recorded_ns)} (${(100 * step.error).toFixed(1)} % off); the host alone ${formatNs(step.host_alone_ns)}, the device alone ${formatNs(step.device_alone_ns)}.` : "");
}

function operatorTable(title, rows, whole) {
  if (!rows.length) return null;
  return el("details", {}, el("summary", {}, title),
    table(["operator", num("calls"), num("time"), num("share")], rows.slice(0, 25).map((op) =>
      [el("code", {}, op.name), num(formatCount(op.calls)), num(formatNs(op.time_ns)), num(percent(op.time_ns, whole))])));
}

function reportSection(report) {
  const facts = `${report.format}${report.device ? `, ${report.device}` : ""}${report.rank >= 0 ? `, rank ${report.rank}` : ""}, ` +
    `${plural(report.events, "event")}, span ${formatNs(report.span_ns)}, ${report.on_device ? "device work" : "operators"} ${formatNs(report.total_ns)}`;
  const joined = report.by_kernel_ns - report.by_operator_ns;
  return el("section", {}, el("h2", {}, baseName(report.path)), el("p", {class: "lead"}, facts), verdict(report),
    findingsTable(report),
    report.on_device ? el("p", {class: "note"}, `Conservation: operators ${formatNs(report.by_operator_ns)} + not joined ${formatNs(joined)} = device work ${formatNs(report.by_kernel_ns)}.`) : null,
    report.refused.map((f) => el("p", {class: "note"}, `${f.rule}, ${plural(f.calls, "call")}, ${place(f)}: ${f.refusal}`)),
    operatorTable(`Fused already: ${plural(report.fused.length, "operator")}`, report.fused, report.total_ns),
    operatorTable("Where the time goes", report.operators, report.total_ns),
    report.losses.map((l) => el("p", {class: l.severity === "note" ? "note" : "note warn"}, `${formatCount(l.count)} ${l.text}`)),
    report.advice.map((line) => el("p", {class: "note"}, line)));
}

// The same chain in several traces, such as ranks: from the least to the most.
function spreadSection(reports) {
  if (reports.length < 2) return null;
  const chains = new Map();
  reports.forEach((report, trace) => {
    for (const f of report.findings) {
      const key = [f.rule, f.module || f.source, f.shapes].join("\n");
      if (!chains.has(key)) chains.set(key, {f, sums: new Map()});
      const {sums} = chains.get(key);  // several findings of a trace may be one chain
      const sum = sums.get(trace) || {calls: 0, ns: 0};
      sums.set(trace, {calls: sum.calls + f.calls, ns: sum.ns + f.now_ns});
    }
  });
  const span = (values, format) => `${format(Math.min(...values))} to ${format(Math.max(...values))}`;
  const rows = [...chains.values()].map((c) => [el("strong", {}, c.f.rule), place(c.f), el("code", {}, c.f.shapes),
    num(`${c.sums.size} of ${reports.length}`), num(span([...c.sums.values()].map((s) => s.calls), formatCount)),
    num(span([...c.sums.values()].map((s) => s.ns), formatNs))]);
  return el("section", {}, el("h2", {}, "All traces"), el("p", {class: "lead"}, `${plural(reports.length, "trace")}: the same chain from the least to the most.`),
    rows.length ? table(["chain", "where", "result", num("traces"), num("calls"), num("now")], rows) : el("p", {}, "No chain in any of them."));
}

function start() {
  const reports = readJson("trace-data");
  const packed = readJson("timeline-data");
  const steps = packed.steps.map((step, i) => new RecordedStep(step, packed.strings, i));
  const host = el("div", {class: "timeline"});
  document.getElementById("main").append(
    el("header", {class: "first"}, el("p", {class: "brand"}, el("strong", {}, "opfuse"), " traces")),
    spreadSection(reports) || "", ...reports.map(reportSection),
    el("section", {id: "timeline"}, el("h2", {}, "Timeline"),
      el("p", {class: "lead"}, "Rows are nested calls of one thread, or work of one stream. Coloured: chains that a rule knows."), host));
  window.timeline = new Timeline(host, steps);
}

start();
