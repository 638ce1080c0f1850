"""Faults of trace files that broke other readers, one test each, through the program: what is read,
what is said, the exit status. docs/trace-cases.md lists them."""

import gzip
import json
import re
from pathlib import Path

import pytest
from trace_helpers import DAMAGED, analyze, event, listed, losses, printed, shown
from traces_test import opfuse


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "trace.json"


GOOD = event("aten::mul", 1.5, 2.5), event("aten::add", 5.5, 1.5)


@pytest.mark.parametrize("word", ["inf", "nan", "-inf", "NaN", "Infinity", "-Infinity"])
def test_a6_a_bandwidth_that_is_no_number_is_left_out_and_counted_once(file, word):
    copy = (
        '{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":0,"tid":7,"ts":10,"dur":0,'
        f'"args":{{"memory bandwidth (GB/s)":{word}}}}}'
    )
    kernel = event("k", 20, 4, "kernel", 7)
    report = analyze(file, listed(copy, kernel), DAMAGED)
    assert report["events"] == 2 and report["by_kernel_ns"] == 4000
    assert losses(report)["NumberNotFinite"] == 1
    assert [name for name, _, _ in shown(file)] == ["Memcpy HtoD", "k"]


def test_a7_names_that_are_not_utf8_are_shown_with_replacement_characters(file):
    bad = listed(event("one", 1.5, 1), event("two", 3.5, 1), event("three", 5.5, 1)).encode()
    bad = bad.replace(b"one", b"\xf0\x28\x8c\x28").replace(b"two", b"\xb9")
    report = analyze(file, bad, DAMAGED)
    assert report["events"] == 3 and losses(report)["NotUtf8"] == 2
    assert "that are not UTF-8" in printed(file)
    assert [name for name, _, _ in shown(file)] == ["\ufffd(\ufffd(", "\ufffd", "three"]
    page = file.parent / "page.html"
    opfuse("view", file.name, "-o", page, cwd=file.parent)
    page.read_bytes().decode("utf-8")


def test_a13_times_as_text_stay_exact_and_ids_beyond_doubles_stay_apart(file):
    kernels = [
        {"ph": "X", "name": "aclnnA", "pid": 9, "tid": 4, "ts": "1732107142998000.001", "dur": 9},
        {"ph": "X", "name": "aclnnB", "pid": 9, "tid": 4, "ts": "1732107142999000.002", "dur": 9},
    ]
    operators = [
        event("aten::mul", "1732107142997066.682", 476.838),
        event("aten::add", "1732107142997543.569", 300.5),
    ]
    flows = []
    for op, kernel, flow in zip(operators, kernels, (9007199254740993, 9007199254740992)):
        arrow = {"cat": "async_npu", "name": "torch_to_npu", "id": flow}
        start = str(int(op["ts"].split(".")[0]) + 10) + ".000"
        flows.append({"ph": "s", "pid": 1, "tid": 1, "ts": start, **arrow})
        flows.append({"ph": "f", "pid": 9, "tid": 4, "ts": kernel["ts"], **arrow})
    process = {"ph": "M", "name": "process_name", "pid": 9, "tid": 0}
    process["args"] = {"name": "Ascend Hardware"}
    report = analyze(file, json.dumps([*operators, *kernels, *flows, process]))
    assert report["by_kernel_ns"] == report["by_operator_ns"] == 18000
    assert losses(report) == {}  # siblings: nothing crosses
    times = {op["name"]: op["time_ns"] for op in report["operators"]}
    assert len(times) == 2 and set(times.values()) == {9000}


def test_a21_an_object_that_is_no_json_is_skipped_and_its_place_is_said(file):
    broken = '{"ph":"f","ts":1,tid":0,"pid":"CUDA functions"}'
    text = listed(GOOD[0], broken, GOOD[1])
    report = analyze(file, text, DAMAGED)
    assert report["events"] == 2 and losses(report)["EventUnreadable"] == 1
    line = next(line for line in printed(file).splitlines() if "lost" in line)
    assert f"byte {text.index(broken)}" in line and "line 3" in line and 'tid":0' in line


def test_a23_illegal_escapes_of_windows_paths_are_backslashes(file):
    name = r"torch\cuda\__init__.py(219): f"
    text = listed(event("NAME", 1.5, 1), event("aten::mul", 3.5, 1)).replace("NAME", name)
    report = analyze(file, text, DAMAGED)
    assert report["events"] == 2 and losses(report) == {"EscapeIllegal": 1}
    assert 0 <= report["losses"][0]["first_byte"] - text.index(name) + 1 <= len(name)
    assert shown(file)[0][0] == name


def test_a25_control_bytes_are_read_escaped_and_counted(file):
    text = listed(event("NAME", 1.5, 1)).replace("NAME", "a\x01b\x1f")
    report = analyze(file, text, DAMAGED)
    assert losses(report) == {"ControlBytes": 1}
    shown_name = shown(file)[0][0]
    assert shown_name == "a\x01b\x1f"
    assert b"\x01" not in (file.parent / "shown.json").read_bytes()


def test_a27_the_old_form_without_categories_has_operators(file):
    old = (
        '[{"name":"aten::mul","ph":"X","ts":633,"dur":54,"tid":1,"pid":"CPU functions","args":{}}]'
    )
    report = analyze(file, old)
    assert [(op["name"], op["time_ns"]) for op in report["operators"]] == [("aten.mul", 54000)]


def test_a28_unknown_members_of_any_type_are_passed_over(file):
    head = '{"schemaVersion":1,"deviceProperties":[{"id":0}],"x":{"y":[1,[2],"]}"]},"z":null,'
    report = analyze(file, head + listed(*GOOD)[1:])
    assert report["events"] == 2 and losses(report) == {}


def test_a30_events_stamped_zero_are_counted_and_are_no_fast_operators(file):
    good = [event("aten::mul", 100.5 + 10 * i, 5) for i in range(50)]
    zero = [event("aten::sigmoid", 0, 0) for _ in range(50)]
    report = analyze(file, listed(*good, *zero), DAMAGED)
    assert losses(report)["TimeZero"] == 50
    assert [(op["name"], op["calls"]) for op in report["operators"]] == [("aten.mul", 50)]
    assert report["span_ns"] == 495_000
    assert "times cover the rest of the run only" in printed(file)


def test_a32_a_child_that_ends_late_is_clipped_and_no_self_time_is_negative(file):
    rows = event("a::parent", 0.5, 10), event("a::child", 5.5, 7), event("a::next", 12.5, 4)
    report = analyze(file, listed(*rows))
    assert losses(report)["CrossingSlices"] == 1
    times = {op["name"].split(".")[-1]: op["time_ns"] for op in report["operators"]}
    assert min(times.values()) >= 0 and sum(times.values()) <= report["span_ns"]


def test_a34_neighbours_49_ns_apart_are_siblings(file):
    rows = (
        '{"ph":"X","cat":"cpu_op","name":"aten::mul","pid":1,"tid":1,'
        '"ts":1732107142997066.682,"dur":476375.838}',
        '{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,'
        '"ts":1732107143473442.569,"dur":300492.826}',
    )
    report = analyze(file, listed(*rows))
    times = {op["name"].split(".")[1]: op["time_ns"] for op in report["operators"]}
    assert times == {"mul": 476375838, "add": 300492826}
    assert report["span_ns"] == 476375838 + 49 + 300492826


@pytest.mark.parametrize("seam", ["{}{}", "{},][{}"])
def test_a36_pieces_glued_together_are_read_and_the_seam_is_located(file, seam):
    a, b = (json.dumps(e) for e in GOOD)
    text = "[" + seam.replace("{}", "A", 1).replace("{}", "B").replace("A", a).replace("B", b) + "]"
    report = analyze(file, text, DAMAGED)
    assert report["events"] == 2
    place = {loss["name"]: loss["first_byte"] for loss in report["losses"]}
    assert list(place.values()) == [text.index("}{") + 1 if "}{" in text else text.index("][")]


def test_a37_a_cut_execution_trace_gives_its_whole_nodes(file):
    text = (
        '{"schema":"1.1.1-chakra","nodes":[{"id":1,"name":"a"} {"id":2,"name":"b","ctrl_deps":9},'
        '{"id":3,"na'
    )
    report = analyze(file, text, DAMAGED)
    assert report["events"] == 2
    assert losses(report)["EventCut"] == 1 and losses(report)["ParentMissing"] == 1


def test_a39_two_writers_of_one_gzip_file_are_named(file):
    first, second = (
        gzip.compress(
            listed(*[event(f"aten::op{i * n % 997}", i + 0.5, 1) for i in range(9000)]).encode()
        )
        for n in (7, 11)
    )
    mixed = b"".join(first[i : i + 4096] + second[i : i + 4096] for i in range(0, len(first), 4096))
    packed = file.with_suffix(".json.gz")
    report = analyze(packed, mixed, DAMAGED)
    assert report["events"] > 100 and losses(report)["StreamDamaged"] == 1
    assert re.search(r"several ranks.*; the first at byte \d", printed(packed))


def test_a42_correlation_zero_links_nothing(file):
    launch = event("cudaLaunchKernel", 1.5, 1, "cuda_runtime", correlation=0)
    kernels = [event("nccl", 20 + i, 1, "kernel", 7, correlation=0) for i in range(5)]
    report = analyze(file, listed(event("aten::mul", 1, 5), launch, *kernels))
    assert report["orphan_kernels"] == 5 and losses(report)["CorrelationZero"] == 5
    assert report["by_operator_ns"] == 0


@pytest.mark.parametrize(
    "call",
    ["cuLaunchKernelEx", "cudaLaunchKernelExC", "hipExtModuleLaunchKernel", "aclrtLaunchKernel"],
)
def test_a44_launches_are_joined_by_their_id_whatever_their_name(file, call):
    rows = (
        event("aten::mul", 1.5, 9),
        event(call, 2.5, 1, "cuda_runtime", correlation=7),
        event("k", 20.5, 4, "kernel", 7, correlation=7),
    )
    report = analyze(file, listed(*rows))
    assert [(op["name"].split(".")[1], op["time_ns"]) for op in report["operators"]] == [
        ("mul", 4000)
    ]


def test_a45_kernels_of_a_captured_graph_stay_under_it_and_no_chain_is_made_up(file):
    launch = event("cudaGraphLaunch", 1.5, 2, "cuda_runtime", correlation=9)
    kernels = [
        event(
            "sigmoid_kernel" if i % 2 else "mul_kernel", 20 + 3 * i, 2, "kernel", 7, correlation=9
        )
        for i in range(24)
    ]
    report = analyze(file, listed(launch, *kernels))
    assert report["kernels"] == 24 and report["by_operator_ns"] == 0 and report["findings"] == []
    assert any("captured graphs" in line for line in report["advice"])


def test_a47_a_range_mirrored_on_the_device_is_no_device_time(file):
    mirrored = event("ProfilerStep#1", 5, 50, "gpu_user_annotation", 7)
    report = analyze(file, listed(mirrored, event("k", 20, 10, "kernel", 7, correlation=1)))
    assert report["by_kernel_ns"] == report["total_ns"] == 10000


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        ("{}", DAMAGED, "without any event"),
        ('{"traceEvents": []}', DAMAGED, "without any event"),
        ("", DAMAGED, "without any event"),
        (listed(*GOOD), 0, "operators 4.00 us in 2 operators"),
    ],
)
def test_a48_empty_files_and_files_of_the_host_alone_have_a_message(file, content, status, said):
    analyze(file, content, status)
    assert said in printed(file)


def test_a50_forward_and_backward_on_one_thread_are_paired_by_their_number(file):
    dims = {"Input Dims": [[4, 8], [4, 8]], "Input type": ["float", "float"]}
    rows = [
        event("aten::sigmoid", 1.5, 2, **{"Input Dims": [[4, 8]], "Input type": ["float"]}),
        event("aten::mul", 10.5, 2, **dims, **{"Sequence number": 10}),
        event("MulBackward0", 50.5, 9, **{"Sequence number": 10, "Fwd thread id": 1}),
        event("aten::mul", 51.5, 2, **dims),
        event("AddBackward0", 70.5, 9, **{"Sequence number": 99, "Fwd thread id": 1}),
    ]
    report = analyze(file, listed(*rows))
    assert losses(report)["BackwardUnpaired"] == 1


def test_a52_whole_microseconds_keep_the_order_of_the_file(file):
    rows = []
    for i in range(6):
        one = {"Input Dims": [[4, 8]], "Input type": ["float"]}
        two = {"Input Dims": [[4, 8]] * 2, "Input type": ["float"] * 2}
        rows += [
            event("aten::mkldnn_convolution", 10 + i, 0, **one),
            event("aten::sigmoid", 10 + i, 0, **one),
            event("aten::mul", 10 + i, 0, **two),
        ]
    report = analyze(file, listed(*rows))
    assert [(f["rule"], f["calls"]) for f in report["findings"]] == [("silu", 6)]
    assert losses(report)["WholeMicroseconds"] == 1
    assert "+-1 us" in printed(file)


def test_a55_an_array_that_is_not_closed_is_used(file):
    a, b = (json.dumps(e) for e in GOOD)
    report = analyze(file, f"[{a},{b},", DAMAGED)
    assert report["events"] == 2 and losses(report) == {"FileEndMissing": 1}
    report = analyze(file, f"[{a},{b[: b.index('1.5') + 1]}", DAMAGED)
    assert report["events"] == 1 and losses(report)["EventCut"] == 1


def test_a56_durations_that_are_negative_or_no_numbers_are_left_out_of_sums(file):
    rows = event("aten::mul", 1.5, -877330), event("aten::add", 3.5, "abc"), GOOD[1]
    report = analyze(file, listed(*rows), DAMAGED)
    assert losses(report) == {"DurationNegative": 1, "DurationUnreadable": 1}
    assert report["total_ns"] == 1500


# What a trace tells of speed, and comparing

ONE = {"Input Dims": [[128, 4096]], "Input type": ["float"]}
TWO = {"Input Dims": [[128, 4096]] * 2, "Input type": ["float"] * 2}


def device_step(calls: int, every: float, kernel: float) -> str:
    """`calls` times product, sigmoid, mul: a launch every `every` us, `kernel` us each."""
    rows, now, free = [], 1000.5, 0.0
    product = {"Input Dims": [[128, 4096], [4096, 4096]], "Input type": ["float"] * 2}
    operators = ("aten::mm", product), ("aten::sigmoid", ONE), ("aten::mul", TWO)
    for i in range(3 * calls):
        name, more = operators[i % 3]
        start = max(now + every * 0.6, free)
        free = start + kernel
        rows += [
            event(name, now, every * 0.8, **more, **{"External id": i + 1}),
            event(
                "cudaLaunchKernel",
                now + every * 0.2,
                every * 0.3,
                "cuda_runtime",
                correlation=i + 1,
            ),
            event("k", start, kernel, "kernel", 7, correlation=i + 1, stream=7, device=0),
        ]
        now += every
    return listed(*rows)


def test_d20_what_decides_the_step_is_said_and_limits_the_gain(file):
    host = analyze(file, device_step(40, every=50, kernel=10))
    assert host["bound"] == "host" and "host-bound" in printed(file)
    # The gain is that of 40 launches fewer, not of the device's time.
    assert host["step"]["predicted_gain_ns"]["mid"] == pytest.approx(40 * 50_000, rel=0.3)
    device = analyze(file, device_step(40, every=50, kernel=400))
    assert device["bound"] == "device" and "device-bound" in printed(file)
    saved = device["findings"][0]["now_ns"] - device["findings"][0]["predicted_ns"]["mid"]
    assert device["step"]["predicted_gain_ns"]["mid"] == pytest.approx(saved, rel=0.1)


def test_d139_a_costly_convolution_leads_the_operators_and_little_is_promised(file):
    rows, now = [], 1000.5
    for _ in range(20):
        for name, dur, more in (
            ("aten::_conv_depthwise2d", 900, TWO),
            ("aten::sigmoid", 10, ONE),
            ("aten::mul", 10, TWO),
        ):
            rows.append(event(name, now, dur, **more))
            now += dur + 5
    report = analyze(file, listed(*rows))
    assert report["operators"][0]["name"].startswith("aten._conv_depthwise2d")
    assert report["findings"][0]["rule"] == "silu" and report["possible_share"] < 0.03


def test_d141_an_idle_device_and_its_host_are_said_first(file):
    analyze(file, device_step(40, every=12, kernel=5))
    head, _, rest = printed(file).partition("  chain ")
    assert re.search(r"device busy 4\d% of its span.*: host-bound", head) and "silu" in rest


def test_d150_the_gain_of_the_step_is_said_beside_that_of_the_chain(file):
    """A chain that is a twentieth of its step: the step gains at most that."""
    rows, now = [], 1000.5
    for name, dur, more in [("aten::mm", 190, TWO)] * 20 + [
        ("aten::sigmoid", 100, ONE),
        ("aten::mul", 100, TWO),
    ]:
        rows.append(event(name, now, dur, **more))
        now += dur
    report = analyze(file, listed(*rows))
    (finding,) = report["findings"]
    assert 0 < finding["predicted_step_gain_ns"]["mid"] <= finding["now_ns"] == 200_000
    assert re.search(r"step: -[0-4]\.\d% .*predicted\), of 4\.00 ms", printed(file))


def test_e151_a_comparison_lists_what_went_and_came_and_its_sums_are_both_totals(tmp_path):
    before, after = [], []
    for i in range(40):
        now = 100.5 * (i + 1)
        conv = event("aten::mkldnn_convolution", now, 50, **ONE)
        before += [
            conv,
            event("aten::sigmoid", now + 60, 10, **ONE),
            event("aten::mul", now + 75, 10, **TWO),
        ]
        after += [conv, event("aten::silu", now + 60, 8, **ONE)]
    (tmp_path / "before.json").write_text(listed(*before))
    (tmp_path / "after.json").write_text(listed(*after))
    done = opfuse("compare", "before.json", "after.json", cwd=tmp_path)
    text = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert "40 x  aten.sigmoid, aten.mul.Tensor -> aten.silu" in text
    assert "800 µs -> 320 µs" in text.replace("us", "µs")
    totals = [
        json.loads(opfuse("analyze", "--json", tmp_path / f"{n}.json").stdout)
        for n in ("before", "after")
    ]
    assert [t["total_ns"] for t in totals] == [2_800_000, 2_320_000]
    assert re.search(r"operators +2\.80 ms +2\.32 ms", text)


def test_e154_a_comparison_takes_the_median_of_the_steps(tmp_path):
    """The first steps hold compilation and set-up: 8000 and 250 ms before 22 ms."""

    def steps(times: list[float]) -> str:
        rows, now = [], 1000.5
        for i, ms in enumerate(times):
            rows.append(event(f"ProfilerStep#{i}", now, 1000 * ms, "user_annotation"))
            rows.append(event("aten::mul", now + 1, 5, **TWO))
            now += 1000 * ms
        return listed(*rows)

    (tmp_path / "before.json").write_text(steps([8000, 250] + [22] * 9))
    (tmp_path / "after.json").write_text(steps([20] * 9))
    text = opfuse("compare", "before.json", "after.json", "--batch", "44", cwd=tmp_path).stdout
    line = next(line for line in text.decode().splitlines() if "TIME" in line)
    assert re.search(r"22\.0 ms.*20\.0 ms", line), line
    line = next(line for line in text.decode().splitlines() if "images/s" in line)
    assert re.search(r"2,?000.*2,?200", line), line


def test_e158_a_range_of_the_user_is_the_place_of_its_chains(file):
    rows = []
    product = {"Input Dims": [[128, 4096], [4096, 4096]], "Input type": ["float"] * 2}
    for i, name in enumerate(("block3", "block3", "head")):
        now = 100.5 * (i + 1)
        rows += [
            event(name, now, 90, "user_annotation"),
            event("aten::mm", now + 1, 5, **product),
            event("aten::sigmoid", now + 10, 20, **ONE),
            event("aten::mul", now + 40, 30, **TWO),
        ]
    report = analyze(file, listed(*rows))
    found = [(f["region"], f["calls"], f["now_ns"]) for f in report["findings"]]
    assert found == [("block3", 2, 100_000), ("head", 1, 50_000)]
    assert all(f["operators"] and f["predicted_step_gain_ns"] for f in report["findings"])
    assert "in block3" in printed(file)


def test_e160_a_kernel_counts_once_under_nested_operators(file):
    rows = (
        event("aten::linear", 1.5, 30, **TWO),
        event("aten::addmm", 2.5, 25, **TWO),
        event("cudaLaunchKernel", 3.5, 4, "cuda_runtime", correlation=3),
        event("gemm", 40.5, 10, "kernel", 7, correlation=3),
    )
    report = analyze(file, listed(*rows))
    assert report["total_ns"] == report["by_operator_ns"] == 10_000
    assert sum(op["time_ns"] for op in report["operators"]) == 10_000


def test_e161_a_folder_is_read_and_what_is_no_trace_is_named(tmp_path):
    folder = tmp_path / "profile"
    folder.mkdir()
    for rank in range(3):
        (folder / f"rank{rank}.json").write_text(listed(*GOOD))
    (folder / "rank3.json.gz").write_bytes(gzip.compress(listed(*GOOD).encode()))
    (folder / "stacks.txt").write_text("forward 12\n")
    (folder / "key_averages.txt").write_text("---- ----\n")
    (folder / "config.json").write_text('{"batch": 128}')
    done = opfuse("analyze", "--json", folder)
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 4
    said = done.stderr.decode()
    assert all(name in said for name in ("stacks.txt", "key_averages.txt", "config.json"))
    assert "rank" not in said


def test_e163_two_streams_that_overlap_have_a_busy_share_and_sums(file):
    rows = (
        event("k", 100.5, 90, "kernel", 7, stream=7, correlation=1),
        event("k", 185.5, 10, "kernel", 8, stream=8, correlation=2),
        event("k", 295.5, 10, "kernel", 7, stream=7, correlation=3),
    )
    report = analyze(file, listed(*rows))
    assert report["total_ns"] == 110_000
    assert report["busy_share"] == pytest.approx(105 / 205)


# docs/trace-cases.md

QUIRKS = ("K", 40), ("X", 9), ("N", 15)


def test_every_case_of_the_page_is_there_and_has_a_test():
    root = Path(__file__).resolve().parent.parent
    page = (root / "docs/trace-cases.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [(cells[0], cells[-1]) for cells in rows if re.fullmatch(r"[KXN]?\d+", cells[0])]
    numbers = [number for number, _ in rows]
    in_a = "6 7 13 21 23 25 27 28 30 32 34 36 37 39 41 42 44 45 47 48 50 52 53 55 56"
    in_d = "20 129 130 135 139 141 143 144 146 147 148 150"
    in_e = "151 152 154 157 158 160 161 163 164"
    for cases in (
        in_a,
        in_d,
        in_e,
        *(" ".join(f"{k}{i + 1}" for i in range(n)) for k, n in QUIRKS),
    ):
        at = numbers.index(cases.split()[0])
        assert numbers[at : at + len(cases.split())] == cases.split()
    in_cpp = {}
    for source in root.glob("opfuse/**/*_test.cc"):
        text = source.read_text()
        for suite, name in re.findall(r"TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text):
            in_cpp[f"{suite}.{name}"] = text
    for number, test in rows:
        file, _, name = test.partition("::")
        test, _, row = test.partition(": ")
        if test.startswith("not covered"):
            continue
        if name:
            source = (root / "test" / f"{file}.py").read_text()
            assert re.search(rf"(?m)^def {name}\b", source), (number, test)
        else:
            assert test in in_cpp and (not row or f'"{row}"' in in_cpp[test]), (number, test, row)
