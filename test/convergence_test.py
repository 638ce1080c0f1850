"""Fifty steps of training with the fused operators end where training with the small ones ends.

Five small models, one of each kind that the operators are for. The band is that of five runs of
the small operators whose first parameters are moved by one unit in the last place: rounding grows
from step to step, and no more is asked than what eager's own rounding allows. A run with one
that is off by a thousandth must leave the band, or it would say nothing. Part of `make test-all`.
"""

import math
import os
import types

import pytest
import torch
import torch.nn.functional as F

from opfuse import compositions, functional

pytestmark = pytest.mark.skipif(
    not os.environ.get("OPFUSE_TEST_ALL"), reason="a matter of minutes: make test-all"
)

STEPS, RUNS = 50, 5


class Parameters(dict):
    """Parameters by name, made from one seed in the order in which they are asked for."""

    def __init__(self):
        super().__init__()
        self.random = torch.Generator().manual_seed(1)

    def weight(self, name, *shape, scale=None):
        if name not in self:
            fan_in = math.prod(shape[1:]) if len(shape) > 1 else shape[0]
            values = torch.randn(shape, generator=self.random) * (scale or fan_in**-0.5)
            self[name] = values.requires_grad_()
        return self[name]

    def constant(self, name, value, *shape):
        if name not in self:
            self[name] = torch.full(shape, float(value)).requires_grad_()
        return self[name]

    def norm(self, name, size):
        return self.constant(f"{name}.weight", 1, size), self.constant(f"{name}.bias", 0, size)


def data(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cnn(p, ops, step):
    """Inverted residuals with squeeze-and-excitation and stochastic depth, as EfficientNet's."""
    x = data(8, 3, 20, 20, seed=step % 4).to(memory_format=torch.channels_last)
    target = (x.mean((1, 2, 3)) * 40).long() % 5
    x = F.conv2d(x, p.weight("stem", 16, 3, 3, 3), stride=2, padding=1)
    for block, stride in (("a", 1), ("b", 2)):
        wide = F.conv2d(x, p.weight(f"{block}.expand", 32, 16, 1, 1))
        depthwise, *known = ops.batch_norm_act_depthwise(
            wide, None, None, *p.norm(f"{block}.bn0", 32), True, 0.1, 1e-3, "silu",
            p.weight(f"{block}.filters", 32, 1, 3, 3), stride, 1,
        )  # fmt: skip
        gated = ops.batch_norm_act_se(
            depthwise, None, None, *p.norm(f"{block}.bn1", 32), True, 0.1, 1e-3, "silu",
            p.weight(f"{block}.reduce", 4, 32, 1, 1), p.constant(f"{block}.r", 0, 4),
            p.weight(f"{block}.grow", 32, 4, 1, 1), p.constant(f"{block}.g", 0, 32),
            statistics=tuple(known),
        )  # fmt: skip
        y = F.conv2d(gated, p.weight(f"{block}.project", 16, 32, 1, 1))
        kept = (data(8, seed=100 + step) > -0.8).float() / 0.8 if stride == 1 else None
        x = ops.batch_norm_act(
            y, None, None, *p.norm(f"{block}.bn2", 16), True,
            scale=kept, residual=x if stride == 1 else None,
        )  # fmt: skip
    return F.cross_entropy(x.mean((2, 3)) @ p.weight("head", 5, 16).T, target)


def heads(x, weight, count):
    return (x @ weight.T).unflatten(-1, (count, -1)).transpose(1, 2)


def bert(p, ops, step):
    """Post-norm blocks with a padding mask and dropout."""
    tokens = (data(4, 12, seed=step % 4) * 9).long() % 32
    mask = (torch.arange(12) < torch.tensor([12, 9, 7, 12])[:, None])[:, None, None]
    torch.manual_seed(step)  # dropout draws from torch's generator
    x = p.weight("tokens", 32, 32, scale=0.5)[tokens] + p.weight("places", 12, 32, scale=0.1)
    for layer in "ab":
        q, k, v = (heads(x, p.weight(f"{layer}.{n}", 32, 32), 4) for n in "qkv")
        y = ops.scale_mask_softmax(q @ k.transpose(-2, -1), mask, 8**-0.5) @ v
        y = y.transpose(1, 2).flatten(2) @ p.weight(f"{layer}.out", 32, 32).T
        x, _ = ops.dropout_add_layer_norm(y, x, *p.norm(f"{layer}.n1", 32), 0.1, True, 1e-12)
        y = ops.gelu_mul(x @ p.weight(f"{layer}.up", 64, 32).T, torch.ones(4, 12, 64))
        y = y @ p.weight(f"{layer}.down", 32, 64).T
        x, _ = ops.dropout_add_layer_norm(y, x, *p.norm(f"{layer}.n2", 32), 0.1, True, 1e-12)
    return F.cross_entropy((x @ p["tokens"].T).flatten(0, 1), tokens.flatten())


def llama(p, ops, step):
    """Pre-norm blocks with rotary positions, causal attention and SwiGLU."""
    tokens = (data(4, 13, seed=step % 4) * 9).long() % 32
    x = p.weight("tokens", 32, 32, scale=0.5)[tokens[:, :-1]]
    angle = torch.arange(12.0)[:, None] * 10 ** (-torch.arange(4.0) / 2)
    cos, sin = (torch.cat((f(angle), f(angle)), -1) for f in (torch.cos, torch.sin))
    branch = torch.zeros_like(x)
    for layer in "ab":
        y, x = ops.add_rms_norm(branch, x, p.constant(f"{layer}.n1", 1, 32), 1e-6, cast="input")
        q, k, v = (heads(y, p.weight(f"{layer}.{n}", 32, 32), 4) for n in "qkv")
        q, k = ops.rope(q, cos, sin), ops.rope(k, cos, sin)
        y = ops.scale_mask_softmax(q @ k.transpose(-2, -1), None, 8**-0.5, causal=True) @ v
        branch = y.transpose(1, 2).flatten(2) @ p.weight(f"{layer}.out", 32, 32).T
        y, x = ops.add_rms_norm(branch, x, p.constant(f"{layer}.n2", 1, 32), 1e-6, cast="input")
        gate, up = (y @ p.weight(f"{layer}.{n}", 64, 32).T for n in ("gate", "up"))
        branch = ops.silu_mul(gate, up) @ p.weight(f"{layer}.down", 32, 64).T
    x = ops.rms_norm(x + branch, p.constant("last", 1, 32), 1e-6, cast="input")
    return F.cross_entropy((x @ p["tokens"].T).flatten(0, 1), tokens[:, 1:].flatten())


def unet(p, ops, step):
    """A level down and up again, with a skip; learns to remove noise."""
    clean = torch.sin(torch.arange(16.0) * (1 + step % 4) / 3)[:, None] * torch.ones(4, 2, 16, 16)
    x = clean + 0.3 * data(4, 2, 16, 16, seed=step)
    skip = F.conv2d(x, p.weight("in", 16, 2, 3, 3), padding=1)
    skip = ops.batch_norm_act(skip, None, None, *p.norm("bn", 16), True, activation="silu")
    low = F.conv2d(skip, p.weight("down", 24, 16, 3, 3), stride=2, padding=1)
    low = ops.layer_norm_channels(low, *p.norm("ln", 24))
    low = ops.swish_beta(low, p.constant("beta", 1, 1))
    low = ops.quick_gelu(F.conv2d(low, p.weight("mid", 16, 24, 3, 3), padding=1))
    x = torch.cat((F.interpolate(low, scale_factor=2), skip), 1)
    return F.mse_loss(F.conv2d(x, p.weight("out", 2, 32, 3, 3), padding=1), clean)


def detection(p, ops, step):
    """A light backbone and two heads: is there something, and where."""
    x = data(4, 3, 24, 24, seed=step % 4)
    inside = (F.avg_pool2d(x.mean(1, keepdim=True), 4) > 0.05).float()
    box = F.avg_pool2d(x, 4).abs()
    x = F.conv2d(x, p.weight("stem", 16, 3, 3, 3), stride=2, padding=1)
    x = ops.batch_norm_act(x, None, None, *p.norm("bn0", 16), True, activation="hardswish")
    x = ops.depthwise_conv2d(x, p.weight("filters", 16, 1, 5, 5), None, 2, (1, 2, 1, 2))
    x = ops.batch_norm_act(x, None, None, *p.norm("bn1", 16), True, activation="relu6")
    gate = F.conv2d(x.mean((2, 3), keepdim=True), p.weight("gate", 16, 16, 1, 1))
    x = ops.sigmoid_gate(x, gate, hard=True)
    x = ops.gelu_tanh_mul(*F.conv2d(x, p.weight("neck", 32, 16, 1, 1)).chunk(2, 1))
    found = F.conv2d(x, p.weight("class", 1, 16, 1, 1))
    where = F.conv2d(x, p.weight("box", 3, 16, 1, 1))
    loss = F.binary_cross_entropy_with_logits(found, inside)
    return loss + (F.smooth_l1_loss(where, box, reduction="none") * inside).mean()


MODELS = {f.__name__: f for f in (cnn, bert, llama, unet, detection)}
# The operator that is made wrong to see that the band is narrow, of each model.
WRONG = {
    "cnn": "batch_norm_act",  # the others stand before a norm, which takes a factor away
    "bert": "dropout_add_layer_norm",
    "llama": "silu_mul",
    "unet": "layer_norm_channels",
    "detection": "gelu_tanh_mul",
}


def losses(model, ops, moved_by=None):
    """The loss of each step; `moved_by`: the seed by which first parameters move by 1 ulp."""
    parameters = Parameters()
    with torch.no_grad():
        model(parameters, compositions, 0)  # makes them
    if moved_by is not None:
        random = torch.Generator().manual_seed(moved_by)
        for value in parameters.values():
            up = torch.rand(value.shape, generator=random) < 0.5
            toward = torch.where(up, torch.inf, -torch.inf)
            with torch.no_grad():
                value.copy_(torch.nextafter(value, toward))
    optimizer = torch.optim.AdamW(parameters.values(), lr=3e-3)
    found = []
    for step in range(STEPS):
        loss = model(parameters, ops, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def outside(run, plain, moved):
    """The steps at which `run` is farther from `plain` than twice the farthest of the moved runs
    was up to there. The loss is an f32, of which 4 units in the last place are nothing.
    """
    width, steps = 0.0, []
    for step, here in enumerate(plain):
        width = max(width, *(abs(other[step] - here) for other in moved))
        if not abs(run[step] - here) <= 2 * width + 4 * 2**-23 * abs(here):
            steps.append(step)
    return steps


@pytest.mark.parametrize("name", MODELS)
def test_fifty_steps_stay_within_the_band_of_roundings(name):
    model = MODELS[name]
    plain = losses(model, compositions)
    assert plain[-1] < 0.9 * plain[0]  # it learns
    moved = [losses(model, compositions, seed) for seed in range(RUNS)]
    assert outside(losses(model, functional), plain, moved) == []

    def off_by_a_thousandth(*arguments, **named):
        result = getattr(functional, WRONG[name])(*arguments, **named)
        first, *rest = result if isinstance(result, tuple) else (result,)
        return (first * 1.001, *rest) if rest else first * 1.001

    wrong = types.SimpleNamespace(**vars(functional))
    setattr(wrong, WRONG[name], off_by_a_thousandth)
    assert len(outside(losses(model, wrong), plain, moved)) > STEPS // 2
