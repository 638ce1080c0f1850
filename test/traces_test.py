"""Trace files from the command line: analyze, compare, view; the page of view in a browser."""

import gzip
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "test" / "traces"
sys.path.insert(0, str(ROOT / "test" / "browser"))

from devtools import Browser, Page, find_chromium  # noqa: E402

BERT = TRACES / "kineto_bert_small_h100.json.gz"


def opfuse(*words, stdin=b"", **more) -> subprocess.CompletedProcess:
    command = [os.environ["OPFUSE_BIN"], *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=240, **more)


def swish_trace(calls: int, fused: bool) -> str:
    """A CPU step with `calls` times x * sigmoid(x), or the fused operator, between convolutions."""
    events, now = [], 1000

    def op(name: str, inputs: int, dur: int) -> None:
        nonlocal now
        now += 100
        args = {
            "External id": len(events) + 1,
            "Input Dims": [[4, 8]] * inputs,
            "Input type": ["float"] * inputs,
        }
        event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": now + 0.5}
        events.append({**event, "dur": dur, "args": args})

    for _ in range(calls):
        op("aten::mkldnn_convolution", 1, 50)
        if fused:
            op("aten::silu", 1, 10)
        else:
            op("aten::sigmoid", 1, 10)
            op("aten::mul", 2, 10)
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1}
    events.append({**step, "ts": 1000, "dur": now})
    return json.dumps({"traceEvents": events})


def test_json_is_strict_and_counts(tmp_path):
    done = opfuse("analyze", "--json", BERT)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["events"] == 2551 and report["kernels"] == 60
    assert report["by_kernel_ns"] == report["by_operator_ns"]
    assert {finding["rule"] for finding in report["findings"]} == {"dropout_add_layer_norm"}


def test_a_pipe_is_read_as_the_file_is():
    from_file = json.loads(opfuse("analyze", "--json", BERT).stdout)
    piped = json.loads(opfuse("analyze", "--json", "-", stdin=BERT.read_bytes()).stdout)
    inflated = gzip.decompress(BERT.read_bytes())
    plain = json.loads(opfuse("analyze", "--json", "-", stdin=inflated).stdout)
    for other in (piped, plain):
        assert other | {"path": ""} == from_file | {"path": ""}


def test_a_cut_file_is_used_and_named_with_status_6(tmp_path):
    text = gzip.decompress(BERT.read_bytes())
    (tmp_path / "cut.json").write_bytes(text[: len(text) // 2])
    done = opfuse("analyze", "cut.json", cwd=tmp_path)
    assert done.returncode == 6
    assert b"events cut off at the end of the file" in done.stdout and b", line " in done.stdout
    (tmp_path / "cut.json.gz").write_bytes(BERT.read_bytes()[:20000])
    done = opfuse("analyze", "--json", "cut.json.gz", cwd=tmp_path)
    assert done.returncode == 6
    report = json.loads(done.stdout)
    assert report["events"] > 100
    assert "StreamCut" in [loss["name"] for loss in report["losses"]]


def test_findings_above_a_share_fail_on_request(tmp_path):
    (tmp_path / "swish.json").write_text(swish_trace(49, fused=False))
    done = opfuse("analyze", "--json", "swish.json", cwd=tmp_path)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert [(f["rule"], f["calls"]) for f in report["findings"]] == [("silu", 49)]
    assert opfuse("analyze", "--fail-above", "1%", "swish.json", cwd=tmp_path).returncode == 1
    assert opfuse("analyze", "--fail-above", "99%", "swish.json", cwd=tmp_path).returncode == 0
    assert opfuse("analyze", "--fail-above", "much", "swish.json", cwd=tmp_path).returncode == 2


def test_folders_and_archives_of_ranks_are_read_in_their_order(tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 2, 10):
        (folder / f"rank{rank}.json").write_text(swish_trace(rank + 1, fused=False))
    (folder / "profiler_info.json").write_text('{"config": 1}')
    expected = [("rank0.json", 1), ("rank2.json", 3), ("rank10.json", 11)]
    with tarfile.open(tmp_path / "ranks.tar.gz", "w:gz") as archive:
        for name, _ in expected:
            archive.add(folder / name, arcname=name)
    for path in ("ranks", "ranks.tar.gz"):
        done = opfuse("analyze", "--json", path, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        reports = json.loads(done.stdout)
        found = [
            (r["path"].replace(":", "/").split("/")[-1], r["findings"][0]["calls"]) for r in reports
        ]
        assert found == expected
    text = opfuse("analyze", "ranks", cwd=tmp_path).stdout.decode()
    assert "in 3 traces, 1 to 11 calls" in text
    cut = (tmp_path / "ranks.tar.gz").read_bytes()[:-200]
    (tmp_path / "cut.tar.gz").write_bytes(cut)
    assert opfuse("analyze", "cut.tar.gz", cwd=tmp_path).returncode == 6


def test_slices_of_one_timeline_are_one_trace(tmp_path):
    """Numbered slices are joined in order, a flow over two of them too; a missing one is named."""
    events = json.loads(swish_trace(6, fused=False))["traceEvents"]
    folder = tmp_path / "slices"
    folder.mkdir()
    cuts = [0, 5, 11, len(events)]
    for i, (first, last) in enumerate(zip(cuts, cuts[1:])):
        (folder / f"x_slice_{i}_20260301.json").write_text(json.dumps(events[first:last]))
    whole = json.loads(opfuse("analyze", "--json", "slices", cwd=tmp_path).stdout)
    assert whole["events"] == len(events)
    assert [(f["rule"], f["calls"]) for f in whole["findings"]] == [("silu", 6)]
    paths = sorted(map(str, folder.iterdir()), reverse=True)
    listed = json.loads(opfuse("analyze", "--json", *paths).stdout)
    assert listed["findings"] == whole["findings"]
    (folder / "x_slice_1_20260301.json").unlink()
    done = opfuse("analyze", "--json", "slices", cwd=tmp_path)
    assert done.returncode == 6
    losses = {loss["name"]: loss["count"] for loss in json.loads(done.stdout)["losses"]}
    assert losses["SliceMissing"] == 1


def test_a_page_of_ranks_has_tables_spread_and_timelines(tmp_path):
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_text(swish_trace(rank + 2, fused=False))
    page_file = tmp_path / "page.html"
    done = opfuse("analyze", "rank0.json", "rank1.json", "--html", page_file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"silu" in done.stdout  # the text is printed as well
    refused = opfuse("analyze", "rank0.json", "--html", page_file, cwd=tmp_path)
    assert refused.returncode == 2  # not without --force
    if find_chromium() is None:
        pytest.skip("no Chromium")
    with Browser() as browser:
        page: Page = browser.open(page_file.as_uri())
        text = page.evaluate("document.body.innerText")
        assert "All traces" in text and "2 of 2" in text and "2 to 3" in text
        assert "host-bound" in text and "predicted" in text
        assert page.evaluate("timeline.steps.length") == 2
        assert page.errors == []


def test_a_trace_with_the_chains_as_rows_is_strict_json(tmp_path):
    """What Perfetto shows: every slice of the file, and a process with one row a chain."""
    (tmp_path / "swish.json").write_text(swish_trace(4, fused=False))
    done = opfuse("view", "swish.json", "--trace", "marked.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "marked.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["cat"] != "opfuse"]
    assert len(slices) == len(json.loads((tmp_path / "swish.json").read_text())["traceEvents"])
    chains = [e for e in events if e.get("cat") == "opfuse"]
    assert [e["name"] for e in chains] == ["silu"] * 4
    sigmoids = [e for e in slices if e["name"] == "aten::sigmoid"]
    for chain, sigmoid in zip(chains, sigmoids):
        assert chain["ts"] == sigmoid["ts"] and chain["dur"] > sigmoid["dur"]
        assert chain["args"]["becomes"] and chain["args"]["proof"].startswith("P")
    again = opfuse("analyze", "--json", "marked.json", cwd=tmp_path)
    assert json.loads(again.stdout)["events"] == len(events)
    assert opfuse("view", "swish.json", "--ui", "paint", cwd=tmp_path).returncode == 2


def test_a_step_that_is_not_there_is_named_with_those_that_are(tmp_path):
    (tmp_path / "swish.json").write_text(swish_trace(2, fused=False))
    assert opfuse("analyze", "--step", "3", "swish.json", cwd=tmp_path).returncode == 0
    done = opfuse("analyze", "--step", "7", "swish.json", cwd=tmp_path)
    assert done.returncode != 0 and b"it has the steps 3" in done.stderr


def test_compare_says_what_became_what(tmp_path):
    (tmp_path / "before.json").write_text(swish_trace(49, fused=False))
    (tmp_path / "after.json").write_text(swish_trace(49, fused=True))
    done = opfuse("compare", "before.json", "after.json", "--batch", "128", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert "49 x  aten.sigmoid, aten.mul.Tensor -> aten.silu" in text
    assert "TIME (profiled)" in text and "images/s" in text


def test_the_page_of_view_answers_to_keys(tmp_path):
    if find_chromium() is None:
        pytest.skip("no Chromium")
    page_file = tmp_path / "view.html"
    done = opfuse("view", BERT, "-o", page_file)
    assert done.returncode == 0, done.stderr
    assert opfuse("view", BERT, "-o", page_file).returncode == 2  # not without --force
    with Browser() as browser:
        page: Page = browser.open(page_file.as_uri())
        assert page.evaluate("document.querySelectorAll('canvas').length") == 1
        before = page.evaluate("timeline.range().to - timeline.range().from")
        page.evaluate("timeline.canvas.focus()")
        page.press("w")
        page.wait_for(f"timeline.range().to - timeline.range().from < {before}")
        assert page.evaluate("timeline.steps[0].count") > 1900
        assert page.errors == []


def large_trace(events: int) -> str:
    """Nested operators on four threads, kernels on two streams, frames of Python: 30 rows deep."""
    rows, now = [], 0
    while len(rows) < events:
        thread, now = len(rows) // 30 % 4, now + 90
        for depth in range(24):
            name = f"model.py({depth}): forward" if depth < 16 else f"aten::op{(now + depth) % 37}"
            cat = "python_function" if depth < 16 else "cpu_op"
            head = f'"ph":"X","cat":"{cat}","name":"{name}","pid":1,"tid":{thread}'
            rows.append(f'{{{head},"ts":{now + depth}.25,"dur":{80 - 2 * depth}}}')
        for i in range(6):
            head = f'"ph":"X","cat":"kernel","name":"kernel{i}","pid":0,"tid":{7 + i % 2}'
            args = f'"args":{{"stream":{7 + i % 2},"device":0,"correlation":{len(rows)}}}'
            rows.append(f'{{{head},"ts":{now + 14 * i}.5,"dur":12,{args}}}')
    return '{"traceEvents": [\n' + ",\n".join(rows) + "\n]}"


def test_a_quarter_of_a_million_events_are_drawn_smoothly(tmp_path):
    """A frame draws about a mark a pixel of the rows that are seen, however much is recorded."""
    if find_chromium() is None:
        pytest.skip("no Chromium")
    (tmp_path / "large.json").write_text(large_trace(240_000))
    page_file = tmp_path / "large.html"
    done = opfuse("view", "large.json", "-o", page_file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert page_file.stat().st_size < 8 << 20
    with Browser() as browser:
        page: Page = browser.open(page_file.as_uri())
        assert page.evaluate("timeline.steps[0].count") >= 240_000
        page.evaluate("timeline.canvas.scrollIntoView(); timeline.canvas.focus()")
        seen = page.evaluate("Math.ceil(timeline.shown / 18) * timeline.width")
        for keys in ("", "wwww", "dd", "wwwwwwww", "aa", "ssssssssssss"):
            for key in keys:
                page.press(key)
            page.wait_for("!timeline.pending")
            assert 0 < page.evaluate("timeline.marks") < seen
        page.evaluate("timeline.find('op7')")
        page.wait_for("!timeline.pending")
        assert 0 < page.evaluate("timeline.marks") < seen
        # More rows than fit scroll under the axis; the canvas keeps a size that is drawn.
        assert page.evaluate("timeline.canvas.height / timeline.ratio") <= 1500
        bottom = "timeline.height - timeline.shown"
        page.evaluate(f"timeline.stage.scrollTop = {bottom}")
        page.wait_for(f"!timeline.pending && timeline.top >= {bottom} - 1")
        lowest = page.evaluate("timeline.lanes[timeline.lanes.length - 1].y")
        assert page.evaluate(f"timeline.hit(timeline.width / 2, {lowest} + 9) !== null")
        frames = page.evaluate("timeline.frameTimes")
        print(f"median frame {sorted(frames)[len(frames) // 2]:.1f} ms of {len(frames)}")
        assert page.errors == []
