"""The graph mechanism: what torch.compile captures, with fused operators in place of its chains,
computes and trains as the eager model does, whatever changes between two calls.
"""

import copy
import gc
import importlib

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch import nn


@pytest.fixture(scope="module")
def backend(library):
    """opfuse.backend, with the library of this build."""
    return importlib.import_module("opfuse.backend")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Swish(torch.autograd.Function):
    """As efficientnet_pytorch writes it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class HalvedSwish(Swish):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s))) / 2


class ClampedSwish(Swish):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return torch.clamp(grad * (s * (1 + x * (1 - s))), -0.01, 0.01)


class FarSwish(Swish):
    """Another function where no value of an ordinary call lies."""

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s))) + torch.relu(x - 30)


CALLS = []


class TalkativeSwish(Swish):
    """Does more than its operators."""

    @staticmethod
    def forward(ctx, x):
        CALLS.append(x.dtype)
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)


class Act(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


class Block(nn.Module):
    """Norm, activation, depthwise convolution, norm, activation, squeeze-and-excitation."""

    def __init__(self, channels=8, stride=1):
        super().__init__()
        self.expand = nn.Conv2d(channels, 16, 1, bias=False)
        self.norm0, self.norm1 = nn.BatchNorm2d(16, eps=1e-3), nn.BatchNorm2d(16, momentum=0.01)
        self.depthwise = nn.Conv2d(16, 16, 3, stride, groups=16, bias=False)
        self.pad = nn.ZeroPad2d((1, 1, 1, 1) if stride == 1 else (0, 1, 0, 1))
        self.reduce, self.spread = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.project = nn.Conv2d(16, channels, 1, bias=False)
        self.act = Act(Swish)

    def forward(self, x):
        x = self.act(self.norm0(self.expand(x)))
        x = self.act(self.norm1(self.depthwise(self.pad(x))))
        squeezed = self.spread(self.act(self.reduce(F.adaptive_avg_pool2d(x, 1))))
        return self.project(torch.sigmoid(squeezed) * x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.blocks = nn.Sequential(Block(), Block(stride=2))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def train(model, run, steps=6, batch=4, seed=1):
    """Losses of `steps` steps; `run` is the model or what became of it."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(batch, 3, 16, 16, generator=generator)
        y = torch.randint(0, 5, (batch,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pair(layout=torch.contiguous_format):
    model = Net().to(memory_format=layout)
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolutional_net_trains_alike(backend, layout):
    eager, model = pair(layout)
    run = backend.optimize(model)
    expected, found = train(eager, eager), train(model, run)
    assert found == pytest.approx(expected, rel=1e-4)
    replaced = backend.reports()[-1].replaced()
    assert replaced == {"batch_norm_silu": 1, "batch_norm_act_depthwise": 2, "batch_norm_act_se": 2}
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name], buffer, rtol=1e-4, atol=1e-5)


def test_the_same_sizes_again_capture_nothing(backend):
    model = Net()
    run = backend.optimize(model)
    train(model, run)
    before = len(backend.reports())
    train(model, run)
    assert len(backend.reports()) == before


def test_eval_after_training_is_eager_eval(backend):
    eager, model = pair()
    run = backend.optimize(model)
    train(eager, eager)
    train(model, run)
    model.load_state_dict(eager.state_dict())
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(model.eval() and run(x), eager.eval()(x))
    torch.testing.assert_close(run(x), eager(x))
    with torch.no_grad():
        torch.testing.assert_close(run(x), eager(x))
        torch.testing.assert_close(run(x), eager(x))


def test_another_batch_size_is_right(backend):
    eager, model = pair()
    run = backend.optimize(model)
    for batch in (4, 4, 3, 3, 5, 5, 1, 1):
        x = torch.randn(batch, 3, 16, 16)
        torch.testing.assert_close(run(x), eager(x), rtol=1e-4, atol=1e-5)


def test_autocast_gives_the_dtypes_of_eager(backend):
    eager, model = pair()
    run = backend.optimize(model)
    x = torch.randn(4, 3, 16, 16)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            expected, found = eager(x), run(x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_a_hook_that_comes_later_runs(backend):
    eager, model = pair()
    run = backend.optimize(model)
    x = torch.randn(4, 3, 16, 16)
    run(x), run(x), eager(x), eager(x)
    for one in (eager, model):
        one.stem[1].register_forward_hook(lambda module, args, result: result * 2)
    torch.testing.assert_close(run(x), eager(x), rtol=1e-4, atol=1e-5)


def test_a_module_that_is_exchanged_later_is_used(backend):
    eager, model = pair()
    run = backend.optimize(model)
    x = torch.randn(4, 3, 16, 16)
    run(x), run(x), eager(x), eager(x)
    eager.stem[2], model.stem[2] = nn.ReLU(), nn.ReLU()
    torch.testing.assert_close(run(x), eager(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "function, reason",
    [
        (HalvedSwish, "another function: gradient"),
        (ClampedSwish, "another function: gradient"),
        (FarSwish, "with values 64 times this call's"),
        (TalkativeSwish, "is not straight-line code"),
    ],
)
def test_a_function_that_does_something_else_stays(backend, function, reason):
    eager, model = pair()
    for one in (eager, model):
        for block in one.blocks:
            block.act.function = function
    run = backend.optimize(model)
    assert train(model, run) == pytest.approx(train(eager, eager), rel=1e-5)
    report = backend.reports()[-1]
    assert report.replaced() == {"batch_norm_silu": 1}
    refusals = {chain.refusal for chain in report.chains if chain.refusal}
    assert any(reason in refusal for refusal in refusals), refusals


def test_second_derivatives_are_those_of_eager(backend):
    def penalty(run, model, x):
        (first,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), list(model.parameters()))

    eager, model = pair()
    run = backend.optimize(model)
    for _ in range(3):
        x = torch.randn(4, 3, 16, 16, requires_grad=True)
        for a, b in zip(penalty(run, model, x), penalty(eager, eager, x)):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


def test_a_write_to_a_saved_input_is_still_an_error(backend):
    class Writes(nn.Module):
        def forward(self, x):
            y = x * 2
            z = y * torch.sigmoid(y)
            y.add_(1)
            return z

    x = torch.randn(8, requires_grad=True)
    run = backend.optimize(Writes())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            run(x).sum().backward()


def test_memory_does_not_grow(backend):
    model = Net()
    run = backend.optimize(model)

    def tensors():
        gc.collect()
        return sum(type(one) is torch.Tensor for one in gc.get_objects())

    train(model, run, steps=3)
    before = tensors()
    train(model, run, steps=10)
    assert tensors() <= before + 4


def test_chains_in_two_autocast_regions_stay(backend):
    class Regions(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                s = torch.sigmoid(x)
            return x * s

    x = torch.randn(8, 8)
    run = backend.optimize(Regions())
    torch.testing.assert_close(run(x), Regions()(x))
    torch.testing.assert_close(run(x), Regions()(x))
    assert backend.reports()[-1].replaced() == {}


def test_an_inner_value_that_is_used_stays(backend):
    class Keeps(nn.Module):
        def forward(self, x):
            s = torch.sigmoid(x)
            return x * s, s

    x = torch.randn(8, 8)
    run = backend.optimize(Keeps())
    for _ in range(2):
        for a, b in zip(run(x), Keeps()(x)):
            assert torch.equal(a, b)
    assert backend.reports()[-1].replaced() == {}


def test_without_the_library_the_model_runs(backend, monkeypatch):
    monkeypatch.setattr(backend.library, "find", lambda: ROOT / "absent" / "libopfuse_ops.so")
    model = Net()
    run = backend.optimize(model)
    train(model, run, steps=2)
    assert "expected the library" in backend.reports()[-1].declined
    assert backend.reports()[-1].replaced() == {}


def test_a_failure_while_proving_leaves_the_call_unharmed(backend, monkeypatch):
    def fails(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr("opfuse.chain_proof.composition", fails)
    eager, model = pair()
    assert train(model, backend.optimize(model)) == train(eager, eager)
    reasons = {chain.refusal for chain in backend.reports()[-1].chains}
    assert "it could not be proved: RuntimeError: no memory" in reasons


def test_a_graph_is_declined_as_a_whole(backend, monkeypatch):
    def fails(*_):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(backend, "chain_of", fails)
    eager, model = pair()
    assert train(model, backend.optimize(model)) == train(eager, eager)
    assert backend.reports()[-1].declined == "RuntimeError: no such operator"
    assert backend.reports()[-1].replaced() == {}


def test_a_language_model_trains_alike(backend):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    eager = transformers.LlamaForCausalLM(config)
    model = copy.deepcopy(eager)
    run = backend.optimize(model, allow="E2")

    def losses(one, call):
        optimizer = torch.optim.AdamW(one.parameters(), 1e-2)
        found = []
        for step in range(5):
            ids = torch.randint(0, 64, (2, 16), generator=torch.Generator().manual_seed(step))
            loss = call(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected, found = losses(eager, eager), losses(model, run)
    assert found == pytest.approx(expected, rel=1e-4)
    replaced = backend.reports()[-1].replaced()
    assert replaced["rms_norm"] + replaced.get("add_rms_norm", 0) == 5
    assert replaced["silu_mul"] == 2 and replaced["rope"] == 4


def test_an_option_that_is_none_is_an_error(backend):
    with pytest.raises(ValueError, match="expected allow to be 'E1' or 'E2', found 'E9'"):
        backend.optimize(Net(), allow="E9")


def test_the_sum_after_a_norm_is_part_of_the_chain(backend):
    class Residual(nn.Module):
        """The last norm of a block, without and with drop connect."""

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

        def forward(self, x, mask):
            x = x + self.first(torch.tanh(x))
            return self.second(torch.tanh(x)) / 0.8 * mask + torch.tanh(x)

    eager = Residual()
    model = copy.deepcopy(eager)
    run = backend.optimize(model)
    mask = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1, 1)
    for _ in range(3):
        x = torch.randn(3, 8, 5, 5)
        torch.testing.assert_close(run(x, mask), eager(x, mask))
    assert backend.reports()[-1].replaced() == {
        "batch_norm_add": 1, "batch_norm_drop_connect_add": 1,
    }  # fmt: skip
    for name, buffer in eager.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name], buffer)


def nodes_behind(tensor) -> set[str]:
    """Names of the autograd nodes that lead to `tensor`."""
    found, pending = set(), [tensor.grad_fn]
    while pending:
        node = pending.pop()
        found.add(type(node).__name__)
        pending += [following for following, _ in node.next_functions if following is not None]
    return found


def test_the_first_call_goes_on_with_what_was_proved(backend):
    eager, model = pair()
    x = torch.randn(4, 3, 16, 16)
    run = backend.optimize(model)
    first, second = run(x), run(x)
    assert backend.reports()[-1].replaced()
    assert nodes_behind(first) == nodes_behind(second) != nodes_behind(eager(x))


def held_proof(target, values):
    """A proof of a chain that is `target`, of a graph that need not be one."""
    proofs = importlib.import_module("opfuse.chain_proof")
    rewrite = importlib.import_module("opfuse.chain_rewrite")
    nodes = [torch.fx.Graph().placeholder(f"x{index}") for index in range(len(values))]
    proof = proofs.Proof(rewrite.Chain(None, nodes, nodes, nodes[:1], target, list(nodes)), None)
    proof.hold(dict(zip(nodes, values)))
    return proof


def test_a_buffer_that_the_chain_has_written_is_written_once(library):
    def count(x, counter):
        return x * counter.add_(1)

    x, counter = torch.ones(3), torch.zeros(1)
    proof = held_proof(count, [x, counter])
    count(x, counter)  # the chain itself
    (result,) = proof.adopted()
    assert counter.item() == 1 and torch.equal(result, x)


@pytest.mark.parametrize("reason", ["draws", "fails"])
def test_what_cannot_be_adopted_leaves_everything_as_the_chain_left_it(library, reason):
    def count(x, counter):
        counter.add_(1)
        if reason == "fails":
            raise MemoryError
        return F.dropout(x)

    x, counter = torch.ones(3), torch.zeros(1)
    proof = held_proof(count, [x, counter])
    counter.add_(1)
    before = torch.get_rng_state()
    assert proof.adopted() is None
    assert counter.item() == 1 and torch.equal(torch.get_rng_state(), before)
