"""The stand-in device: what it must be like for the tests that run on it to mean something."""

import subprocess
import sys

import pytest

HEAD = """
import copy, time
import torch, torch_npu
import torch.nn.functional as F
torch.manual_seed(0)
"""


@pytest.fixture
def on_device(device_env):
    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", HEAD + code], env=device_env, capture_output=True, text=True,
            timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_training_gives_the_bits_that_the_cpu_gives(on_device):
    printed = on_device("""
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.SiLU(),
    torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 5))
def train(device):
    torch.manual_seed(1)
    net = copy.deepcopy(model).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for _ in range(4):
        x, y = torch.randn(4, 3, 8, 8).to(device), torch.randint(0, 5, (4,)).to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        yield loss.item().hex()
print(list(train("cpu")) == list(train("npu")), {p.device.type for p in model.npu().parameters()})
""")
    assert printed == "True {'npu'}\n"


def test_there_is_no_float64(on_device):
    printed = on_device("""
for make in (lambda: torch.zeros(3, dtype=torch.float64, device="npu"),
             lambda: torch.zeros(3).double().to("npu"),
             lambda: torch.zeros(3, device="npu").double()):
    try:
        make()
    except TypeError as error:
        print(error)
""")
    assert printed == "npu: float64 is not supported by this device\n" * 3


def test_kernels_run_behind_the_program(on_device):
    printed = on_device("""
x = torch.ones(4, device="npu")
torch_npu.set_duration("npu_silu", 0.2)
start = time.perf_counter()
y = torch_npu.npu_silu(x)
queued = time.perf_counter() - start
torch_npu.npu.synchronize()
print(queued < 0.1, time.perf_counter() - start > 0.15, y.cpu().equal(F.silu(torch.ones(4))))
""")
    assert printed == "True True True\n"


def test_a_failure_of_a_kernel_is_told_when_the_program_waits(on_device):
    printed = on_device("""
table = torch.zeros(3, 2, device="npu")
rows = torch.nn.functional.embedding(torch.tensor([7], device="npu"), table)
try:
    torch.npu.synchronize()
except RuntimeError as error:
    print("index" in str(error))
""")
    assert printed == "True\n"


@pytest.mark.parametrize(
    "fused, small",
    [
        ("torch_npu.npu_silu(a)", "a * torch.sigmoid(a)"),
        ("torch_npu.npu_rms_norm(a, w, 1e-6)[0]",
         "a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6) * w"),
        ("torch_npu.npu_swiglu(a)", "F.silu(a.chunk(2, -1)[0]) * a.chunk(2, -1)[1]"),
        ("torch_npu.fast_gelu(a)", "a * torch.sigmoid(1.702 * a)"),
        ("torch_npu.npu_rotary_mul(a, b, c)",
         "a * b + torch.cat((-a.chunk(2, -1)[1], a.chunk(2, -1)[0]), -1) * c"),
    ],
    ids=["npu_silu", "npu_rms_norm", "npu_swiglu", "fast_gelu", "npu_rotary_mul"],
)  # fmt: skip
def test_a_fused_operator_and_its_gradients_are_the_small_operators(fused, small, on_device):
    printed = on_device(f"""
a, b, c = (torch.randn(3, 5, 8, device="npu").requires_grad_() for _ in range(3))
w = torch.randn(8, device="npu").requires_grad_()
def results(y):
    given = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to("npu")
    grads = torch.autograd.grad(y, [a, b, c, w], given, allow_unused=True)
    return [t.cpu() for t in (y.detach(), *grads) if t is not None]
for one, other in zip(results({fused}), results({small}), strict=True):
    print(torch.allclose(one, other, 1e-5, 1e-5))
""")
    assert set(printed.split()) == {"True"}


def test_an_operator_without_a_derivative_has_none_here(on_device):
    printed = on_device("""
x = torch.ones(4, device="npu", requires_grad=True)
print(torch_npu.npu_add_rms_norm(x, x, x)[0].grad_fn.name())
""")
    assert printed == "torch::autograd::NotImplemented\n"
