"""What surrounds the chain while it runs."""

import torch
from harness import train
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint


def inline(x):  # planned
    return x * torch.sigmoid(x)


class Functions(TorchFunctionMode):  # row 39: __torch_function__
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def of_a_default_device(x):
    return x * torch.sigmoid(x)  # planned


def default_device(x):
    with torch.device("cpu"):
        return of_a_default_device(x)


class Dispatch(TorchDispatchMode):  # row 39: mode
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def of_a_function_mode(x):
    return x * torch.sigmoid(x)


def function_mode(x):
    with Functions():
        return of_a_function_mode(x)


def of_a_dispatch_mode(x):
    return x * torch.sigmoid(x)


def dispatch_mode(x):
    with Dispatch():
        return of_a_dispatch_mode(x)


def of_saved_tensor_hooks(x):  # row 40: saved-tensor hooks
    return x * torch.sigmoid(x)


def saved_tensor_hooks(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return of_saved_tensor_hooks(x)


def of_a_checkpoint(x):  # row 40: saved-tensor hooks
    return x * torch.sigmoid(x)


def checkpointed(x):
    return checkpoint(of_a_checkpoint, x, use_reentrant=False)


def of_a_reentrant_checkpoint(x):  # row 32: checkpoint
    x = x.exp()
    return x * torch.sigmoid(x)


def reentrantly_checkpointed(x):
    return checkpoint(of_a_reentrant_checkpoint, x, use_reentrant=True)


if __name__ == "__main__":
    train(
        inline, function_mode, default_device, dispatch_mode, saved_tensor_hooks, checkpointed,
        reentrantly_checkpointed,
    )  # fmt: skip
