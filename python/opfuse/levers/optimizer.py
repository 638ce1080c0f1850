"""PyTorch's fused optimizer step in the place of its loop over parameters."""

from __future__ import annotations

import copy
from typing import Any

import torch

from opfuse.chain_proof import ALLOWED_ROUNDOFFS, SAME_FUNCTION
from opfuse.levers.lever import Context, Lever, LeverRefused, Steps

_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)


class OptimizerLever(Lever):
    """`fused=True` of every parameter group. Results may differ in rounding.

    Before it is tried both steps run on copies of each parameter, its gradient and its state: in
    float64, where they must be the same function, and in the parameter's own dtype.
    """

    name = "optimizer"
    what = "the optimizer updates all parameters in one operator"
    where = "where the optimizer is made"

    def __init__(self, context: Context) -> None:
        optimizer = context.boundaries.optimizer
        if optimizer is None:
            raise LeverRefused("no optimizer steps")
        kind = type(optimizer)
        if kind not in _FUSED:
            known = ", ".join(cls.__name__ for cls in _FUSED)
            raise LeverRefused(f"{kind.__name__} has no fused step; {known} have")
        for group in optimizer.param_groups:
            _check_group(group)
        self._optimizer = optimizer
        self._kept: list[dict[str, Any]] = []
        self.lines = (f"torch.optim.{kind.__name__}(…, fused=True)",)

    def prepare(self) -> Steps:
        compared = 0
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if problem := _difference(self._optimizer, group, parameter):
                    raise LeverRefused(problem)
                compared += 1
        if not compared:
            raise LeverRefused("no parameter has a gradient when the step ends")
        return
        yield

    def set(self, on: bool) -> None:
        if on == self.on:
            return
        groups = self._optimizer.param_groups
        if on:
            names = ("fused", "foreach")
            self._kept = [{name: group[name] for name in names} for group in groups]
            for group in groups:
                group.update(fused=True, foreach=False)
        else:
            for group, kept in zip(groups, self._kept, strict=False):
                group.update(kept)
        self.on = on


def _check_group(group: dict[str, Any]) -> None:
    if group.get("fused"):
        raise LeverRefused("it is fused already")
    for option in ("differentiable", "capturable"):
        if group.get(option):
            raise LeverRefused(f"it is {option}")
    if "foreach" not in group or "fused" not in group:
        raise LeverRefused("its groups have no option fused")
    tensors = [name for name, value in group.items() if isinstance(value, torch.Tensor)]
    if tensors:
        raise LeverRefused(f"{tensors[0]} is a tensor")
    for parameter in group["params"]:
        if parameter.device.type != "cpu" or not parameter.is_floating_point():
            raise LeverRefused(f"a parameter is {parameter.dtype} on {parameter.device}")
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise LeverRefused("a gradient is sparse")


def _difference(optimizer: Any, group: dict[str, Any], parameter: Any) -> str:
    """Why one parameter's fused step is not the same as its other one; "" when it is."""
    truth = _stepped(optimizer, group, parameter, torch.float64, False)
    other = _stepped(optimizer, group, parameter, torch.float64, True)
    before = _stepped(optimizer, group, parameter, None, False)
    after = _stepped(optimizer, group, parameter, None, True)
    shape = list(parameter.shape)
    if not truth.keys() == other.keys() == before.keys() == after.keys():
        return f"the fused step keeps other state of a parameter of {shape}"
    for name, value in truth.items():
        if not value.numel():
            continue
        scale = value.abs().max().item()
        off = (value - other[name]).abs().max().item()
        if not off <= SAME_FUNCTION * scale:
            return (
                f"another function: {name} of a parameter of {shape} differs by {off:.1e} of "
                f"{scale:.1e} in float64"
            )
        old, new = before[name], after[name]
        if old.dtype != new.dtype or old.stride() != new.stride():
            return f"{name} of a parameter of {shape} is {new.dtype} with strides {new.stride()}"
        roundoff = torch.finfo(old.dtype).eps / 2
        error_old = (old.double() - value).abs().max().item()
        error_new = (new.double() - value).abs().max().item()
        if not error_new <= 2 * error_old + ALLOWED_ROUNDOFFS * roundoff * scale:
            return (
                f"less accurate: {name} of a parameter of {shape} is {error_new:.1e} off, "
                f"{error_old:.1e} before"
            )
    return ""


@torch.no_grad()
def _stepped(
    optimizer: Any, group: dict[str, Any], parameter: Any, dtype: torch.dtype | None, fused: bool
) -> dict[str, Any]:
    """A copy of the parameter and its state after one more step with the same gradient."""
    wanted = dtype or parameter.dtype
    alone = torch.nn.Parameter(parameter.detach().to(wanted, copy=True))
    alone.grad = parameter.grad.detach().to(wanted, copy=True)
    options = {name: value for name, value in group.items() if name != "params"}
    options.update(fused=fused, foreach=False)
    other = copy.copy(optimizer)  # its class and options, none of its hooks
    other.__dict__.update(
        param_groups=[{"params": [alone], **options}], state=type(optimizer.state)(dict),
        _optimizer_step_pre_hooks={}, _optimizer_step_post_hooks={},
    )  # fmt: skip
    for name, value in optimizer.state.get(parameter, {}).items():
        of_its_shape = isinstance(value, torch.Tensor) and value.shape == parameter.shape
        kept = value.detach().to(wanted, copy=True) if of_its_shape else copy.deepcopy(value)
        other.state[alone][name] = kept
    inner_step = type(optimizer).step
    getattr(inner_step, "__wrapped__", inner_step)(other)  # without the hooks of all optimizers
    found = {"the parameter": alone.detach()}
    for name, value in other.state[alone].items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            found[name] = value
    return found
