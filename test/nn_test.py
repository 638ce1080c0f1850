"""opfuse.nn: the same function and the same state_dict as what each module replaces."""

import copy
import pickle

import pytest
import torch
from torch import nn

from opfuse import nn as fused

ACTIVATIONS = [nn.Identity(), nn.SiLU(), nn.ReLU(), nn.ReLU6(), nn.Hardswish(), nn.GELU()]


def step(module, *inputs):
    """Result, gradients of inputs and parameters, and the buffers afterwards."""
    given = [x.clone().requires_grad_() for x in inputs]
    y = module(*given)
    y.square().sum().backward()
    parameters = [p.grad for p in module.parameters() if p.grad is not None]
    return [y.detach(), *(x.grad for x in given), *parameters, *module.buffers()]


def same(new, old):
    assert len(new) == len(old)
    for a, b in zip(new, old):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("momentum", [0.3, None])
def test_norms_take_over_a_state_dict_and_count_batches(activation, momentum):
    norm = nn.BatchNorm2d(6, 1e-3, momentum)
    nn.init.normal_(norm.weight)
    new = fused.BatchNormAct2d(6, 1e-3, momentum, activation=fused._activation_of(activation))
    new.load_state_dict(norm.state_dict())
    old = nn.Sequential(norm, activation)
    for _ in range(3):
        x = torch.randn(5, 6, 4, 3)
        same(step(new, x), step(old, x))
    new.eval()
    old.eval()
    same(step(new, x), step(old, x))
    norm.load_state_dict(new.state_dict())


def test_a_norm_without_running_statistics_measures_in_evaluation_too():
    new, old = (
        fused.BatchNormAct2d(4, track_running_stats=False),
        nn.BatchNorm2d(4, track_running_stats=False),
    )
    x = torch.randn(3, 4, 5, 5)
    same(step(new.eval(), x), step(nn.Sequential(old.eval(), nn.SiLU()), x))


def test_modules_are_passed_and_counted_as_if_they_were_called():
    norm, x = nn.BatchNorm2d(6), torch.randn(5, 6, 4, 4)
    new, old = copy.deepcopy(norm), copy.deepcopy(norm)
    scale, residual = torch.tensor([0.0, 2, 2, 0, 2]), torch.randn(5, 6, 4, 4)
    got = fused.batch_norm_act(new, nn.SiLU(), x, scale, residual)
    want = nn.functional.silu(old(x)) * scale.view(-1, 1, 1, 1) + residual
    torch.testing.assert_close(got, want)
    same(list(new.buffers()), list(old.buffers()))


class Doubled(nn.BatchNorm2d):
    def forward(self, x):
        return 2 * super().forward(x)


def watched(module):
    module.seen = []
    module.register_forward_hook(lambda m, args, result: m.seen.append(result))
    return module


def replaced(module):
    module.forward = lambda x: x + 1
    return module


@pytest.mark.parametrize(
    "norm, activation",
    [
        (lambda: Doubled(6), nn.SiLU),
        (lambda: watched(nn.BatchNorm2d(6)), nn.SiLU),
        (lambda: replaced(nn.BatchNorm2d(6)), nn.SiLU),
        (lambda: nn.utils.parametrizations.weight_norm(nn.BatchNorm2d(6), dim=None), nn.SiLU),
        (lambda: nn.BatchNorm2d(6), lambda: watched(nn.SiLU())),
        (lambda: nn.BatchNorm2d(6), lambda: nn.GELU("tanh")),
        (lambda: nn.BatchNorm2d(6), nn.Tanh),
        (lambda: nn.GroupNorm(2, 6), nn.SiLU),
        (lambda: nn.BatchNorm2d(6), lambda: None),
    ],
)
def test_modules_of_another_kind_are_called_as_they_are(norm, activation):
    torch.manual_seed(0)
    norm, activation, x = norm(), activation(), torch.randn(5, 6, 4, 4)
    got = fused.batch_norm_act(norm, activation, x)
    want = norm(x) if activation is None else activation(norm(x))
    torch.testing.assert_close(got, want)
    for module in (norm, activation):
        assert len(getattr(module, "seen", [0, 0])) == 2  # a hook sees both calls


def test_a_hook_for_all_modules_is_called():
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, r: seen.append(type(m)))
    try:
        fused.batch_norm_act(nn.BatchNorm2d(6), nn.SiLU(), torch.randn(5, 6, 4, 4))
    finally:
        handle.remove()
    assert seen == [nn.BatchNorm2d, nn.SiLU]


def test_a_wrong_number_of_dimensions_is_refused_as_by_the_norm():
    with pytest.raises(ValueError, match="expected 4D input"):
        fused.batch_norm_act(nn.BatchNorm2d(6), nn.SiLU(), torch.randn(5, 6))


def test_an_unknown_activation_is_refused_at_construction():
    with pytest.raises(ValueError, match="expected activation to be one of .*, found 'swoosh'"):
        fused.BatchNormAct2d(4, activation="swoosh")
    with pytest.raises(ValueError, match="'none' or 'tanh', found 'fast'"):
        fused.GELUMul("fast")


def test_depthwise_convolutions_take_over_a_state_dict():
    old = nn.Conv2d(6, 6, 5, 2, groups=6)
    new = fused.DepthwiseConv2d(6, 5, 2, (1, 2, 1, 2))
    new.load_state_dict(old.state_dict())
    x = torch.randn(2, 6, 9, 9)
    same(step(new, x), step(nn.Sequential(nn.ZeroPad2d((1, 2, 1, 2)), old), x))


def test_rms_norms_take_over_a_state_dict():
    old, new = nn.RMSNorm(12, 1e-6), fused.RMSNorm(12, 1e-6)
    nn.init.normal_(old.weight)
    new.load_state_dict(old.state_dict())
    x, r = torch.randn(3, 12), torch.randn(3, 12)
    same(step(new, x), step(old, x))
    both = fused.AddRMSNorm(12, 1e-6)
    both.load_state_dict(old.state_dict())
    y, total = both(x, r)
    same([y, total], [old(x + r), x + r])
    assert torch.equal(fused.RMSNorm(4, offset=1.0).weight, torch.zeros(4))
    assert fused.RMSNorm(4, affine=False).state_dict() == {}


def test_gates_take_halves_of_one_tensor():
    x = torch.randn(3, 14)
    a, b = x.chunk(2, -1)
    same([fused.SiLUMul()(x)], [nn.functional.silu(a) * b])
    same([fused.GELUMul()(x)], [nn.functional.gelu(a) * b])
    same([fused.GELUMul("tanh")(a, b)], [nn.functional.gelu(a, approximate="tanh") * b])
    same([fused.QuickGELU()(x)], [x * torch.sigmoid(1.702 * x)])
    picture, gate = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 1, 1)
    same([fused.SigmoidGate(True)(picture, gate)], [picture * nn.functional.hardsigmoid(gate)])


def test_swish_trains_its_beta():
    module, x = fused.Swish(1.5), torch.randn(6, 7)
    beta = torch.tensor([1.5], requires_grad=True)
    given = x.clone().requires_grad_()
    y = given * torch.sigmoid(beta * given)
    y.square().sum().backward()
    same(step(module, x), [y.detach(), given.grad, beta.grad])


MADE = [
    fused.BatchNormAct2d(4), fused.DepthwiseConv2d(4, 3), fused.RMSNorm(4), fused.AddRMSNorm(4),
    fused.SiLUMul(), fused.GELUMul("tanh"), fused.SigmoidGate(), fused.QuickGELU(), fused.Swish(),
]  # fmt: skip


@pytest.mark.parametrize("module", MADE, ids=lambda m: type(m).__name__)
def test_modules_are_copied_pickled_and_printed(module):
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(other) == repr(module)
        assert other.state_dict().keys() == module.state_dict().keys()
