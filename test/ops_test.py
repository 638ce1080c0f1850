"""Every operator on every case of opfuse/ops/NAME/NAME.json: values and gradients against fp64, and
what torch may do with an operator.
"""

import copy
import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from ops_helpers import as_tuple, cotangents, differentiable, raised, run, tensors, trained

from opfuse import cases, compositions, functional, library

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = cases.read_folder(ROOT / "opfuse" / "ops")
ALL = [case for operator in OPERATORS for case in operator.cases]
FIRST = [operator.cases[0] for operator in OPERATORS]
LOW = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float64: 2**-53}

each_case = pytest.mark.parametrize("case", ALL, ids=lambda case: case.title)
each_operator = pytest.mark.parametrize("case", FIRST, ids=lambda case: case.operator)


BEST = library.isa()
LEVELS = ["generic", "avx2", "avx512", "avx512bf16"]
# Every dtype on the best level; on the others the two that have loops of their own most often.
RUNS = [(BEST, dtype) for dtype in cases.DTYPES]
RUNS += [(level, dtype) for level in LEVELS if level != BEST for dtype in ("f32", "bf16")]


@contextmanager
def held_to(level):
    """The operators on one instruction set level."""
    try:
        library.use_isa(level)
    except ValueError as reason:
        pytest.skip(str(reason))
    try:
        yield
    finally:
        library.use_isa()


each_dtype = pytest.mark.parametrize("dtype", cases.DTYPES.values(), ids=cases.DTYPES.keys())


def fused(case):
    return getattr(functional, case.operator)


def composed(case):
    return getattr(compositions, case.operator)


@pytest.mark.parametrize("level, dtype", RUNS, ids=str)
@each_case
def test_values_and_gradients_are_as_accurate_as_the_small_operators(case, level, dtype):
    dtype = cases.DTYPES[dtype]
    arguments = case.arguments(dtype)
    with held_to(level):
        new = run(fused(case), arguments)
    old = run(composed(case), arguments)
    truth = run(composed(case), raised(arguments))
    for name, value in new.items():
        assert value.dtype == old[name].dtype, name
        assert value.shape == old[name].shape, name
        scale = max(1.0, truth[name].abs().max().item()) if truth[name].numel() else 1.0
        error_new, error_old = (value - truth[name]).abs(), (old[name] - truth[name]).abs()
        bound = 2 * error_old.amax() if error_old.numel() else 0.0
        # hardsigmoid's own 1/6 is an f32 in every dtype of ATen.
        extra = 1e-7 if case.values.get("hard") else 0.0
        # In fp64 both sides round, and sums are taken in another order.
        ulps = 64 if dtype == torch.float64 else 8
        # Sums over results of a convolution: terms that are themselves sums, and cancel.
        if case.operator == "batch_norm_act_depthwise" and name != "result 0":
            ulps = max(ulps, 32)
        assert (error_new <= bound + (ulps * LOW[dtype] + extra) * scale).all(), name


@each_case
def test_strides_are_those_of_the_small_operators(case):
    arguments = case.arguments(torch.float32)
    new, old = as_tuple(fused(case)(**arguments)), as_tuple(composed(case)(**arguments))
    assert [r.stride() for r in new] == [r.stride() for r in old]


def permuted(tensor):
    """The same values, with the dimensions but the last two reversed in memory."""
    if tensor.dim() < 3:
        return tensor.detach()
    order = [*reversed(range(tensor.dim() - 1)), tensor.dim() - 1]
    back = [order.index(i) for i in range(tensor.dim())]
    return tensor.detach().permute(order).contiguous().permute(back)


def gapped(tensor):
    """The same values in a wider tensor, as halves of one tensor have it."""
    wide = torch.empty(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    wide[..., : tensor.shape[-1]] = tensor.detach()
    return wide[..., : tensor.shape[-1]]


def misaligned(tensor):
    """The same values one element past an aligned address."""
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:]
    return flat.view(tensor.shape).copy_(tensor.detach())


def reversed_strides(tensor):
    return tensor.detach().T.contiguous().T if tensor.dim() == 2 else tensor.detach()


@pytest.mark.parametrize(
    "change, dtype",
    [
        (permuted, torch.float32),
        (gapped, torch.float32),
        (misaligned, torch.float32),
        (misaligned, torch.bfloat16),
        (reversed_strides, torch.float32),
    ],
)
@each_case
def test_any_layout_gives_the_same_values_and_the_strides_of_eager(case, change, dtype):
    plain = case.arguments(dtype)
    if not all(t.numel() and t.dim() for t in tensors(plain).values()):
        pytest.skip("no elements, no layout")
    changed = {
        k: change(v).requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v
        for k, v in plain.items()
    }
    new, old = run(fused(case), changed), run(fused(case), plain)
    for name in new:
        torch.testing.assert_close(new[name], old[name], rtol=16 * LOW[dtype], atol=64 * LOW[dtype])
    strides = [r.stride() for r in as_tuple(fused(case)(**changed))]
    assert strides == [r.stride() for r in as_tuple(composed(case)(**changed))]


INF = float("inf")
GATED = ("silu_mul", "gelu_mul", "gelu_tanh_mul")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-3, -8.0, 100.0, -100.0, INF, -INF, float("nan")]


@each_dtype
@each_case
def test_nan_and_infinity_stand_where_the_small_operators_have_them(case, dtype):
    arguments = case.arguments(dtype)
    # In f16 the small operators overflow on large products and sigmoid(-20) is 0; ours stay in f32.
    large = [] if dtype == torch.float16 else [3e4, -3e4, -20.0]
    # gelu(infinity) is NaN in eager's vector loop and infinite in its scalar one, as in ours.
    special = [v for v in SPECIAL if v != INF or case.operator != "gelu_mul"]
    values = torch.tensor(special + large, dtype=torch.float64).to(dtype)
    with torch.no_grad():
        for index, tensor in enumerate(tensors(arguments).values()):
            if index == 0 or case.operator in (*GATED, "sigmoid_gate"):
                flat = torch.arange(tensor.numel()) * (index + 1)
                tensor.copy_(values[flat % len(values)].view(tensor.shape))
    new, old = run(fused(case), arguments), run(composed(case), arguments)
    for name, value in new.items():
        if name.startswith("result"):
            assert torch.equal(value.isnan(), old[name].isnan()), name
            assert torch.equal(value.isinf(), old[name].isinf()), name
        # The gradient of NaN through hardswish differs between eager's own vector and scalar loops;
        # sums of infinities of both signs are NaN in one order and infinite in another.
        elif case.values.get("activation") != "hardswish":
            assert torch.equal(value.isfinite(), old[name].isfinite()), name


@each_case
def test_expanded_gradients_and_partly_wanted_gradients(case):
    arguments = case.arguments(torch.float64)
    sum(r.sum() for r in differentiable(as_tuple(fused(case)(**arguments)))).backward()
    every = {k: v.grad.clone() for k, v in trained(arguments).items()}
    for alone in every:
        only = case.arguments(torch.float64)
        for name, tensor in trained(only).items():
            tensor.requires_grad_(name == alone)
        sum(r.sum() for r in differentiable(as_tuple(fused(case)(**only)))).backward()
        torch.testing.assert_close(only[alone].grad, every[alone])
        assert all(v.grad is None for k, v in tensors(only).items() if k != alone)


@each_case
def test_inputs_and_cotangents_are_not_written(case):
    arguments = case.arguments(torch.float32)
    before = {k: v.detach().clone() for k, v in tensors(arguments).items()}
    versions = {k: v._version for k, v in tensors(arguments).items()}
    results = differentiable(as_tuple(fused(case)(**arguments)))
    given = cotangents(results)
    kept = [g.clone() for g in given]
    torch.autograd.grad(results, list(trained(arguments).values()), given)
    assert all(torch.equal(v, before[k]) for k, v in tensors(arguments).items())
    assert {k: v._version for k, v in tensors(arguments).items()} == versions
    assert all(torch.equal(a, b) for a, b in zip(given, kept))


@each_case
def test_gradients_and_second_gradients_agree_with_finite_differences(case):
    arguments = case.arguments(torch.float64)
    wanted = trained(arguments)
    if sum(t.numel() for t in wanted.values()) > 700 or not all(t.numel() for t in wanted.values()):
        pytest.skip("too many elements, or none")

    def function(*values):
        return fused(case)(**{**arguments, **dict(zip(wanted, values))})

    values = tuple(wanted.values())
    assert torch.autograd.gradcheck(function, values, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, values, fast_mode=True)


def dispatcher_arguments(case, given):
    """The arguments of torch.ops.opfuse.NAME from those of the function of that name, which has the
    signature of what it replaces: F.batch_norm, F.pad, layers.
    """
    names = {"reduce_weight": "reduce", "expand_weight": "expand"}
    given = {names.get(k, k): v for k, v in given.items()}
    if "training" in given:
        training = given.pop("training")
        mean, var = (given.pop(f"running_{k}", None) for k in ("mean", "var"))
        given.pop("momentum", None)
        given |= {"mean": None if training else mean, "var": None if training else var}
    if case.operator == "dropout_add_layer_norm":
        given |= {"noise": None, "eps": given.get("eps", 1e-5)}
    if "padding" in given:
        for name, count in (("stride", 2), ("padding", 4)):
            given[name] = [given[name]] * count if isinstance(given[name], int) else given[name]
    return given


@each_operator
def test_the_dispatcher_finds_everything_that_torch_asks_for(case):
    operator = getattr(torch.ops.opfuse, case.operator).default
    for dtype in (torch.float32, torch.bfloat16):
        given = case.arguments(dtype)
        torch.library.opcheck(operator, (), dispatcher_arguments(case, given))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@each_operator
def test_compiles_as_one_graph(case, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(fused(case), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    arguments = case.arguments(torch.float32)
    new, old = run(compiled, arguments), run(fused(case), arguments)
    assert all(torch.equal(new[name], old[name]) for name in old)


@each_operator
def test_transforms_of_torch_func_agree_with_the_small_operators(case):
    arguments = case.arguments(torch.float64, requires_grad=False)
    names = [k for k in tensors(arguments) if k not in case.constant]

    def loss(function, *values):
        results = as_tuple(function(**{**arguments, **dict(zip(names, values))}))
        return sum((r**2).sum() for r in results)

    values = [arguments[name] for name in names]
    everything = tuple(range(len(values)))
    new = torch.func.grad(partial(loss, fused(case)), everything)(*values)
    old = torch.func.grad(partial(loss, composed(case)), everything)(*values)
    torch.testing.assert_close(new, old)
    batch = [torch.stack([v, 2 * v, -v]) for v in values]
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(partial(loss, fused(case)), everything))(*batch),
        torch.func.vmap(torch.func.grad(partial(loss, composed(case)), everything))(*batch),
    )
    tangents = tuple(torch.ones_like(v) for v in values)
    new = torch.func.jvp(partial(loss, fused(case)), tuple(values), tangents)
    torch.testing.assert_close(
        new, torch.func.jvp(partial(loss, composed(case)), tuple(values), tangents)
    )


@each_operator
def test_under_autocast_dtypes_are_those_of_the_small_operators(case):
    for dtype in (torch.float32, torch.bfloat16):
        arguments = case.arguments(dtype)
        with torch.autocast("cpu", torch.bfloat16):
            new, old = as_tuple(fused(case)(**arguments)), as_tuple(composed(case)(**arguments))
        assert [r.dtype for r in new] == [r.dtype for r in old]


@each_operator
def test_checkpointing_gives_the_same_gradients(case):
    arguments = case.arguments(torch.float32)
    again = partial(torch.utils.checkpoint.checkpoint, fused(case), use_reentrant=False)
    new, old = run(again, arguments), run(fused(case), arguments)
    assert all(torch.equal(new[name], old[name]) for name in old)


@each_operator
def test_exports_and_runs_again(case):
    class Module(torch.nn.Module):
        def forward(self, *values):
            absent = dict.fromkeys(case.shapes)
            return fused(case)(**{**absent, **dict(zip(names, values)), **case.values})

    given = tensors(case.arguments(torch.float32, requires_grad=False))
    names, values = tuple(given), tuple(given.values())
    program = torch.export.export(copy.deepcopy(Module()), values)
    assert any("opfuse" in str(node.target) for node in program.graph.nodes)
    new, old = as_tuple(program.module()(*values)), as_tuple(Module()(*values))
    assert all(torch.equal(a, b) for a, b in zip(new, old))


@each_operator
def test_what_the_kernel_is_not_for_gives_what_the_small_operators_give(case):
    made = case.arguments(torch.float32, requires_grad=False)
    for change in (torch.Tensor.int, partial(torch.Tensor.to, dtype=torch.complex64), "meta"):
        arguments = {
            k: (v.to("meta") if change == "meta" else change(v))
            if isinstance(v, torch.Tensor)
            else v
            for k, v in made.items()
        }
        try:
            old = as_tuple(composed(case)(**arguments))
        except RuntimeError:
            with pytest.raises(RuntimeError):
                fused(case)(**arguments)
            continue
        new = as_tuple(fused(case)(**arguments))
        assert [(r.dtype, r.shape, r.device) for r in new] == [
            (r.dtype, r.shape, r.device) for r in old
        ]


@each_case
def test_one_thread_and_several_give_the_same_bits(case):
    arguments = case.arguments(torch.float32)
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            runs.append(run(fused(case), arguments))
    finally:
        torch.set_num_threads(before)
    for other in runs[1:]:
        assert all(torch.equal(other[name], runs[0][name]) for name in other)


def test_an_unknown_level_is_an_error_that_names_the_levels():
    with pytest.raises(ValueError, match="expected generic, avx2, .*, found 'sse9'"):
        library.use_isa("sse9")


def test_the_environment_chooses_the_level():
    code = "from opfuse import library; print(library.isa())"
    env = {**os.environ, "OPFUSE_ISA": "generic", "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "generic", done.stderr


class Trained(torch.nn.Module):
    """An operator whose trained arguments are parameters."""

    def __init__(self, case, arguments):
        super().__init__()
        self.function, self.rest = fused(case), dict(arguments)
        for name, value in trained(arguments).items():
            self.register_parameter(f"p_{name}", torch.nn.Parameter(value.detach().clone()))
            del self.rest[name]

    def forward(self):
        made = {name[2:]: value for name, value in self.named_parameters()}
        return sum(r.square().sum() for r in as_tuple(self.function(**self.rest, **made)))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """A group of this process alone: all that DistributedDataParallel does to a module is done."""
    store = tmp_path_factory.mktemp("store") / "file"
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@each_operator
def test_trains_in_a_copy_and_under_distributed_data_parallel(case, one_process):
    module = Trained(case, case.arguments(torch.float32))
    others = [
        copy.deepcopy(module),
        torch.nn.parallel.DistributedDataParallel(copy.deepcopy(module)),
    ]
    module().backward()
    for other in others:
        other().backward()
        for ours, theirs in zip(module.parameters(), other.parameters()):
            assert torch.equal(ours.grad, theirs.grad)
