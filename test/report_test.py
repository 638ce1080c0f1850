"""The report page in headless Chromium, with real keys, mouse and touch; screenshots are kept.

The pages are test data made by opfuse_report_test, which lies beside the opfuse program.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "test" / "browser"))

from devtools import Browser, Page, find_chromium  # noqa: E402

OUTCOMES = ["tuned", "not_faster", "undecided", "nothing_found", "refused", "recorded", "dry_run",
            "plan_applied", "failed", "ended_early", "not_armed"]  # fmt: skip
LARGEST_PAGE = 3_000_000


@pytest.fixture(scope="session")
def pages(tmp_path_factory) -> Path:
    program = Path(os.environ["OPFUSE_BIN"]).parent / "opfuse_report_test"
    folder = tmp_path_factory.mktemp("reports")
    subprocess.run([program, "--gtest_filter=Html.Writes*"], check=True,
                   stdout=subprocess.DEVNULL,
                   env={**os.environ, "OPFUSE_REPORT_SAMPLES": str(folder)})  # fmt: skip
    return folder


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


def open_page(browser: Browser, pages: Path, name: str, *size: int, **media: str) -> Page:
    return browser.open(f"file://{pages}/{name}.html", *size, **media)


@pytest.fixture
def timeline(browser, pages) -> Page:
    """The tuned report, scrolled to its timeline, with the mouse over the first row."""
    page = open_page(browser, pages, "tuned")
    show_timeline(page)
    return page


def show_timeline(page: Page) -> None:
    page.evaluate("document.getElementById('timeline').scrollIntoView({behavior: 'instant'})")
    x, y = canvas_at(page, 0.5, 100)
    page.mouse("mouseMoved", x, y)
    settle(page)


def canvas_at(page: Page, share: float, y: float) -> tuple[float, float]:
    """Page coordinates of a place on the canvas: share of its width, pixels from its top."""
    box = page.evaluate(
        "(({left, top, width}) => ({left, top, width}))"
        "(opfuseTimeline.canvas.getBoundingClientRect())"
    )
    return box["left"] + share * box["width"], box["top"] + y


def settle(page: Page) -> None:
    page.wait_for("opfuseTimeline.view.from === opfuseTimeline.range().from && "
                  "opfuseTimeline.view.to === opfuseTimeline.range().to && "
                  "!opfuseTimeline.pending")  # fmt: skip


def visible(page: Page) -> tuple[float, float]:
    settle(page)
    view = page.evaluate("({...opfuseTimeline.view})")
    return view["from"], view["to"]


def panel(page: Page) -> str:
    return page.evaluate("document.querySelector('.timeline-panel').innerText")


def swish_place(page: Page) -> tuple[float, float]:
    """Where the longest Swish call of the first step is drawn now."""
    place = page.evaluate(
        """(() => {
          const t = opfuseTimeline, step = t.steps[0];
          const calls = step.calls.map((c) => c.forward[0]);
          const id = calls.sort((a, b) => step.dur[b] - step.dur[a])[0];
          const middle = step.start[id] + step.dur[id] / 2;
          return {x: t.xOf(middle), y: t.laneOf(step, id).y + 9};
        })()"""
    )
    x, y = canvas_at(page, 0, place["y"])
    return x + place["x"], y


# The module for an edit in an installed package

TORCH_DOUBLE = """
class nn:
    class Module: pass
    class functional: silu = staticmethod(lambda x: ("silu", x))
class autograd:
    class Function: apply = classmethod(lambda cls, x: (cls.__name__, x))
"""
USE = "from efficientnet_pytorch.utils import MemoryEfficientSwish as M; print(M().forward(3))"


def import_patched(folder: Path, program: str) -> subprocess.CompletedProcess:
    (folder / "torch.py").write_text(TORCH_DOUBLE)
    return subprocess.run([sys.executable, "-B", "-c", program], cwd=folder, capture_output=True,
                          text=True)  # fmt: skip


def test_the_patch_module_edits_the_package_when_it_is_imported_first(pages):
    folder = pages / "patch"
    patch = "import opfuse_patch_efficientnet_pytorch_utils; "
    assert import_patched(folder, USE).stdout == "('SwishImplementation', 3)\n"
    done = import_patched(folder, patch + USE)
    assert done.stdout == "('silu', 3)\n", done.stderr
    late = import_patched(folder, f"{USE}; {patch}")
    assert "import this module before efficientnet_pytorch.utils" in late.stderr


def test_the_patch_module_refuses_another_version_of_the_package(pages, tmp_path):
    folder = shutil.copytree(pages / "patch", tmp_path / "patch")
    with open(folder / "efficientnet_pytorch" / "utils.py", "a") as file:
        file.write("# another version\n")
    done = import_patched(folder, "import opfuse_patch_efficientnet_pytorch_utils; " + USE)
    assert "is not the file that opfuse measured" in done.stderr
    assert done.returncode == 1


# The page


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_outcome_is_a_whole_page_without_errors(browser, pages, shots, name):
    page = open_page(browser, pages, name)
    page.screenshot(shots / f"{name}.png")
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.querySelector('h1').textContent.length") > 20
    assert "What to do next" in page.evaluate("document.body.innerText")
    empty = page.evaluate(
        "[...document.querySelectorAll('section, figure, .card, dl, table')]"
        ".filter((e) => e.getBoundingClientRect().height < 8 && e.checkVisibility())"
        ".map((e) => e.outerHTML.slice(0, 80))"
    )
    assert empty == []
    assert (pages / f"{name}.html").stat().st_size < LARGEST_PAGE


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(browser, pages, name, width):
    page = open_page(browser, pages, name, width, 844)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_first_screen_has_verdict_ratio_command_machine_diff_and_next_step(browser, pages):
    page = open_page(browser, pages, "tuned")
    seen = page.evaluate(
        "[...document.querySelectorAll('.first *')].filter((e) => e.offsetHeight < 100 && "
        "e.getBoundingClientRect().bottom <= innerHeight).map((e) => e.textContent).join('\\n')"
    )
    for text in ("1.27×", "1.21 to 1.32", "python main.py", "torch 2.13.0+cpu", "2 threads",
                 "return nn.functional.silu(x)", "opfuse apply"):  # fmt: skip
        assert text in seen, text
    assert "hf_abcdefghijklmnop" not in page.evaluate("document.documentElement.outerHTML")
    assert "0123456789abcdef" not in page.evaluate("document.documentElement.outerHTML")


def test_the_copy_button_copies_the_whole_diff(browser, pages):
    page = open_page(browser, pages, "tuned")
    page.call("Browser.grantPermissions",
              permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])  # fmt: skip
    place = page.evaluate(
        "(({left, top}) => ({left, top}))"
        "(document.querySelector('.diff .copy').getBoundingClientRect())"
    )
    page.click(place["left"] + 10, place["top"] + 10)
    page.wait_for("document.querySelector('.diff .copy').textContent === 'Copied'")
    diff = page.evaluate("navigator.clipboard.readText()")
    assert diff == page.evaluate("readJson('report-data').diffs[0].diff")
    assert "+        return nn.functional.silu(x)\n" in diff and diff.endswith("\n")


def test_dark_and_print_have_their_own_colours(browser, pages, shots):
    page = open_page(browser, pages, "tuned", prefers_color_scheme="dark")
    page.screenshot(shots / "tuned-dark.png")
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(20, 23, 26)"
    page.set_media("print", prefers_color_scheme="dark")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_source_text_that_looks_like_markup_stays_text(browser, pages):
    page = open_page(browser, pages, "tuned")
    assert "# </script> in a source line must stay text" in page.evaluate("document.body.innerText")


def test_without_javascript_the_terminal_table_is_shown(browser, pages):
    page = browser.open("about:blank")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.go(f"file://{pages}/tuned.html")
    text = page.evaluate("document.querySelector('.fallback').innerText")
    assert "1.27x [1.21, 1.32]" in text


# The timeline


def test_w_and_s_zoom_at_the_mouse(timeline):
    before = visible(timeline)
    x, _ = canvas_at(timeline, 0.25, 0)
    timeline.mouse("mouseMoved", *canvas_at(timeline, 0.25, 100))
    under_mouse = timeline.evaluate(f"opfuseTimeline.timeOf({x} - {canvas_at(timeline, 0, 0)[0]})")
    for _ in range(4):
        timeline.press("w")
    closer = visible(timeline)
    assert closer[1] - closer[0] == pytest.approx((before[1] - before[0]) / 1.5**4, rel=1e-6)
    same = timeline.evaluate(f"opfuseTimeline.timeOf({x} - {canvas_at(timeline, 0, 0)[0]})")
    assert same == pytest.approx(under_mouse, abs=(closer[1] - closer[0]) * 0.01)
    timeline.press("s")
    wider = visible(timeline)
    assert wider[1] - wider[0] == pytest.approx((closer[1] - closer[0]) * 1.5, rel=1e-6)


def test_a_and_d_move(timeline):
    for _ in range(5):
        timeline.press("w")
    start = visible(timeline)
    timeline.press("d")
    right = visible(timeline)
    assert right[0] - start[0] == pytest.approx(0.2 * (start[1] - start[0]), rel=1e-6)
    timeline.press("a")
    assert visible(timeline)[0] == pytest.approx(start[0], abs=1)


def test_keys_do_nothing_while_the_mouse_is_elsewhere(browser, pages):
    page = open_page(browser, pages, "tuned")
    before = page.evaluate("opfuseTimeline.range()")
    page.press("w")
    assert page.evaluate("opfuseTimeline.range()") == before


def test_question_mark_lists_the_keys(timeline):
    timeline.press("?")
    text = timeline.evaluate("document.querySelector('.timeline-help').innerText")
    assert "zoom in, out at the mouse" in text
    timeline.press("Escape")
    assert timeline.evaluate("document.querySelector('.timeline-help').hidden")


def test_a_click_gives_times_source_and_arrows_of_the_event(timeline, shots):
    timeline.click(*swish_place(timeline))
    text = panel(timeline)
    for wanted in ("SwishImplementation", "wall", "self", "average", "count", "utils.py:80",
                   "part of a replaced chain", "all in original step"):  # fmt: skip
        assert wanted in text, wanted
    assert timeline.evaluate(
        "(() => { const {lane, id} = opfuseTimeline.selected;"
        " return lane.step.partnersOf(id).backward.map((i) => lane.step.nameOf(i)); })()"
    ) == ["SwishImplementationBackward"]
    timeline.press("f")
    settle(timeline)
    timeline.screenshot(shots / "timeline-zoomed.png")
    low, high = visible(timeline)
    assert high - low < 0.05 * timeline.evaluate("opfuseTimeline.span")


def test_arrow_keys_walk_from_event_to_event(timeline):
    timeline.press("c")
    name = "(() => { const {lane, id} = opfuseTimeline.selected; return lane.step.nameOf(id); })()"
    assert timeline.evaluate(name) == "SwishImplementation"
    timeline.press("ArrowDown")
    assert timeline.evaluate(name) == "aten::sigmoid"
    timeline.press("ArrowRight")
    assert timeline.evaluate(name) == "aten::mul.Tensor"
    timeline.press("ArrowUp")
    assert timeline.evaluate(name) == "SwishImplementation"


def test_a_drag_over_rows_sums_what_it_covers(timeline, shots):
    top = timeline.evaluate("opfuseTimeline.steps[0].threads[0].lanes[0].y")
    timeline.drag(canvas_at(timeline, 0.0, top + 2), canvas_at(timeline, 1.0, top + 40))
    timeline.screenshot(shots / "timeline-range.png")
    rows = timeline.evaluate(
        "[...document.querySelectorAll('.sums tbody tr')]"
        ".map((r) => [...r.children].map((c) => c.textContent))"
    )
    swish = next(row for row in rows if row[0] == "SwishImplementation")
    assert swish[4] == "49"
    expected = timeline.evaluate(
        "formatNs(opfuseTimeline.steps[0].calls.reduce("
        "(sum, c) => sum + opfuseTimeline.steps[0].dur[c.forward[0]], 0))"
    )
    assert swish[1] == expected
    assert rows[-1][0] == "sum"


def test_m_marks_the_selected_time_and_removes_the_mark(timeline):
    timeline.press("c")
    timeline.press("m")
    marked = timeline.evaluate("opfuseTimeline.marked.to - opfuseTimeline.marked.from")
    assert marked == timeline.evaluate(
        "opfuseTimeline.selected.lane.step.dur[opfuseTimeline.selected.id]"
    )
    timeline.press("m")
    assert timeline.evaluate("opfuseTimeline.marked") is None


def test_search_counts_finds_and_walks(timeline, shots):
    timeline.press("/")
    assert timeline.evaluate("document.activeElement.className") == "timeline-search"
    timeline.type("silu")
    timeline.wait_for("opfuseTimeline.matches.length > 0")
    # 49 silu, 49 SiluBackward0, 49 silu_backward.
    assert timeline.evaluate("opfuseTimeline.found.textContent") == "147 found"
    assert "147" in panel(timeline)
    timeline.press("Enter")
    settle(timeline)
    assert timeline.evaluate("opfuseTimeline.found.textContent") == "1 of 147"
    assert timeline.evaluate(
        "opfuseTimeline.selected.lane.step.nameOf(opfuseTimeline.selected.id)"
    ) == "aten::silu"  # fmt: skip
    timeline.screenshot(shots / "timeline-search.png")


def test_ctrl_wheel_zooms_and_a_plain_wheel_scrolls_the_page(timeline):
    before = visible(timeline)
    place = canvas_at(timeline, 0.5, 100)
    timeline.mouse("mouseWheel", *place, deltaX=0, deltaY=-240, modifiers=2)
    timeline.wait_for(f"opfuseTimeline.range().to < {before[1]}")
    closer = visible(timeline)
    assert closer[1] - closer[0] < before[1] - before[0]
    top = timeline.evaluate("scrollY")
    timeline.mouse("mouseWheel", *place, deltaX=0, deltaY=-120)
    timeline.wait_for(f"scrollY < {top}")
    assert visible(timeline) == closer


def test_shift_drag_moves_and_two_fingers_pinch(browser, pages, timeline):
    for _ in range(4):
        timeline.press("w")
    start = visible(timeline)
    timeline.drag(canvas_at(timeline, 0.6, 100), canvas_at(timeline, 0.4, 100), modifiers=8)
    moved = visible(timeline)
    assert moved[0] - start[0] == pytest.approx(0.2 * (start[1] - start[0]), rel=0.02)
    page = open_page(browser, pages, "tuned", 390, 844)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    page.evaluate("document.getElementById('timeline').scrollIntoView({behavior: 'instant'})")
    settle(page)
    before = visible(page)
    page.touch("touchStart", canvas_at(page, 0.4, 100), canvas_at(page, 0.6, 100))
    page.touch("touchMove", canvas_at(page, 0.2, 100), canvas_at(page, 0.8, 100))
    page.touch("touchEnd")
    after = visible(page)
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 3, rel=0.05)


def test_frame_time_on_twenty_thousand_events_is_reported(browser, pages, record_property):
    page = open_page(browser, pages, "large")
    show_timeline(page)
    count = page.evaluate("opfuseTimeline.steps.reduce((sum, s) => sum + s.count, 0)")
    assert count > 20_000
    page.evaluate("opfuseTimeline.frameTimes = []")
    for key in "wwwwwwssssssddddaaaa":
        page.press(key)
        settle(page)
    times = sorted(page.evaluate("opfuseTimeline.frameTimes"))
    facts = {"events": count, "frames": len(times), "median_ms": times[len(times) // 2],
             "p95_ms": times[int(len(times) * 0.95)]}  # fmt: skip
    print("frame time:", json.dumps(facts))
    record_property("frame_time", facts)
    assert len(times) > 20
    assert page.errors == []
