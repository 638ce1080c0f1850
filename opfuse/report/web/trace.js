// The page of `opfuse view`: what was found, and the timeline of each trace.

const readJson = (id) => JSON.parse(document.getElementById(id).textContent);

function findingRow(report, finding) {
  const share = report.total_ns > 0 ? `${((100 * finding.now_ns) / report.total_ns).toFixed(1)} %` : "–";
  const expected = finding.predicted_ns ? formatNs(finding.predicted_ns.mid) : "–";
  return el("tr", {}, el("td", {}, finding.rule),
    el("td", {}, [finding.module, finding.source].filter(Boolean).join("  ") || "place not in the file"),
    el("td", {class: "num"}, formatCount(finding.calls)), el("td", {class: "num"}, formatNs(finding.now_ns)),
    el("td", {class: "num"}, share), el("td", {class: "num"}, expected), el("td", {}, finding.proof),
    el("td", {}, finding.conditions.join("; ")));
}

function reportSection(report) {
  const heads = ["chain", "where", "calls", "now", "share", "predicted", "proof", "condition"];
  const numbers = new Set(["calls", "now", "share", "predicted"]);
  const facts = `${report.format}${report.device ? `, ${report.device}` : ""}, ${plural(report.events, "event")}, span ${formatNs(report.span_ns)}`;
  return el("section", {}, el("h2", {}, baseName(report.path)), el("p", {class: "lead"}, facts),
    report.findings.length
      ? el("div", {class: "scroll"}, el("table", {},
        el("thead", {}, el("tr", {}, heads.map((h) => el("th", {scope: "col", class: numbers.has(h) ? "num" : null}, h)))),
        el("tbody", {}, report.findings.map((f) => findingRow(report, f)))))
      : el("p", {}, "No chain of small operators that a rule knows."),
    report.losses.filter((l) => l.severity !== "note").map((l) =>
      el("p", {class: "note warn"}, `${formatCount(l.count)} ${l.text}`)),
    report.advice.map((line) => el("p", {class: "note"}, line)));
}

function start() {
  const reports = readJson("trace-data");
  const packed = readJson("timeline-data");
  const steps = packed.steps.map((step, i) => new RecordedStep(step, packed.strings, i));
  const host = el("div", {class: "timeline"});
  document.getElementById("main").append(
    el("header", {class: "first"}, el("p", {class: "brand"}, el("strong", {}, "opfuse"), " view")),
    ...reports.map(reportSection),
    el("section", {id: "timeline"}, el("h2", {}, "Timeline"),
      el("p", {class: "lead"}, "Rows are nested calls of one thread, or work of one stream. Coloured: chains that a rule knows."), host));
  window.timeline = new Timeline(host, steps);
}

start();
