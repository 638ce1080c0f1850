"""Operators with a norm: running statistics, statistics that are handed on, dropout, refusals."""

import pytest
import torch
from ops_helpers import raised, run

from opfuse import compositions, functional


def copies(values):
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_updates_running_statistics_as_torch_does(dtype, layout):
    x = (3 + torch.randn(8, 6, 5, 5)).to(dtype).to(memory_format=layout)
    buffers = {"running_mean": torch.randn(6), "running_var": torch.rand(6) + 0.5}
    buffers = {
        k: v.to(torch.float64 if dtype == torch.float64 else torch.float32)
        for k, v in buffers.items()
    }
    new, old = copies(buffers), copies(buffers)
    functional.batch_norm_act(x, **new, training=True, momentum=0.3, activation="silu")
    compositions.batch_norm_act(x, **old, training=True, momentum=0.3, activation="silu")
    for name in buffers:
        torch.testing.assert_close(new[name], old[name], rtol=1e-5, atol=1e-5)


def test_batch_norm_takes_float32_parameters_beside_bfloat16():
    x = torch.randn(4, 16, 5, 5).bfloat16().requires_grad_()
    given = {
        "weight": torch.randn(16, requires_grad=True),
        "bias": torch.randn(16, requires_grad=True),
    }
    given = {"x": x, **given, "training": True, "activation": "silu"}
    new = run(functional.batch_norm_act, given)
    old = run(compositions.batch_norm_act, given)
    assert [v.dtype for v in new.values()] == [v.dtype for v in old.values()]
    truth = run(compositions.batch_norm_act, raised(given))
    for name in new:
        bound = 2 * (old[name] - truth[name]).abs().max() + 2**-8
        assert (new[name] - truth[name]).abs().max() <= bound, name


def test_batch_norm_far_from_zero_keeps_its_variance():
    x = 1000 + torch.randn(16, 4, 9, 9)
    for layout in (torch.contiguous_format, torch.channels_last):
        var = torch.zeros(4)
        functional.batch_norm_act(
            x.to(memory_format=layout), None, var, training=True, momentum=1.0
        )
        torch.testing.assert_close(var, x.double().var((0, 2, 3)).float(), rtol=1e-4, atol=0)


def test_batch_norm_of_one_value_a_channel_is_refused_as_torch_refuses_it():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        functional.batch_norm_act(torch.randn(1, 3, 1, 1), training=True)


def test_a_scale_that_is_trained_gets_its_gradient():
    x, scale = torch.randn(3, 4, 2, 2, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    given = {"x": x.requires_grad_(), "scale": scale.requires_grad_(), "training": True}
    new, old = run(functional.batch_norm_act, given), run(compositions.batch_norm_act, given)
    torch.testing.assert_close(new, old)


def expansion(channels, hidden, dtype=torch.float64):
    """Parameters of norm, filters, norm, squeeze-and-excitation: an inverted residual."""
    generator = torch.Generator().manual_seed(5)

    def made(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    norms = [(made(channels), made(channels)) for _ in range(2)]
    layers = (made(hidden, channels, 1, 1), made(hidden), made(channels, hidden, 1, 1))
    x = made(3, channels, 9, 8).detach().to(memory_format=torch.channels_last).requires_grad_()
    return x, norms, made(channels, 1, 3, 3), (*layers, made(channels))


def test_statistics_that_are_handed_on_change_neither_values_nor_gradients():
    x, norms, filters, layers = expansion(20, 6)
    everything = [x, *norms[0], *norms[1], filters, *layers]
    found = []
    for hand_on in (True, False):
        y, *known = functional.batch_norm_act_depthwise(
            x, None, None, *norms[0], True, 0.1, 1e-3, "silu", filters, 2, (0, 1, 0, 1)
        )
        y = functional.batch_norm_act_se(
            y, None, None, *norms[1], True, 0.1, 1e-3, "silu", *layers,
            statistics=tuple(known) if hand_on else None,
        )  # fmt: skip
        found.append([y, *torch.autograd.grad(y.square().sum(), everything)])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("name", ["batch_norm_act_se", "batch_norm_act_depthwise"])
def test_fused_norms_update_running_statistics_as_torch_does(name):
    x, norms, filters, layers = expansion(20, 6, torch.float32)
    rest = layers if name == "batch_norm_act_se" else (filters, 1, 1)
    new = torch.randn(20), torch.rand(20) + 0.5
    old = tuple(b.clone() for b in new)
    for module, buffers in ((functional, new), (compositions, old)):
        getattr(module, name)(x, *buffers, *norms[0], True, 0.3, 1e-3, "silu", *rest)
    torch.testing.assert_close(new, old, rtol=1e-5, atol=1e-5)


def test_squeeze_layers_that_are_no_1x1_convolutions_are_refused():
    with pytest.raises(RuntimeError, match=r"expected a weight of 1x1 .*, found \[2, 8, 3, 3\]"):
        functional.batch_norm_act_se(
            torch.randn(2, 8, 4, 4), None, None, None, None, True, 0.1, 1e-3, "silu",
            torch.randn(2, 8, 3, 3), None, torch.randn(8, 2, 1, 1), None,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_before_a_norm_draws_the_numbers_of_torch(dtype, p):
    given = {
        name: torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_()
        for name, shape in {"x": (6, 33), "residual": (6, 33), "weight": 33, "bias": 33}.items()
    }
    given |= {"p": p, "training": True}
    found = []
    for function, values in (
        (functional.dropout_add_layer_norm, given),
        (compositions.dropout_add_layer_norm, given),
        (compositions.dropout_add_layer_norm, raised(given)),
    ):
        torch.manual_seed(3)
        found.append(run(function, values))
        found[-1]["next"] = torch.rand(1)  # as many were drawn
    new, old, truth = found
    for name in new:
        error = (old[name].double() - truth[name].double()).abs().max()
        limit = 2 * error + 16 * torch.finfo(dtype).eps * max(1, truth[name].abs().max())
        assert (new[name].double() - truth[name].double()).abs().max() <= limit, name
    assert torch.equal(new["next"], old["next"])


def test_dropout_before_a_norm_refuses_no_probability():
    x = torch.randn(2, 3)
    with pytest.raises(ValueError, match="expected p between 0 and 1, found 1.5"):
        functional.dropout_add_layer_norm(x, x, p=1.5, training=True)


def test_only_the_sum_of_a_norm_may_be_used():
    x, r = (torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    torch.manual_seed(0)
    _, total = functional.dropout_add_layer_norm(x, r, p=0.5, training=True)
    grads = torch.autograd.grad(total.sum(), (x, r))
    torch.manual_seed(0)
    want = torch.nn.functional.dropout(torch.ones_like(x), 0.5)
    assert torch.equal(grads[0], want) and torch.equal(grads[1], torch.ones_like(r))


@pytest.mark.parametrize("name", ["batch_norm_act", "batch_norm_act_se"])
def test_beyond_the_cache_gradients_are_those_of_the_small_operators(name):
    """Stores past the cache begin at twice the last level cache: 64 MB for one of 32 MB."""
    x = torch.randn(8, 64, 112, 112).to(memory_format=torch.channels_last).requires_grad_()
    given = {"x": x, "running_mean": None, "running_var": None, "training": True, "eps": 1e-3}
    given |= {k: torch.randn(64, requires_grad=True) for k in ("weight", "bias")}
    given |= {"momentum": 0.1, "activation": "silu"}
    if name == "batch_norm_act_se":
        given |= {
            "reduce_weight": torch.randn(4, 64, 1, 1, requires_grad=True),
            "reduce_bias": torch.randn(4, requires_grad=True),
            "expand_weight": torch.randn(64, 4, 1, 1, requires_grad=True),
            "expand_bias": torch.randn(64, requires_grad=True),
        }
    new, old = run(getattr(functional, name), given), run(getattr(compositions, name), given)
    for key, value in new.items():
        error = (value - old[key]).abs().max()
        assert error <= 2e-5 * max(1, old[key].abs().max()), key
