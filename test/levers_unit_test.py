"""Levers by themselves: where they refuse, what they change, and that they take it back."""

import copy
import inspect
import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch import nn

from opfuse import memory  # noqa: F401  (the operators' library is there)
from opfuse.levers import LEVERS, LeverRefused
from opfuse.levers.graph import Forward, GraphLever
from opfuse.levers.layout import LayoutLever
from opfuse.levers.lever import Context
from opfuse.levers.optimizer import OptimizerLever
from opfuse.switch import Switch


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 2)

    def forward(self, x, scale: float = 1.0):
        y = self.norm(self.conv(x))
        y = y * torch.sigmoid(y)
        return self.fc(y.mean((2, 3))) * scale


class Session:
    """Accepts every replay."""

    def call(self, method, **_):
        assert method == "prove_layout"
        return {"accepted": True, "gradient_error_old": 1.0, "gradient_error_new": 2.0}


def context(root, optimizer=None, session=None):
    def record():
        yield "replayed"
        return 1

    boundaries = SimpleNamespace(root=root, optimizer=optimizer, compiles=False)
    return Context(
        {},
        session or Session(),
        boundaries,
        Switch(),
        record=record,
        forget=lambda number: None,
        leave_ranks=lambda: None,
    )


def trained(model, optimizer, steps=2):
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()


def drain(generator):
    return [side for side in generator]


def facts(model, optimizer):
    """Bits and strides of everything that a lever may touch."""
    tensors = dict(model.named_parameters())
    tensors.update({f"grad {n}": p.grad for n, p in tensors.items() if p.grad is not None})
    for index, state in enumerate(optimizer.state.values()):
        tensors.update({f"{index}.{k}": v for k, v in state.items() if isinstance(v, torch.Tensor)})
    return {n: (t.detach().clone(), t.stride(), id(t)) for n, t in tensors.items()}


# Layout


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_layout_moves_and_takes_back_weights_gradients_and_state(optimizer):
    model = Small()
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    stepping = optimizer(model.parameters(), lr=0.01, **options)
    trained(model, stepping)
    before = facts(model, stepping)
    lever = LayoutLever(context(model, stepping))
    assert drain(lever.prepare()) == ["replayed", "warm", "warm", "warm"] and not lever.on
    lever.set(True)
    weight = model.conv.weight
    moved = [weight, weight.grad, *stepping.state[weight].values()]
    moved = [t for t in moved if t.dim() == 4]
    assert len(moved) >= 3
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in moved)
    trained(model, stepping)  # goes on
    after_two = facts(model, stepping)
    lever.set(False)
    for name, (value, strides, identity) in facts(model, stepping).items():
        assert torch.equal(value, after_two[name][0]), name
        assert (strides, name in before) == (before[name][1], True)
        assert "grad" in name or identity == before[name][2]


def test_other_modes_and_sizes_have_the_old_layout():
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trained(model, optimizer)
    lever = LayoutLever(context(model, optimizer))
    for _ in lever.prepare():
        trained(model, optimizer, 1)
    seen = []
    model.conv.register_forward_hook(
        lambda *_: seen.append(model.conv.weight.is_contiguous(memory_format=torch.channels_last))
    )
    lever.set(True)
    trained(model, optimizer, 1)
    model.eval()(torch.randn(4, 3, 8, 8))
    model.train()
    with torch.no_grad():
        model(torch.randn(4, 3, 8, 8))
    model(torch.randn(4, 3, 9, 9))
    trained(model, optimizer, 1)
    assert seen == [True, False, False, False, True]
    lever.drop()
    assert model.conv.weight.is_contiguous() and not model._forward_pre_hooks


def refused(lever, *arguments):
    with pytest.raises(LeverRefused) as error:
        lever(context(*arguments))
    return str(error.value)


def test_layout_refuses_weights_that_are_tied_as_views():
    model = Small()
    model.other = nn.Parameter(model.conv.weight.data.view(8, 27))
    assert refused(LayoutLever, model) == "another tensor uses the memory of conv.weight"


def test_layout_refuses_weights_that_python_holds_elsewhere():
    model = Small()
    best = model.state_dict()
    assert "another tensor uses the memory of conv.weight" in refused(LayoutLever, model)
    del best
    LayoutLever(context(model))


def test_layout_refuses_shared_memory():
    model = Small()
    model.share_memory()
    assert "conv.weight lies in memory shared between processes" == refused(LayoutLever, model)


def test_layout_refuses_a_flat_buffer():
    model = Small()
    flat = torch.cat([p.data.flatten() for p in model.parameters()])
    offset = 0
    for p in model.parameters():
        p.data = flat[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    assert "lies in a larger buffer" in refused(LayoutLever, model)


def test_layout_refuses_models_without_convolutions_or_in_it_already():
    assert "no convolution" in refused(LayoutLever, nn.Linear(2, 2))
    already = Small().to(memory_format=torch.channels_last)
    assert "in channels_last already" in refused(LayoutLever, already)
    assert refused(LayoutLever, None) == "no root module is called"


def test_layout_refuses_what_its_replay_refuses():
    class Refusing(Session):
        def call(self, method, **_):
            return {"accepted": False, "reason": "aten.view at net.py:3"}

    model = Small()
    lever = LayoutLever(context(model, session=Refusing()))
    with pytest.raises(LeverRefused, match="aten.view at net.py:3"):
        drain(lever.prepare())
    assert not lever.on and model.conv.weight.is_contiguous()


# Optimizer

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
    "dampening": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_fused_step_is_proved_and_taken_back(name):
    model = Small()
    optimizer = OPTIMIZERS[name](model.parameters())
    trained(model, optimizer)
    before = facts(model, optimizer)
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    lever = OptimizerLever(context(model, optimizer))
    assert drain(lever.prepare()) == []
    for key, (value, strides, identity) in facts(model, optimizer).items():
        assert torch.equal(value, before[key][0]) and (strides, identity) == before[key][1:], key
    lever.set(True)
    assert all(group["fused"] for group in optimizer.param_groups)
    trained(model, optimizer)
    lever.set(False)
    trained(model, optimizer)
    assert groups == [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]


def test_a_fused_step_that_is_another_function_is_refused(monkeypatch):
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained(model, optimizer)
    original = torch._fused_sgd_

    def wrong(*args, lr, **options):
        return original(*args, lr=lr * (1 + 1e-9), **options)

    monkeypatch.setattr(torch, "_fused_sgd_", wrong)
    lever = OptimizerLever(context(model, optimizer))
    with pytest.raises(LeverRefused, match="another function: the parameter"):
        drain(lever.prepare())


def test_the_optimizer_lever_says_where_it_cannot_be():
    model = Small()
    parameters = list(model.parameters())
    assert refused(OptimizerLever, model, None) == "no optimizer steps"
    rmsprop = torch.optim.RMSprop(parameters)
    assert refused(OptimizerLever, model, rmsprop).startswith("RMSprop has no fused step; SGD")
    fused = torch.optim.SGD(parameters, fused=True)
    assert refused(OptimizerLever, model, fused) == "it is fused already"
    capturable = torch.optim.Adam(parameters, capturable=True)
    assert refused(OptimizerLever, model, capturable) == "it is capturable"
    tensor = torch.optim.Adam(parameters, lr=torch.tensor(1e-3))
    assert refused(OptimizerLever, model, tensor) == "lr is a tensor"

    class Own(torch.optim.SGD):
        pass

    own = Own(parameters, lr=0.1)
    assert refused(OptimizerLever, model, own).startswith("Own has no fused step")
    idle = torch.optim.SGD(parameters, lr=0.1)
    with pytest.raises(LeverRefused, match="no parameter has a gradient"):
        drain(OptimizerLever(context(model, idle)).prepare())


# Graph


def with_forward(model):
    model.forward = Forward(model, lambda *args, **kwargs: "compiled")
    return model


def test_a_copied_or_pickled_model_runs_its_own_forward():
    model = with_forward(Small())
    x = torch.randn(2, 3, 8, 8)
    assert model(x) == "compiled"
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.fc.bias.add_(1)
        assert other.forward.__self__ is other
        assert torch.allclose(other.eval()(x), Small.forward(model.eval(), x) + 1)


def test_who_looks_at_the_forward_sees_the_model_s_own():
    model = with_forward(Small())
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]
    x = torch.randn(2, 3, 8, 8)
    model.eval()
    expected = Small.forward(model, x)
    assert torch.allclose(torch.jit.trace(model, x)(x), expected)
    assert torch.allclose(torch.jit.script(model)(x), expected)
    assert torch.allclose(torch.compile(model, backend="eager")(x), expected)
    assert torch.allclose(torch.export.export(model, (x,)).module()(x), expected)


def test_the_graph_lever_proves_replaces_and_goes():
    torch._dynamo.reset()
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {name: getattr(torch._dynamo.config, name) for name in
                ("skip_nnmodule_hook_guards", "suppress_errors")}  # fmt: skip
    lever = GraphLever(context(model, optimizer))
    for _ in lever.prepare():
        trained(model, optimizer, 1)
    assert "1 batch_norm_silu" in lever.what, lever.what
    x = torch.randn(4, 3, 8, 8)
    lever.set(True)
    new = model(x)
    lever.set(False)
    assert torch.allclose(new, model(x), atol=1e-5) and "forward" not in model.__dict__
    lever.drop()
    assert settings == {name: getattr(torch._dynamo.config, name) for name in settings}


def test_the_graph_lever_refuses_where_it_cannot_be():
    assert refused(GraphLever, None) == "no root module is called"
    patched = Small()
    patched.forward = lambda x: x
    assert "set on the object" in refused(GraphLever, patched)
    torch._dynamo.reset()
    plain = nn.Linear(3, 3)
    lever = GraphLever(context(plain))
    with pytest.raises(LeverRefused, match="no chain was found in it"):
        for _ in lever.prepare():
            plain(torch.randn(2, 3))
    lever.drop()


def test_what_cannot_be_captured_runs_as_it_is(monkeypatch):
    torch._dynamo.reset()
    model = Small()
    lever = GraphLever(context(model))
    from opfuse import backend

    def broken(*_, **__):
        raise RuntimeError("a failure of ours")

    monkeypatch.setattr(backend, "_find", broken)
    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(LeverRefused, match="a failure of ours"):
        for _ in lever.prepare():
            assert model(x).shape == (4, 2)
    lever.drop()
    assert F.mse_loss(model(x), model(x)) == 0


def test_every_lever_is_described():
    text = (ROOT / "docs" / "levers.md").read_text()
    for name, lever in LEVERS.items():
        assert f"`{name}`" in text and lever.what in text, name
