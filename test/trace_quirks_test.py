"""What profilers write besides what their formats say, one test each: docs/trace-cases.md lists the
quirks, and which of them the C++ tests show."""

import json
from pathlib import Path

import pytest
from trace_helpers import DAMAGED, analyze, event, listed, losses, printed, shown

ONE = {"Input Dims": [[128, 4096]], "Input type": ["float"]}
TWO = {"Input Dims": [[128, 4096]] * 2, "Input type": ["float"] * 2}


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "trace.json"


def launched(name: str, number: int, ts: float, kernel: float, dur: float, **more) -> list[dict]:
    """An operator at `ts`, its launch, and its kernel at `kernel`."""
    call = event("cudaLaunchKernel", ts + 1, 2, "cuda_runtime", correlation=number)
    device = {"stream": 7, "device": 0, "correlation": number}
    return [
        event(name, ts, 5, **more),
        call,
        event(f"k{number}", kernel, dur, "kernel", 7, **device),
    ]


def times(report: dict) -> dict[str, int]:
    """Time by operator, without overloads."""
    return {op["name"].split(".")[1]: op["time_ns"] for op in report["operators"]}


# Chrome traces of PyTorch's profiler


def test_what_stands_behind_the_events_is_read_as_what_stands_before(file):
    head = '"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "V100"}]'
    events = listed(event("aten::mul", 1.5, 2))[1:-1]
    for text in (f"{{{head}, {events}}}", f"{{{events}, {head}}}"):
        report = analyze(file, text)
        assert report["device"] == "V100" and report["events"] == 1 and losses(report) == {}


def test_begins_and_ends_are_paired_and_other_phases_are_no_work(file):
    other = [
        {"ph": phase, "name": "other", "cat": "c", "id": 1, "pid": 1, "tid": 1, "ts": 3.5}
        for phase in "bneIPNODCRcSTpFst"
    ]
    pair = {"name": "aten::mul", "cat": "cpu_op", "pid": 1, "tid": 1}
    report = analyze(
        file, listed({"ph": "B", "ts": 1.5, **pair}, *other, {"ph": "E", "ts": 5.5, **pair})
    )
    assert times(report) == {"mul": 4000} and report["total_ns"] == 4000
    assert losses(report) == {"PhaseUnknown": 12, "FlowUnpaired": 1}


def test_lists_of_tensors_have_the_shapes_of_their_elements(file):
    """cat takes a list inside the list: its result is the sigmoid's argument by its shape."""
    cat = {"Input Dims": [[[128, 1024], [128, 3072]], []], "Input type": ["TensorList", "Scalar"]}
    cat["Concrete Inputs"] = ["", "1"]
    rows = event("aten::cat", 1.5, 5, **cat), event("aten::sigmoid", 9.5, 5, **ONE)
    report = analyze(file, listed(*rows, event("aten::mul", 19.5, 5, **TWO)))
    assert [f["rule"] for f in report["findings"]] == ["silu"]
    assert report["findings"][0]["shapes"] == "f32[128,4096]"


def test_spans_overhead_and_texts_as_process_are_no_work(file):
    rows = [
        event("PyTorch Profiler (0)", 0.5, 900, "Trace", "PyTorch Profiler"),
        event("Record Window End", 2, 0, "", "Traces"),
        event("Activity Buffer Request", 2.5, 400, "overhead"),
        event("aten::mul", 3.5, 2),
    ]
    rows[0]["pid"], rows[1]["pid"], rows[2]["pid"] = "Spans", "Traces", -1
    rows[1] |= {"ph": "i", "s": "g"}
    report = analyze(file, listed(*rows))
    assert times(report) == {"mul": 2000} and report["span_ns"] == 2000


def test_a_window_that_ends_in_the_far_future_stretches_nothing(file):
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "Traces", "tid": "", "ts": 9e9}
    report = analyze(file, listed(event("aten::mul", 1.5, 2), end))
    assert report["span_ns"] == 2000 and losses(report) == {"WindowEndFar": 1}


def test_a_process_with_the_number_of_its_device_is_two_places(file):
    """Operators and kernels on pid 0, tid 7: the kernel is not nested in the operator's thread."""
    rows = launched("aten::mul", 1, 10.5, 12.5, 400)
    for row in rows:
        row["pid"], row["tid"] = 0, 7
    report = analyze(file, listed(*rows))
    assert times(report) == {"mul": 400_000} and losses(report) == {}


def test_frames_of_python_may_have_no_parent_and_name_the_function(file):
    def frame(name: str, ts: float, dur: float, number: int, parent) -> dict:
        ids = {"Python id": number, "Python parent id": parent, "Python module id": number}
        return event(name, ts, dur, "python_function", **ids)

    rows = [
        frame("nn.Module: Swish_3", 0.5, 90, 1, None),
        frame("model.py(17): forward", 1.5, 80, 2, 1),
        frame("<built-in method sigmoid of type object at 0x7f>", 2.5, 20, 3, 2),
        event("aten::sigmoid", 3.5, 10, **ONE),
        event("aten::mul", 30.5, 10, **TWO),
    ]
    (finding,) = analyze(file, listed(*rows))["findings"]
    assert (finding["module"], finding["source"]) == ("Swish", "model.py:17 forward")


def test_arrows_without_a_kernel_are_no_loss(file):
    """Calls that launch nothing end an arrow that nothing begins; the correlation decides."""
    arrow = {"cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7}
    arrows = [
        {"ph": "f", "id": 77, "ts": 3.5, "bp": "e", **arrow},
        {"ph": "s", "id": 1, "ts": 90.5, **arrow},
    ]
    report = analyze(file, listed(*launched("aten::mul", 1, 10.5, 20.5, 4), *arrows))
    assert times(report) == {"mul": 4000} and report["orphan_kernels"] == 0
    assert losses(report) == {"FlowUnpaired": 2}


def test_kernels_are_joined_by_time_where_the_launch_has_no_external_id(file):
    rows = launched("aten::mul", 1, 10.5, 20.5, 4) + launched("aten::add", 2, 30.5, 40.5, 6)
    rows[4]["args"]["External id"] = 0
    report = analyze(file, listed(*rows))
    assert times(report) == {"mul": 4000, "add": 6000}


def test_an_external_id_joins_where_the_launch_is_not_in_the_file(file):
    rows = launched("aten::mul", 1, 10.5, 20.5, 4)
    rows[0]["args"]["External id"] = rows[2]["args"]["External id"] = 55
    report = analyze(file, listed(rows[0], rows[2]))
    assert times(report) == {"mul": 4000} and report["orphan_kernels"] == 0


def test_times_may_be_relative_to_a_base_and_keep_their_nanoseconds(file):
    base = '"baseTimeNanoseconds": 1726000000000000000'
    near = listed(event("aten::mul", 4127.301, 2.049), event("aten::add", 4129.351, 1.001))
    far = near.replace("4127.", "1732107142997066.").replace("4129.", "1732107142997068.")
    for text in (f"{{{base}, {near[1:]}", far):
        report = analyze(file, text)
        assert times(report) == {"mul": 2049, "add": 1001} and report["span_ns"] == 3051


def test_kernels_that_overlap_on_one_stream_count_their_time_once(file):
    """Programmatic dependent launches begin before the one before them ends."""
    rows = launched("aten::mul", 1, 10.5, 100.5, 10) + launched("aten::add", 2, 30.5, 106.5, 10)
    rows += launched("aten::sub", 3, 50.5, 126.5, 10)
    report = analyze(file, listed(*rows))
    assert times(report) == {"mul": 6000, "add": 10000, "sub": 10000}
    assert report["busy_share"] == pytest.approx(26 / 36)
    assert losses(report) == {"KernelOverlap": 1}
    assert ("k1", 100.5, 10.0) in shown(file)  # the slice is what the file says


def test_a_duration_that_covers_the_kernels_behind_it_is_told(file):
    """ROCm: a kernel of 2 seconds on a stream whose next ones begin inside of it."""
    rows = launched("aten::mul", 1, 10.5, 100.5, 2_000_000)
    for i in range(2, 9):
        rows += launched("aten::add", i, 20.5 + 10 * i, 100.5 + 10 * i, 5)
    report = analyze(file, listed(*rows))
    assert losses(report) == {"KernelOverlap": 1}
    assert times(report) == {"mul": 20_000, "add": 35_000}
    assert 0 < report["busy_share"] <= 1


def test_kernels_of_no_length_divide_nothing_by_zero(file):
    rows = []
    for i in range(6):
        more = [("aten::mm", TWO), ("aten::sigmoid", ONE), ("aten::mul", TWO)][i % 3]
        rows += launched(more[0], i + 1, 10.5 + 10 * i, 100.5 + 10 * i, 0, **more[1])
    report = analyze(file, listed(*rows))
    assert report["findings"][0]["rule"] == "silu" and report["kernels"] == 6
    assert report["findings"][0]["now_ns"] == 0


def test_a_step_that_its_wait_stretches_over_the_next_takes_its_own_operators(file):
    """Steps that overlap: an operator belongs to the one that is asked for, by its start."""
    rows = [
        event("ProfilerStep#1", 0.5, 60, "user_annotation"),
        event("aten::mul", 5.5, 4),
        event("ProfilerStep#2", 40.5, 60, "user_annotation"),
        event("aten::add", 70.5, 6),
    ]
    report = analyze(file, listed(*rows))
    assert report["steps"] == [1, 2] and times(report) == {"mul": 4000, "add": 6000}
    assert losses(report) == {"CrossingSlices": 1}


def test_ranks_merged_into_one_file_keep_their_kernels(file):
    """Both ranks count correlations and external ids from 1: each kernel stays with its rank."""
    first = launched("aten::mul", 1, 10.5, 40.5, 4)
    second = launched("aten::add", 1, 10.7, 40.9, 6)
    for row in second:
        row["pid"] = 2 if row["cat"] != "kernel" else 1
    second[2]["args"]["device"] = 1
    first[2]["pid"] = 0
    for order in (first + second, second + first):
        report = analyze(file, listed(*order))
        assert times(report) == {"mul": 4000, "add": 6000}
        assert losses(report) == {"CorrelationShared": 2}


def test_kernels_from_before_the_window_are_not_joined_and_told(file):
    before = event("k", 5.5, 30, "kernel", 7, correlation=99, stream=7, device=0)
    report = analyze(file, listed(before, *launched("aten::mul", 1, 10.5, 40.5, 4)))
    assert report["orphan_kernels"] == 1 and report["orphan_ns"] == 30_000
    assert report["by_kernel_ns"] == 34_000 and times(report) == {"mul": 4000}


def test_an_extension_without_operators_leaves_its_kernels_not_joined(file):
    """A launch from Python alone: the kernel is in the sum of the device, in no operator's."""
    frame = event("ext.py(3): run", 20.5, 20, "python_function", **{"Python id": 1})
    launch = event("cudaLaunchKernel", 25.5, 2, "cuda_runtime", correlation=9)
    kernel = event("ext_kernel", 50.5, 8, "kernel", 7, correlation=9, stream=7, device=0)
    report = analyze(file, listed(*launched("aten::mul", 1, 10.5, 40.5, 4), frame, launch, kernel))
    assert report["by_operator_ns"] == 4000 and report["by_kernel_ns"] == 12_000
    assert report["orphan_kernels"] == 0
    assert "operators 4.00 us + not joined 8.00 us = device work 12.0 us" in printed(file)


def test_kernels_of_triton_are_operators_that_no_rule_reads(file):
    """A compiled kernel between sigmoid and mul may have written either: its time is its own."""
    rows = launched("aten::sigmoid", 1, 10.5, 100.5, 5, **ONE)
    rows += launched("triton_poi_fused_add_0", 2, 20.5, 110.5, 7, **TWO)
    rows += launched("aten::mul", 3, 30.5, 120.5, 6, **TWO)
    report = analyze(file, listed(*rows))
    assert report["by_operator_ns"] == report["by_kernel_ns"] == 18_000
    assert [op["name"] for op in report["fused"]] == ["triton_poi_fused_add_0"]


def test_without_frames_the_flag_that_was_missing_is_named(file):
    rows = event("aten::sigmoid", 1.5, 5, **ONE), event("aten::mul", 9.5, 5, **TWO)
    advice = " ".join(analyze(file, listed(*rows))["advice"])
    assert "with_stack=True" in advice and "profile_memory=True" in advice
    bare = event("aten::sigmoid", 1.5, 5), event("aten::mul", 9.5, 5)
    assert "record_shapes=True" in " ".join(analyze(file, listed(*bare))["advice"])


def test_secrets_of_a_trace_reach_no_report(file):
    token = "ghp_" + "aB3dE5gH7jK9" * 3
    rows = [
        event(f"model.py(3): forward --api-key={token}", 0.5, 50, "python_function"),
        event("aten::sigmoid", 1.5, 5, **ONE),
        event("aten::mul", 9.5, 5, **TWO),
    ]
    text = f'{{"env": {{"HF_TOKEN": "{token}"}}, {listed(*rows)[1:]}'
    report = analyze(file, text)
    assert [f["rule"] for f in report["findings"]] == ["silu"]
    assert token not in json.dumps(report) and token not in printed(file)


# Execution traces


def node(number: int, name: str, inputs=(), outputs=(), schema: str = "", **attrs) -> dict:
    """A nested node; tensors are ids, all of them f32[4,8] of their own storage."""

    def side(ids) -> dict:
        values = [[i, i + 1, 0, 32, 4, "cuda:0"] if isinstance(i, int) else i for i in ids]
        types = ["Tensor(float)" if isinstance(i, int) else "Double" for i in ids]
        shapes = [[4, 8] if isinstance(i, int) else [] for i in ids]
        return {"values": values, "shapes": shapes, "types": types}

    attrs = {"tid": 1, "op_schema": schema, **attrs}
    listed_attrs = [{"name": k, "type": "string", "value": v} for k, v in attrs.items()]
    ends = {"inputs": side(inputs), "outputs": side(outputs)}
    return {"id": number, "name": name, "ctrl_deps": 1, **ends, "attrs": listed_attrs}


SIGMOID = "aten::sigmoid(Tensor self) -> Tensor"
MUL = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"


def execution(*nodes: dict, schema: str = "1.1.1-chakra.0.0.4") -> str:
    return json.dumps({"schema": schema, "pid": 1, "nodes": list(nodes)})


@pytest.mark.parametrize("schema", ["1.0.2-chakra.0.0.4", "1.1.1-chakra.0.0.4", "9.9-other"])
def test_execution_traces_are_read_by_their_members_whatever_their_version(file, schema):
    swish = node(2, "aten::sigmoid", [10], [20], SIGMOID), node(3, "aten::mul", [10, 20], [30], MUL)
    report = analyze(file, execution(*swish, schema=schema))
    assert [(f["rule"], f["proof"]) for f in report["findings"]] == [("silu", "P3")]


def test_numbers_of_execution_traces_may_be_words(file):
    clamp = "aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor"
    rows = (
        node(2, "aten::clamp", [10, "-inf", "inf"], [20], clamp),
        node(3, "aten::sigmoid", [20], [30], SIGMOID),
        node(4, "aten::mul", [20, 30], [40], MUL),
    )
    report = analyze(file, execution(*rows))
    assert losses(report) == {} and [f["rule"] for f in report["findings"]] == ["silu"]


def test_nodes_of_triton_without_outputs_may_have_written_any_argument(file):
    """The kernel reads x and may write s between sigmoid and mul: no Swish is made of them."""
    triton = node(3, "triton_poi_fused_0", [10, 20], [], kernel_backend="triton")
    rows = (
        node(2, "aten::sigmoid", [10], [20], SIGMOID),
        triton,
        node(4, "aten::mul", [10, 20], [30], MUL),
    )
    report = analyze(file, execution(*rows))
    assert [f for f in report["findings"] if f["proof"] == "P3"] == []


def test_a_result_with_the_id_of_an_argument_is_in_place_only_where_the_schema_says_so(file):
    mul_ = "aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)"
    rows = (
        node(2, "aten::sigmoid", [10], [20], SIGMOID),
        node(3, "aten::mul_", [10, 40], [10], mul_),
        node(4, "aten::mul", [10, 20], [30], MUL),
    )
    assert analyze(file, execution(*rows))["findings"] == []  # x is another value by then
    reused = (
        node(2, "aten::sigmoid", [10], [20], SIGMOID),
        node(3, "aten::mul", [10, 20], [10], MUL),  # a new value at the address of x
        node(4, "aten::sigmoid", [10], [20], SIGMOID),
        node(5, "aten::mul", [10, 20], [30], MUL),
    )
    assert [f["calls"] for f in analyze(file, execution(*reused))["findings"]] == [2]


# Ascend


def host_row(name: str, ts: str, dur: float, tid: int = 7, **args) -> dict:
    args = {"Sequence number": -1, "Fwd thread id": 0, **args}
    return {
        "ph": "X", "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "cat": "cpu_op",
        "args": args,
    }  # fmt: skip


def npu_kernel(name: str, ts: str, dur: float, from_ts: str, tid: int = 7) -> list[dict]:
    """A kernel and its arrow from the host; the arrow's id is the kernel's start in ns."""
    arrow = {"bp": "e", "name": "torch_to_npu", "id": int(ts.replace(".", "")), "cat": "async_npu"}
    return [
        {"ph": "s", "pid": 7, "tid": tid, "ts": from_ts, **arrow},
        {"ph": "f", "pid": 800, "tid": 3, "ts": ts, **arrow},
        {"ph": "X", "name": name, "pid": 800, "tid": 3, "ts": ts, "dur": dur, "args": {}},
    ]


PROCESSES = [
    {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for pid, name in ((7, "Python"), (800, "Ascend Hardware"), (702, "CANN"))
]
EPOCH = "17041615114203"


def test_lists_of_an_ascend_timeline_are_lines_of_one_text(file):
    line = ";\r\n"
    shapes = {"Input Dims": "128,16,56,56", "Input type": "c10::Half"}
    pair = {k: v + line + v for k, v in shapes.items()}
    stack = line.join(["utils.py(67): forward", "model.py(104): forward"])
    rows = [
        host_row("aten::sigmoid", EPOCH + "10.001", 5, **shapes, **{"Call stack": stack}),
        host_row("aten::mul", EPOCH + "20.001", 5, **pair, **{"Call stack": stack}),
        *npu_kernel("aclnnSigmoid", EPOCH + "40.001", 30, EPOCH + "12.001"),
        *npu_kernel("aclnnMul", EPOCH + "80.001", 40, EPOCH + "22.001"),
    ]
    report = analyze(file, json.dumps(rows + PROCESSES))
    (finding,) = report["findings"]
    assert finding["rule"] == "silu" and finding["shapes"] == "f16[128,16,56,56]"
    assert finding["source"] == "utils.py:67 forward" and finding["now_ns"] == 70_000


def test_a_sequence_number_of_minus_one_is_none(file):
    rows = [
        host_row("aten::mul", EPOCH + "10.001", 5),
        host_row("MulBackward0", EPOCH + "20.001", 5),
    ]
    assert losses(analyze(file, json.dumps(rows + PROCESSES))) == {}


def test_forward_and_backward_without_an_arrow_are_paired_by_their_number(file):
    """fwdbwd arrows are left out where both ends share a thread."""
    rows = [
        host_row("SwishImplementation", EPOCH + "10.001", 5, **{"Sequence number": 4}),
        host_row("SwishImplementationBackward", EPOCH + "20.001", 5, **{"Sequence number": 4}),
        host_row("AddBackward0", EPOCH + "30.001", 5, **{"Sequence number": 5}),
    ]
    assert losses(analyze(file, json.dumps(rows + PROCESSES))) == {"BackwardUnpaired": 1}


def test_a_kernel_launched_by_the_thread_of_the_queue_belongs_to_its_operator(file):
    queue = {"name": "Dequeue@aclnnMul", "cat": "dequeue", "ph": "X", "pid": 7, "tid": 9}
    rows = [
        host_row("aten::mul", EPOCH + "10.001", 5),
        host_row("aten::add", EPOCH + "16.001", 9),
        {**queue, "ts": EPOCH + "17.001", "dur": 4, "args": {"correlation_id": 1}},
        *npu_kernel("aclnnMul", EPOCH + "40.001", 30, EPOCH + "12.001"),
    ]
    report = analyze(file, json.dumps(rows + PROCESSES))
    assert times(report) == {"mul": 30_000, "add": 0} and report["by_kernel_ns"] == 30_000


def test_calls_of_cann_are_neither_operators_nor_kernels(file):
    call = {"ph": "X", "name": "AscendCL@aclrtSynchronizeStream", "pid": 702, "tid": 7}
    rows = [
        host_row("aten::mul", EPOCH + "10.001", 5),
        {**call, "ts": EPOCH + "11.001", "dur": 3, "args": {"connection_id": 0}},
        *npu_kernel("aclnnMul", EPOCH + "40.001", 30, EPOCH + "12.001"),
    ]
    report = analyze(file, json.dumps(rows + PROCESSES))
    assert times(report) == {"mul": 30_000} and report["kernels"] == 1


def test_process_ids_beyond_32_bits_stay_apart(file):
    """pid is shifted and joined with a number: above 2^32."""
    low, high = 18_795_008_800, 18_795_008_800 + (1 << 32)
    rows, processes = [], list(PROCESSES)
    for i, pid in enumerate((low, high)):
        rows += npu_kernel("aclnnMul", f"{EPOCH}{40 + 20 * i}.001", 10, EPOCH + "12.001")
        rows[-1]["pid"] = rows[-2]["pid"] = pid
        processes.append({**PROCESSES[1], "pid": pid})
    report = analyze(
        file, json.dumps([host_row("aten::mul", EPOCH + "10.001", 5), *rows, *processes])
    )
    assert times(report) == {"mul": 20_000}


def test_the_head_of_a_timeline_may_be_lost(file):
    lone = npu_kernel("aclnnMul", EPOCH + "05.001", 3, EPOCH + "01.001")[1:]
    rows = [
        *lone,
        host_row("aten::mul", EPOCH + "10.001", 5),
        *npu_kernel("aclnnMul", EPOCH + "40.001", 30, EPOCH + "12.001"),
    ]
    report = analyze(file, json.dumps(rows + PROCESSES))
    assert report["orphan_kernels"] == 1 and report["orphan_ns"] == 3000


COLUMNS = "Step Id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us)," + (
    "Duration(us),Wait Time(us),Input Shapes,Input Data Types,Output Shapes,Output Data Types\n"
)
SHAPE = '"""128,16"""'


def test_start_times_in_quotes_with_a_tab_are_those_without(file):
    plain = f"1,9,1,2,s,Sigmoid,AI_VECTOR_CORE,{EPOCH}10.001,30,0,{SHAPE},FLOAT,{SHAPE},FLOAT\n"
    tabbed = plain.replace(EPOCH + "10.001", f'"{EPOCH}10.001\t"')
    reports = [analyze(file, COLUMNS + row) for row in (plain, tabbed)]
    assert reports[0] | {"bytes": 0} == reports[1] | {"bytes": 0}
    assert reports[0]["by_kernel_ns"] == 30_000 and losses(reports[0]) == {}


def swish_rows(start: str = "1,9,1,2,") -> str:
    two = '"""128,16;128,16"""'
    return (
        f"{start}s,Sigmoid,AI_VECTOR_CORE,{EPOCH}10.001,30,0,{SHAPE},FLOAT,{SHAPE},FLOAT\n"
        f"{start}m,Mul,AI_VECTOR_CORE,{EPOCH}50.001,40,0,{two},FLOAT;FLOAT,{SHAPE},FLOAT\n"
    )


def test_collectives_and_words_for_nothing_stand_between_kernels(file):
    hccl = (
        f"1,9,N/A,N/A,hcom_allReduce__1_0,hcom_allReduce_,HCCL,{EPOCH}30.001,5,0,N/A,N/A,N/A,N/A\n"
    )
    report = analyze(file, COLUMNS + swish_rows() + hccl)
    assert [(f["rule"], f["now_ns"]) for f in report["findings"]] == [("silu", 70_000)]
    assert report["by_kernel_ns"] == 75_000 and losses(report) == {}


def test_columns_are_found_by_their_names(file):
    """Without Step Id and with one more, Device_id; then the names of the older op_summary."""
    swish = swish_rows("")
    moved = COLUMNS.replace("Step Id,Model ID,Task ID,Stream ID,", "")
    more = swish.replace("s,Sigmoid", "0,s,Sigmoid").replace("m,Mul", "0,m,Mul")
    old = moved.replace("Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us)", "")
    old = "Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Task Wait Time(us)" + old
    for text in (moved + swish, "Device_id," + moved + more, old + swish):
        report = analyze(file, text)
        assert [(f["rule"], f["now_ns"]) for f in report["findings"]] == [("silu", 70_000)], text


def test_rows_with_cells_missing_are_left_out_and_located(file):
    report = analyze(file, COLUMNS + "1,9,1,2,x,Mul\n" + swish_rows(), DAMAGED)
    assert losses(report) == {"RowUnreadable": 1} and report["events"] == 2
    assert report["losses"][0]["first_byte"] == len(COLUMNS)


def test_operators_of_a_table_have_shapes_and_order_and_no_start(file):
    text = (
        "Name,Input Shapes,Call Stack,Host Self Duration(us),Host Total Duration(us),"
        "Device Self Duration(us),Device Total Duration(us)\n"
        'aten::sigmoid,"128,16","utils.py(67): forward",5,5,30,30\n'
        'aten::mul,"128,16;\r\n128,16","utils.py(67): forward",5,5,40,40\n'
    )
    report = analyze(file, text)
    assert report["format"] == "ascend operators" and report["step"] is None
    assert times(report) == {"sigmoid": 30_000, "mul": 40_000}
    assert losses(report) == {"TimesInOrder": 1}
