"""Modules with the fused operators of `opfuse.functional` inside, and functions that take modules.

A module here has the `state_dict` keys of what it replaces, so that checkpoints go both ways:

    BatchNormAct2d      nn.BatchNorm2d, then an activation, per-sample scale and residual
    DepthwiseConv2d     nn.ZeroPad2d and nn.Conv2d with groups == channels
    RMSNorm             nn.RMSNorm; the norms of Llama, Qwen, T5 and Gemma by `cast` and `offset`
    AddRMSNorm          the same after a sum, of which it returns both
    SiLUMul, GELUMul    the gate of SwiGLU and GEGLU, of two tensors or of the halves of one
    SigmoidGate         the last step of squeeze-and-excitation
    QuickGELU, Swish    x * sigmoid(beta * x), beta a number or a parameter

`batch_norm_act(norm, activation, x)` is for edits of a model's own code: it passes the modules, not
what they were when the edit was made, and is `activation(norm(x))` for every module.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _module

from opfuse import functional as F

__all__ = [
    "AddRMSNorm", "BatchNormAct2d", "DepthwiseConv2d", "GELUMul", "QuickGELU", "RMSNorm",
    "SiLUMul", "SigmoidGate", "Swish", "batch_norm_act",
]  # fmt: skip

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ACTIVATIONS = {
    nn.Identity: "none",
    nn.SiLU: "silu",
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Hardswish: "hardswish",
    nn.GELU: "gelu",
}


def _counted(norm: nn.modules.batchnorm._BatchNorm) -> tuple:
    """What F.batch_norm gets from nn.BatchNorm2d.forward, the batch counted; without the input."""
    momentum = 0.0 if norm.momentum is None else norm.momentum
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:  # cumulative average
            momentum = 1.0 / float(norm.num_batches_tracked)
    measured = norm.training or (norm.running_mean is None and norm.running_var is None)
    tracked = not norm.training or norm.track_running_stats
    mean, var = (norm.running_mean, norm.running_var) if tracked else (None, None)
    return mean, var, norm.weight, norm.bias, measured, momentum, norm.eps


def _is_plain(module: nn.Module) -> bool:
    """Nothing but the class's own forward would run: no hook, no forward of the object's own."""
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or _module._has_any_global_hook()
    )


def _activation_of(module: nn.Module | None) -> str | None:
    """The name for `functional.batch_norm_act`; None for a module that it does not know."""
    if module is None:
        return "none"
    name = _ACTIVATIONS.get(type(module))
    if name is None or not _is_plain(module) or getattr(module, "approximate", "none") != "none":
        return None
    return name


def batch_norm_act(
    norm: nn.Module,
    activation: nn.Module | None,
    x: Tensor,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`activation(norm(x)) * scale.view(-1, 1, …) + residual`.

    In one operator where the modules are exactly nn.BatchNorm1d, 2d or 3d and nn.Identity (or
    None), SiLU, ReLU, ReLU6, Hardswish or GELU, without hooks; subclasses, parametrized and hooked
    modules are called as they are. Running statistics and the count of batches are updated as the
    norm does it.

    Example: `batch_norm_act(nn.BatchNorm2d(8), nn.SiLU(), torch.randn(4, 8, 5, 5))`
    """
    name = _activation_of(activation)
    if name is not None and type(norm) in _NORMS and _is_plain(norm):
        norm._check_input_dim(x)
        return F.batch_norm_act(x, *_counted(norm), name, scale, residual)
    y = norm(x) if activation is None else activation(norm(x))
    if scale is not None:
        y = y * scale.view(-1, *[1] * (y.dim() - 1))
    return y if residual is None else y + residual


class BatchNormAct2d(nn.BatchNorm2d):
    """`functional.batch_norm_act` with the parameters and buffers of nn.BatchNorm2d.

    Raises ValueError for an unknown activation, at construction.

    Example: `BatchNormAct2d(8, activation="silu")(torch.randn(4, 8, 5, 5))`
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True, device=None, dtype=None,
                 *, activation: str = "silu") -> None:  # fmt: skip
        if activation not in _ACTIVATIONS.values():
            known = ", ".join(map(repr, _ACTIVATIONS.values()))
            raise ValueError(
                f"BatchNormAct2d: expected activation to be one of {known}, found {activation!r}"
            )
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.activation = activation

    def forward(
        self, x: Tensor, scale: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        self._check_input_dim(x)
        return F.batch_norm_act(x, *_counted(self), self.activation, scale, residual)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


class DepthwiseConv2d(nn.Module):
    """`functional.depthwise_conv2d`; `weight` and `bias` are those of nn.Conv2d with groups ==
    channels. `padding` is one number or (left, right, top, bottom).

    Example: `DepthwiseConv2d(8, 3, padding=1)(torch.randn(1, 8, 9, 9))`
    """

    def __init__(self, channels: int, kernel_size: int, stride: int = 1,
                 padding: int | tuple[int, int, int, int] = 0, bias: bool = True,
                 device=None, dtype=None) -> None:  # fmt: skip
        super().__init__()
        made = nn.Conv2d(channels, channels, kernel_size, groups=channels, bias=bias,
                         device=device, dtype=dtype)  # fmt: skip
        self.weight, self.bias = made.weight, made.bias  # initialized as nn.Conv2d does
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        return F.depthwise_conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        channels, _, kernel, _ = self.weight.shape
        return f"{channels}, {kernel}, stride={self.stride}, padding={self.padding}"


class RMSNorm(nn.Module):
    """`functional.rms_norm` over the last dimension, with a `weight` (n,) unless affine=False.

    Example: `RMSNorm(8, 1e-6, cast="input")(torch.randn(2, 8))`
    """

    def __init__(self, n: int, eps: float = 1e-6, affine: bool = True, *, offset: float = 0.0,
                 cast: str = "output", device=None, dtype=None) -> None:  # fmt: skip
        super().__init__()
        start = torch.full((n,), 1.0 - offset, device=device, dtype=dtype)
        self.register_parameter("weight", nn.Parameter(start) if affine else None)
        self.eps, self.offset, self.cast = eps, offset, cast

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight, self.eps, offset=self.offset, cast=self.cast)

    def extra_repr(self) -> str:
        size = "no weight" if self.weight is None else self.weight.numel()
        return f"{size}, eps={self.eps}, offset={self.offset}, cast={self.cast!r}"


class AddRMSNorm(RMSNorm):
    """`functional.add_rms_norm`: takes x and residual, returns (norm of the sum, sum).

    Example: `y, total = AddRMSNorm(8)(torch.randn(2, 8), torch.randn(2, 8))`
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        return F.add_rms_norm(
            x, residual, self.weight, self.eps, offset=self.offset, cast=self.cast
        )


class SiLUMul(nn.Module):
    """`F.silu(gate) * up`; given one tensor, its halves along the last dimension.

    Example: `SiLUMul()(torch.randn(2, 16))`
    """

    function = staticmethod(F.silu_mul)

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        if up is None:
            gate, up = gate.chunk(2, -1)
        return self.function(gate, up)


class GELUMul(SiLUMul):
    """`F.gelu(gate, approximate=…) * up`; given one tensor, its halves along the last dimension.

    Example: `GELUMul("tanh")(torch.randn(2, 16))`
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(
                f"GELUMul: expected approximate to be 'none' or 'tanh', found {approximate!r}"
            )
        self.approximate = approximate

    def function(self, gate: Tensor, up: Tensor) -> Tensor:
        return (F.gelu_tanh_mul if self.approximate == "tanh" else F.gelu_mul)(gate, up)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SigmoidGate(nn.Module):
    """`x * sigmoid(gate)`, or with hard=True hardsigmoid.

    Example: `SigmoidGate()(torch.randn(2, 8, 4, 4), torch.randn(2, 8, 1, 1))`
    """

    def __init__(self, hard: bool = False) -> None:
        super().__init__()
        self.hard = hard

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return F.sigmoid_gate(x, gate, self.hard)


class QuickGELU(nn.Module):
    """`x * sigmoid(1.702 * x)`.

    Example: `QuickGELU()(torch.randn(2, 8))`
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.quick_gelu(x)


class Swish(nn.Module):
    """`x * sigmoid(beta * x)` with a trained `beta` of one element.

    Example: `Swish()(torch.randn(2, 8))`
    """

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.full((1,), float(beta)))

    def forward(self, x: Tensor) -> Tensor:
        return F.swish_beta(x, self.beta)
