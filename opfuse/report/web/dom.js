// Elements, and numbers as the terminal table writes them.

const SVG = "http://www.w3.org/2000/svg";
const IS_SVG = new Set(["svg", "g", "path", "rect", "circle", "line", "text", "title", "tspan"]);

// el("p", {class: "note"}, "text", child, …); null children are left out; on* adds a listener.
function el(tag, attributes, ...children) {
  const node = IS_SVG.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function formatCount(n) {
  return Math.round(n).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function formatSeconds(s) {
  if (!Number.isFinite(s)) return "?";
  const sign = s < 0 ? "−" : "";
  s = Math.abs(s);
  if (s === 0) return "0 s";
  for (const [scale, unit] of [[1, "s"], [1e3, "ms"], [1e6, "µs"]]) {
    const v = s * scale;
    if (v >= 0.9995) return `${sign}${v.toFixed(v >= 99.95 ? 0 : v >= 9.995 ? 1 : 2)} ${unit}`;
  }
  return `${sign}${(s * 1e9).toFixed(0)} ns`;
}

const formatNs = (ns) => formatSeconds(ns / 1e9);

function formatDuration(s) {
  const whole = Math.round(s);
  const two = (n) => String(n).padStart(2, "0");
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  if (whole >= 60) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return s < 10 ? formatSeconds(s) : `${whole} s`;
}

function formatRate(r) {
  if (r >= 999.5) return formatCount(r);
  return r.toFixed(r >= 99.95 ? 0 : r >= 0.95 ? 1 : 2);
}

function formatError(e) {
  if (e === null || !Number.isFinite(e)) return "not finite";
  return e === 0 ? "0" : e.toExponential(1);
}

const formatBytes = (b) =>
  b >= 2 ** 30 ? `${(b / 2 ** 30).toFixed(1)} GiB` : `${(b / 2 ** 20).toFixed(0)} MiB`;
const times = (ratio) => `${ratio.toFixed(2)}×`;
const plural = (n, noun) => `${formatCount(n)} ${noun}${n === 1 ? "" : noun.endsWith("ss") ? "es" : "s"}`;
const baseName = (path) => path.slice(path.lastIndexOf("/") + 1);
const shortOp = (name) => name.replace(/^aten(::|\.)/, "").replace(/\.(Tensor|Scalar)$/, "");

function shellQuoted(words) {
  return words.map((w) => (/^[\w@%+=:,./*-]+$/.test(w) ? w : `'${w.replaceAll("'", "'\\''")}'`)).join(" ");
}

// Text in which `this` is code.
function withCode(text) {
  return text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
}

function copyButton(text, label) {
  const button = el("button", {type: "button", class: "copy", "aria-label": label}, "Copy");
  button.addEventListener("click", async () => {
    const done = await copyText(text);
    button.textContent = done ? "Copied" : "Select and copy by hand";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // file:// pages of some browsers have no clipboard API.
    const area = el("textarea", {class: "offscreen"});
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function table(head, rows, attributes) {
  const cell = (tag, value) => {
    const right = value && value.right !== undefined;
    return el(tag, {class: right ? "num" : null, scope: tag === "th" ? "col" : null}, right ? value.right : value);
  };
  return el("div", {class: "scroll"},
    el("table", attributes || {},
      el("thead", {}, el("tr", {}, head.map((h) => cell("th", h)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((c) => cell("td", c)))))));
}

const num = (value) => ({right: value});
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
