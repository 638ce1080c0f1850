"""Convolution weights in channels_last: `model.to(memory_format=torch.channels_last)`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from opfuse import native
from opfuse.boundary import Hook, signature_of
from opfuse.levers.lever import Context, Lever, LeverRefused, Steps, devices_of, wrapper_of

_CONVOLUTIONS = (torch.nn.Conv2d, torch.nn.ConvTranspose2d)
_WARM_STEPS = 3  # a captured graph is captured once more for other strides
# A tensor and the object that asks for its storage.
_OWN_REFERENCES = 2


class LayoutLever(Lever):
    """Parameters, their gradients and optimizer state of four dimensions in channels_last.

    The values stay, bit for bit; sums in convolutions and norms may run in another order. A
    recorded step is replayed with these weights first, so that a `.view()` that such activations do
    not have is an error there and not in the program. Calls of the model in another mode or of
    other sizes than in that step, as in a validation, have the old layout.
    """

    name = "layout"
    what = "convolutions run in channels_last"
    lines = ("model = model.to(memory_format=torch.channels_last)",)
    where = "after the model is made"

    def __init__(self, context: Context) -> None:
        self._context = context
        root = context.boundaries.root
        if root is None:
            raise LeverRefused("no root module is called")
        if devices := devices_of(root) - {"cpu", "cuda"}:
            raise LeverRefused(f"the model is on {', '.join(sorted(devices))}")
        if wrapper := wrapper_of(root):
            raise LeverRefused(f"the {wrapper} has laid out its buckets of gradients already")
        if not any(isinstance(module, _CONVOLUTIONS) for module in root.modules()):
            raise LeverRefused("the model has no convolution over two dimensions")
        self._optimizer = context.boundaries.optimizer
        self._parameters = [p for p in root.parameters() if p.dim() == 4]
        for name, tensor in root.named_parameters():
            if tensor.dim() == 4:
                _check_alone(name, tensor)
        if all(_is_channels_last(p) for p in self._parameters):
            raise LeverRefused("the weights are in channels_last already")
        self._strides = {id(p): p.stride() for p in self._parameters}
        self._root = root
        self._known: set[Any] = set()  # how the root was called in the replayed step
        self._moved = False
        self._guard: Any = None

    def prepare(self) -> Steps:
        watch = self._root.register_forward_pre_hook(Hook(self._learn), with_kwargs=True)
        try:
            number = yield from self._context.record()
        finally:
            watch.remove()
        try:
            verdict = self._context.session.call("prove_layout", record=number)
        except native.NativeError as error:
            raise LeverRefused(str(error).removeprefix("prove_layout: ")) from None
        finally:
            self._context.forget(number)
        if not verdict["accepted"]:
            raise LeverRefused(f"a recorded step does not hold with it: {verdict['reason']}")
        old, new = verdict["gradient_error_old"], verdict["gradient_error_new"]
        if old > 0:
            self.what += f", whose gradients are {new / old:.2g} times as far from fp64"
        self.set(True)
        for _ in range(_WARM_STEPS):
            yield "warm"
        self.set(False)

    def set(self, on: bool) -> None:
        if on == self.on:
            return
        if on:
            hook = Hook(self._follow)
            self._guard = self._root.register_forward_pre_hook(hook, with_kwargs=True)
        else:
            self._guard.remove()
        self._move(on)
        self.on = on

    def _learn(self, module: Any, arguments: Any, keywords: Any) -> None:
        self._known.add(_call_of(module, arguments, keywords))

    def _follow(self, module: Any, arguments: Any, keywords: Any) -> None:
        self._move(_call_of(module, arguments, keywords) in self._known)

    @torch.no_grad()
    def _move(self, there: bool) -> None:
        if there == self._moved:
            return
        for tensor, strides in self._tensors():
            if there:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
            else:
                restored = torch.empty_strided(
                    tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
                )
                tensor.data = restored.copy_(tensor.data)
        self._moved = there

    def _tensors(self) -> Iterator[tuple[Any, tuple[int, ...]]]:
        """The weights, their gradients and state of their shape, with the weight's old strides."""
        for parameter in self._parameters:
            strides = self._strides[id(parameter)]
            yield parameter, strides
            if parameter.grad is not None:
                yield parameter.grad, strides
            state = self._optimizer.state.get(parameter, {}) if self._optimizer is not None else {}
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    yield value, strides


def _call_of(module: Any, arguments: Any, keywords: Any) -> tuple[Any, ...]:
    return module.training, torch.is_grad_enabled(), signature_of((arguments, keywords))


def _is_channels_last(tensor: Any) -> bool:
    return bool(tensor.is_contiguous(memory_format=torch.channels_last))


def _check_alone(name: str, parameter: Any) -> None:
    """Moving a tensor to memory of its own parts it from all that share the old one."""
    if type(parameter) not in (torch.nn.Parameter, torch.Tensor):
        raise LeverRefused(f"{name} is a {type(parameter).__name__}")
    if parameter.is_shared() and parameter.device.type == "cpu":
        raise LeverRefused(f"{name} lies in memory shared between processes")
    if not parameter.is_leaf or parameter._base is not None:
        raise LeverRefused(f"{name} is a view of another tensor")
    if parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size():
        raise LeverRefused(f"{name} lies in a larger buffer, together with others")
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        raise LeverRefused("this torch does not say who uses a weight's memory")
    if count(parameter.untyped_storage()._cdata) > _OWN_REFERENCES:
        raise LeverRefused(f"another tensor uses the memory of {name}")
