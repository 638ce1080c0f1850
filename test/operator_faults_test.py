"""Faults that fused operators had in public, each on the smallest input that shows it. The table is
in docs/known-faults.md; what every operator is tested for anyway is in ops_test.py.
"""

import pytest
import torch
import torch.nn.functional as F
from ops_helpers import as_tuple, raised, run

from opfuse import compositions, functional

INF, NAN = float("inf"), float("nan")
LOW = (torch.bfloat16, torch.float16)
FLOATING = (torch.float32, torch.float64, *LOW)


def unit(dtype):
    return torch.finfo(dtype).eps / 2


def gradients(y, *inputs):
    return torch.autograd.grad(y.sum(), inputs)


def assert_not_worse(name, arguments, ulps=4):
    """Values and gradients: at most twice the small operators' error, or a few units of the last
    place of each element.
    """
    new = run(getattr(functional, name), arguments)
    old = run(getattr(compositions, name), arguments)
    truth = run(getattr(compositions, name), raised(arguments))
    for key, value in new.items():
        assert value.dtype == old[key].dtype, key
        error, before = (value - truth[key]).abs(), (old[key] - truth[key]).abs()
        limit = 2 * before + ulps * 2 * unit(value.dtype) * truth[key].abs() + 1e-38
        assert (error <= limit).all(), (key, error.max().item(), before.max().item())


@pytest.mark.parametrize("dtype", FLOATING)
def test_b14_squares_of_large_numbers_do_not_overflow(dtype):
    x = torch.full((2, 64), 300.0, dtype=dtype)
    y = functional.rms_norm(x, torch.ones(64, dtype=dtype), 1e-6)
    torch.testing.assert_close(y, torch.ones_like(x), rtol=1e-6, atol=0)


def test_b15_elements_past_2_to_the_31_are_right():
    count = 2**31 + 17
    free = int(next(s for s in open("/proc/meminfo") if s.startswith("MemAvailable")).split()[1])
    if free < 10 << 20:
        pytest.skip(f"needs 10 GiB of free memory, found {free >> 20}")
    x = torch.empty(count, dtype=torch.bfloat16)
    places = [slice(0, 64), slice(count // 2, count // 2 + 64), slice(count - 64, count)]
    for place in places:
        x[place] = torch.linspace(-3, 3, 64)
    y = functional.quick_gelu(x)
    for place in places:
        torch.testing.assert_close(y[place], compositions.quick_gelu(x[place]))


@pytest.mark.parametrize("dtype", FLOATING)
def test_b57_gates_far_from_zero_have_finite_gradients(dtype):
    gate = torch.tensor([100.0, -100.0, 1e4, -1e4], dtype=dtype, requires_grad=True)
    y = functional.silu_mul(gate, torch.ones_like(gate))
    (slope,) = gradients(y, gate)
    assert torch.equal(y.detach()[::2], gate.detach()[::2])
    assert torch.equal(slope[::2], torch.ones_like(slope[::2]))
    assert (y.detach()[1::2].double().abs() < 1e-40).all()
    assert (slope[1::2].double().abs() < 1e-40).all()


def test_b58_silu_of_infinity_is_that_of_the_installed_torch():
    values = [-INF, INF, NAN, -0.0, 0.0]
    for dtype in FLOATING:
        gate = torch.tensor(values, dtype=dtype, requires_grad=True)
        y, want = functional.silu_mul(gate, torch.ones_like(gate)), F.silu(gate)
        torch.testing.assert_close(y, want, equal_nan=True, rtol=0, atol=0)
        torch.testing.assert_close(gradients(y, gate), gradients(want, gate), equal_nan=True)


def test_b60_the_deep_negative_tail_is_not_worse_than_eager():
    gate = torch.linspace(-92, -80, 4001, requires_grad=True)
    assert_not_worse("silu_mul", {"gate": gate, "up": torch.ones(4001)})
    deep = torch.tensor([-709.0, -300.0, -90.0], dtype=torch.float64, requires_grad=True)
    (slope,) = gradients(functional.silu_mul(deep, torch.ones_like(deep)), deep)
    (want,) = gradients(F.silu(deep), deep)
    torch.testing.assert_close(slope, want, rtol=1e-12, atol=0)
    assert slope[0].item() == pytest.approx(-8.6148e-306, rel=1e-4)


@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 3), (2, 5, 3, 4), (2, 5, 3, 2, 2)])
def test_b62_every_rank_that_forward_accepts_has_right_gradients(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    w, b = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    given = {"x": x, "weight": w, "bias": b, "training": True, "activation": "silu"}
    new, old = run(functional.batch_norm_act, given), run(compositions.batch_norm_act, given)
    torch.testing.assert_close(new, old)


def test_b64_the_cotangent_may_be_the_input_itself():
    x = torch.tensor([1.0, 0.0, 0.0, 0.0], requires_grad=True)
    y = functional.rms_norm(x, None, 1e-4)
    (grad,) = torch.autograd.grad(y, x, x.detach())
    torch.testing.assert_close(grad, torch.tensor([0.00079952, 0, 0, 0]), rtol=0, atol=1e-6)
    assert x.detach().tolist() == [1, 0, 0, 0]


def test_b66_the_residual_is_another_name_for_what_is_used_later():
    h, other = torch.randn(3, 8), torch.randn(3, 8)
    residual, before = h, h.clone()
    _, total = functional.add_rms_norm(other, residual, torch.ones(8))
    assert torch.equal(h, before) and torch.equal(total, other + before)
    assert total.data_ptr() not in (h.data_ptr(), other.data_ptr())


# Ours change at pieces of 8192 elements, threads from 8192, 16384 and 32768 elements on, partial
# sums from 64 KiB on, at most 64 of them (opfuse/ops/parts.h, opfuse/ops/simd/pieces.h).
_COUNTS = [n + d for n in (8192, 16384, 32768, 64 * 16384) for d in (-1, 0, 1)]


@pytest.mark.parametrize("rows", [65535, 65536, 65537])
def test_b67_many_rows_are_as_right_as_few(rows):
    x = torch.randn(rows, 3, requires_grad=True)
    assert_close_to_small("rms_norm", {"x": x, "weight": torch.randn(3, requires_grad=True)})
    x = torch.randn(rows, 2, requires_grad=True)
    assert_close_to_small("scale_mask_softmax", {"x": x, "scale": 0.5})


@pytest.mark.parametrize("count", _COUNTS)
def test_b67_both_sides_of_every_threshold_are_right(count):
    gate, up = (torch.randn(count, requires_grad=True) for _ in range(2))
    assert_close_to_small("silu_mul", {"gate": gate, "up": up})
    x = torch.randn(count, 1, requires_grad=True)
    assert_close_to_small("rms_norm", {"x": x, "weight": torch.randn(1, requires_grad=True)})


def assert_close_to_small(name, arguments):
    new = run(getattr(functional, name), arguments)
    truth = run(getattr(compositions, name), raised(arguments))
    for key, value in new.items():
        scale = max(1.0, truth[key].abs().max().item())
        error = (value - truth[key]).abs().max().item()
        # The gradient of a weight is a sum over all rows, of terms of about 1: partial sums in f32.
        terms = next(iter(arguments.values())).shape[0] if key == "gradient of weight" else 0
        assert error <= unit(torch.float32) * (64 * scale + terms), (key, error)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 31, 33, 1024])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_b69_any_alignment_and_any_tail_of_inputs_and_cotangents(length, dtype):
    def off(count):
        return torch.randn(count + 1, dtype=torch.float64).to(dtype)[1:]

    for name, arguments in {
        "silu_mul": {"gate": off(length), "up": off(length)},
        "rms_norm": {"x": off(length), "weight": off(length)},
        "scale_mask_softmax": {"x": off(length), "mask": off(length), "scale": 0.5},
    }.items():
        moved = {
            k: v.requires_grad_(k != "mask") if isinstance(v, torch.Tensor) else v
            for k, v in arguments.items()
        }
        plain = {
            k: v.detach().clone().requires_grad_(v.requires_grad)
            if isinstance(v, torch.Tensor)
            else v
            for k, v in moved.items()
        }
        new = getattr(functional, name)(**moved)
        old = getattr(functional, name)(**plain)
        assert torch.equal(new, old), name
        grad = off(length)
        for a, b in zip(
            torch.autograd.grad(
                new, [v for v in moved.values() if getattr(v, "requires_grad", 0)], grad
            ),
            torch.autograd.grad(
                old, [v for v in plain.values() if getattr(v, "requires_grad", 0)], grad.clone()
            ),
        ):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("name", ["gelu_mul", "gelu_tanh_mul", "silu_mul"])
def test_b71_infinity_gives_one_answer_in_every_layout(name):
    operator = getattr(functional, name)
    for place in (0, 5, 15, 16):
        gate = torch.randn(17)
        gate[place] = INF
        strided = torch.empty(17, 2)[:, 0].copy_(gate)
        for values in (gate, strided, gate.double()):
            y = operator(values, torch.ones_like(values))
            assert y[place] == INF and y.isfinite().sum() == 16


@pytest.mark.parametrize("dtype", LOW)
def test_b73_the_cube_of_tanh_gelu_does_not_overflow(dtype):
    gate = torch.tensor([300.0, -300.0, 41.0], dtype=dtype, requires_grad=True)
    y = functional.gelu_tanh_mul(gate, torch.ones_like(gate))
    assert y.tolist() == [300.0, 0.0, 41.0]
    assert gradients(y, gate)[0].tolist() == [1.0, 0.0, 1.0]


def test_b75_the_negative_tail_of_tanh_gelu_is_not_worse_than_eager():
    gate = torch.linspace(-7, -3, 4001)
    truth = compositions.gelu_tanh_mul(gate.double(), torch.ones(1, dtype=torch.float64))
    error = (functional.gelu_tanh_mul(gate, torch.ones_like(gate)) - truth).abs()
    eager = (compositions.gelu_tanh_mul(gate, torch.ones_like(gate)) - truth).abs()
    # 1 + tanh has an error of half a unit of 1 there, times half of the gate.
    assert (error <= torch.maximum(2 * eager, 2 * gate.abs().double() * unit(torch.float32))).all()


@pytest.mark.parametrize("name", ["gelu_tanh_mul", "gelu_mul", "silu_mul"])
def test_b76_every_number_of_bfloat16(name):
    gate = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    y = getattr(functional, name)(gate, torch.ones_like(gate))
    truth = getattr(compositions, name)(gate.double(), torch.ones(1, dtype=torch.float64))
    finite = gate.isfinite()
    assert y[finite].isfinite().all() and y[gate.isnan()].isnan().all()
    error = (y[finite].double() - truth[finite]).abs()
    assert (error <= 2 * unit(torch.bfloat16) * truth[finite].abs() + 1e-6).all()


def test_b78_the_root_is_not_rounded_to_the_dtype():
    torch.manual_seed(0)
    x = (torch.randn(18, 2048) * torch.logspace(-2, 2, 18)[:, None]).bfloat16()
    truth = compositions.rms_norm(x.double(), None, 1e-6)
    error = functional.rms_norm(x, None, 1e-6).double() - truth
    signed = (error * truth.sign()).mean(-1) / truth.abs().mean(-1)
    # A root of bf16 would move a whole row by up to 2^-9, to one side.
    assert (signed.abs() < 2**-11).all()


def test_b80_gradients_of_a_row_of_zeros_do_not_come_from_old_memory():
    for _ in range(10):
        spoiled = [torch.full((4096,), 1e20) for _ in range(8)]
        del spoiled
        x, weight = torch.zeros(4, requires_grad=True), torch.ones(4, requires_grad=True)
        y = functional.rms_norm(x, weight, 1e-6)
        assert torch.equal(gradients(y, weight)[0], torch.zeros(4))


@pytest.mark.parametrize("cast", ["output", "input", "none"])
@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm"])
def test_b81_any_pair_of_dtypes_gives_what_the_small_operators_give(name, cast):
    made = torch.randn(5, 33, dtype=torch.float64), torch.randn(33, dtype=torch.float64)
    for x_type in (torch.float32, *LOW):
        for w_type in (torch.float32, *LOW, None):
            x, w = made[0].to(x_type), None if w_type is None else made[1].to(w_type)
            given = {"x": x, "weight": w, "cast": cast}
            if name == "add_rms_norm":
                given["residual"] = made[0].flip(0).to(x_type)
            new, old, truth = (
                as_tuple(getattr(module, name)(**arguments))
                for module, arguments in (
                    (functional, given), (compositions, given), (compositions, raised(given)),
                )
            )  # fmt: skip
            for a, b, t in zip(new, old, truth):
                assert a.dtype == b.dtype, (x_type, w_type)
                limit = 2 * (b - t).abs().max() + 4 * unit(a.dtype) * t.abs().max()
                assert (a - t).abs().max() <= limit, (x_type, w_type)


_IMAGES = {
    "batch_norm_act": {"training": True, "activation": "silu"},
    "layer_norm_channels": {},
    "sigmoid_gate": {"gate": (2, 8, 1, 1)},
    "depthwise_conv2d": {"weight": (8, 1, 3, 3), "padding": 1},
    "quick_gelu": {},
}


@pytest.mark.parametrize("name", _IMAGES)
def test_b84_compiled_strides_are_those_that_are_delivered(name):
    torch._dynamo.reset()
    compiled = torch.compile(getattr(functional, name), fullgraph=True, backend="aot_eager")
    rest = {
        k: torch.randn(v, requires_grad=True) if isinstance(v, tuple) else v
        for k, v in _IMAGES[name].items()
    }
    image = torch.randn(2, 8, 5, 5)
    for x in (
        image,
        image.to(memory_format=torch.channels_last),
        image.transpose(2, 3),
        image[:, :, :1].expand(2, 8, 5, 5),
    ):
        x = x.detach().requires_grad_()
        new, old = compiled(x, **rest), getattr(functional, name)(x, **rest)
        assert new.stride() == old.stride() and torch.equal(new, old)
        cotangent = torch.randn(old.shape)
        trained = [x, *(v for v in rest.values() if isinstance(v, torch.Tensor))]
        for a, b in zip(
            torch.autograd.grad(new, trained, cotangent),
            torch.autograd.grad(old, trained, cotangent),
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0,), (0, 8), (8, 0), (2, 0, 3), ()])
@pytest.mark.parametrize(
    "name", ["silu_mul", "gelu_mul", "gelu_tanh_mul", "quick_gelu", "rms_norm", "add_rms_norm",
             "dropout_add_layer_norm", "scale_mask_softmax"],
)  # fmt: skip
def test_b85_tensors_without_elements_and_scalars(name, shape):
    inputs = {"silu_mul": 2, "gelu_mul": 2, "gelu_tanh_mul": 2, "add_rms_norm": 2}
    inputs |= {"dropout_add_layer_norm": 2}
    given = [torch.randn(shape, requires_grad=True) for _ in range(inputs.get(name, 1))]
    try:
        old = as_tuple(getattr(compositions, name)(*given))
    except (RuntimeError, IndexError):  # a norm of a scalar
        with pytest.raises((RuntimeError, IndexError)):
            getattr(functional, name)(*given)
        return
    new = as_tuple(getattr(functional, name)(*given))
    assert [(r.shape, r.dtype) for r in new] == [(r.shape, r.dtype) for r in old]
    for a, b in zip(gradients(new[0], *given), gradients(old[0], *given)):
        assert a.shape == b.shape and torch.allclose(a, b)


def test_b87_denormals_have_the_same_bits_on_any_thread_and_the_caller_keeps_them():
    tiny = torch.full((100_000,), 1e-40)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(functional.silu_mul(tiny, torch.ones_like(tiny)))
            assert (tiny * 1.0 != 0).all()  # neither this thread nor the others flush to zero now
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(r, results[0]) for r in results) and (results[0] != 0).all()


def test_b88_the_mask_of_a_softmax_is_not_guessed_from_its_result():
    x = torch.randn(2, 3, 6)
    x[0, 0, 2] = -200.0  # a zero that no mask made
    mask = torch.rand(2, 3, 6) > 0.3
    mask[1, 1] = False  # nothing takes part
    for fill in (-INF, -1e4):
        given = {"x": x.clone().requires_grad_(), "mask": mask, "scale": 1.0, "fill": fill}
        found = []
        for module in (functional, compositions):
            y = module.scale_mask_softmax(**given)
            cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
            kept = cotangent.clone()
            found.append((y, *torch.autograd.grad(y, given["x"], cotangent)))
            assert torch.equal(cotangent, kept)
        torch.testing.assert_close(found[0], found[1], equal_nan=True)
        assert not found[0][1][~mask].any()


def test_b89_a_row_that_is_wholly_masked_keeps_the_meaning_of_its_chain():
    x, added = torch.randn(3, 8), torch.zeros(3, 8)
    added[1] = -INF
    row = torch.ones(3, 8, dtype=torch.bool)
    row[1] = False
    for mask in (added, row):
        y = functional.scale_mask_softmax(x, mask)
        assert y[1].isnan().all() and y[[0, 2]].isfinite().all()
        torch.testing.assert_close(y, compositions.scale_mask_softmax(x, mask), equal_nan=True)
    y = functional.scale_mask_softmax(x, row, fill=torch.finfo(torch.float32).min)
    torch.testing.assert_close(y[1], torch.full((8,), 1 / 8))


@pytest.mark.parametrize("interleaved", [False, True])
def test_b91_queries_and_keys_are_turned_apart(interleaved):
    cos, sin = (torch.full((3, 4), f(torch.tensor(0.3)).item()) for f in (torch.cos, torch.sin))
    q = torch.ones(2, 3, 5, 4).transpose(1, 2)  # (2, 5, 3, 4), other strides than k
    k = torch.full((2, 5, 3, 4), 2.0)
    for x in (q, k):
        y = functional.rope(x, cos, sin, interleaved)
        torch.testing.assert_close(y, compositions.rope(x, cos, sin, interleaved))
    turned = [functional.rope(x, cos, sin, interleaved) for x in (q, k)]
    torch.testing.assert_close(2 * turned[0], turned[1])


@pytest.mark.parametrize("dtype", LOW)
def test_b93_tolerances_come_from_the_dtype(dtype):
    gate = torch.full((16,), 50.0, dtype=dtype, requires_grad=True)
    up = torch.full((16,), 300.0, dtype=dtype, requires_grad=True)
    assert_not_worse("silu_mul", {"gate": gate, "up": up}, ulps=1)


def test_b94_gradients_of_parameters_have_the_same_bits_each_time():
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.randn(8, 16, 12, 12, requires_grad=True)
        w = torch.randn(16, requires_grad=True)
        rows = torch.randn(700, 16, requires_grad=True)
        filters = torch.randn(16, 1, 3, 3, requires_grad=True)
        for function, trained in (
            (lambda: functional.rms_norm(rows, w), w),
            (lambda: functional.dropout_add_layer_norm(rows, rows, w)[0].square(), w),
            (lambda: functional.batch_norm_act(x, None, None, w, None, True).square(), w),
            (lambda: functional.layer_norm_channels(x, w).square(), w),
            (lambda: functional.depthwise_conv2d(x, filters, padding=1).square(), filters),
        ):
            first = gradients(function(), trained)[0]
            assert all(torch.equal(gradients(function(), trained)[0], first) for _ in range(20))
    finally:
        torch.use_deterministic_algorithms(False)


def test_b96_nothing_trained_records_no_gradient():
    x, w = torch.randn(4, 8), torch.randn(8)
    for y in (
        functional.rms_norm(x, w),
        functional.silu_mul(x, x),
        functional.scale_mask_softmax(x),
        functional.dropout_add_layer_norm(x, x, w)[0],
    ):
        assert y.grad_fn is None and not y.requires_grad
