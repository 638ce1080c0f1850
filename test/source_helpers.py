"""Records a call as the recorder does (operators with their Python stacks); loads small modules."""

import importlib.util
import itertools
import sys
import textwrap

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SKIPPED = (__file__, "torch/utils/_python_dispatch.py", "torch/utils/_device.py")


class Recorder(TorchDispatchMode):
    """`with Recorder() as record: step()`, then `record.site()`."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.codes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations.append({"op": f"aten.{func.__name__}", "stack": self._stack()})
        return func(*args, **(kwargs or {}))

    def _stack(self):
        stack, frame = [], sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.endswith(_SKIPPED):
                self.codes[id(code)] = code
                at = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None))
                line, end_line, column, end_column = (-1 if x is None else x for x in at)
                stack.append({"file": code.co_filename, "function": code.co_qualname, "line": line,
                              "end_line": end_line, "column": column, "end_column": end_column,
                              "code": id(code)})  # fmt: skip
            frame = frame.f_back
        return stack

    def site(self, function_class=""):
        """The first sigmoid and the product after it as the chain of one site."""
        names = [operation["op"] for operation in self.operations]
        first = names.index("aten.sigmoid.default")
        product = names.index("aten.mul.Tensor", first)
        backward = [
            operation
            for operation in self.operations[product + 1 :]
            if any(frame["function"].endswith(".backward") and "torch/" not in frame["file"]
                   for frame in operation["stack"])
        ]  # fmt: skip
        return {
            "id": 0, "rule": "silu", "function_class": function_class, "refusals": [],
            "operations": [self.operations[first], self.operations[product]],
            "backward_operations": backward if function_class else [],
        }  # fmt: skip


def load(folder, text, name="victim"):
    """Writes a module and imports it."""
    path = folder / f"{name}.py"
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def facts_of_call(call, function_class="", backward=False, before=None):
    """The facts of the chain that `call()` runs; `before` runs between the call and the facts."""
    from opfuse import source

    with Recorder() as record:
        result = call()
        if backward:
            result.sum().backward()
    if before:
        before()
    return source.collect_facts([record.site(function_class)], record.codes)[0]


def tensor(grad=False):
    return torch.linspace(-2, 2, 5).requires_grad_(grad)


HEAD = "import torch\nfrom torch.nn import functional as F\n"


def spanned(facts, name="span"):
    span = facts[name]
    return facts["text"].encode()[span["begin"] : span["end"]].decode()


def inline(folder, body, head=HEAD, name="f"):
    """A module whose function f(x) has `body`; its facts for one call."""
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    module = load(folder, f"{head}def f(x):\n{lines}")
    return facts_of_call(lambda: getattr(module, name)(tensor()))


SWISH = """
import torch
from torch import nn
from torch.nn import functional as F

class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i):
        result = i * torch.sigmoid(i)
        ctx.save_for_backward(i)
        return result

    @staticmethod
    def backward(ctx, grad_output):
        i = ctx.saved_tensors[0]
        sigmoid_i = torch.sigmoid(i)
        return grad_output * (sigmoid_i * (1 + i * (1 - sigmoid_i)))

class M(nn.Module):
    def forward(self, x):
        return Swish.apply(x)
"""


def swish_facts(folder, old="", new="", call=None):
    assert old in SWISH
    module = load(folder, SWISH.replace(old, new) if old else SWISH)
    call = call or (lambda module: module.M()(tensor(grad=True)))
    return facts_of_call(lambda: call(module), "Swish", backward=True)
