"""What a captured graph calls where a chain has more arguments than its fused operator: a padding
that is a copy of its own, or a memory format that the kernel is not for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from opfuse import functional


def _sides(padding: Sequence[int], pad: Sequence[int] | None) -> tuple[int, int, int, int] | None:
    """Left, right, top and bottom of both paddings; None where the kernel has no such."""
    left, right, top, bottom = pad or (0, 0, 0, 0)
    rows, columns = padding
    sides = (left + columns, right + columns, top + rows, bottom + rows)
    return sides if min(*sides, *(pad or (0,))) >= 0 else None


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)


def depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    pad: Sequence[int] | None = None,
) -> Tensor:
    """`F.conv2d(F.pad(x, pad), weight, bias, stride, padding, 1, C)`, one filter a channel.

    x is (N, C, H, W), weight (C, 1, K, K); `pad` is (left, right, top, bottom) as of F.pad. In
    channels_last the fused operator runs, in other formats PyTorch's, whose own kernel is better
    there.

    Example: `depthwise_conv2d(x, torch.randn(8, 1, 3, 3), None, [2, 2], [0, 0], [0, 1, 0, 1])`
    """
    sides = _sides(padding, pad)
    if sides is not None and _is_channels_last(x):
        return functional.depthwise_conv2d(x, weight, bias, tuple(stride), sides)
    padded = x if pad is None else F.pad(x, list(pad))
    return F.conv2d(padded, weight, bias, stride, padding, 1, weight.size(0))


def batch_norm_act_depthwise(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str,
    filters: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    pad: Sequence[int] | None = None,
) -> Tensor:
    """`depthwise_conv2d(act(F.batch_norm(x, …)), filters, None, stride, padding, pad)`.

    The first nine arguments are those of `functional.batch_norm_act`; in other formats than
    channels_last that one and PyTorch's convolution run.

    Example: see `depthwise_conv2d`
    """
    norm = (running_mean, running_var, weight, bias, training, momentum, eps, activation)
    sides = _sides(padding, pad)
    if sides is not None and _is_channels_last(x):
        return functional.batch_norm_act_depthwise(x, *norm, filters, tuple(stride), sides)[0]
    y = functional.batch_norm_act(x, *norm)
    return depthwise_conv2d(y, filters, None, stride, padding, pad)


def batch_norm_drop_connect_add(
    x: Tensor,
    residual: Tensor,
    mask: Tensor,
    keep: float,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """`F.batch_norm(x, …) / keep * mask + residual`, as EfficientNet-PyTorch drops whole samples.

    x and residual are (N, C, H, W), mask (N, 1, 1, 1) of zeros and ones, without a gradient.

    Example: `batch_norm_drop_connect_add(x, x, torch.ones(2, 1, 1, 1), 0.8, None, None, None, None,
    True, 0.1, 1e-5)`
    """
    norm = (running_mean, running_var, weight, bias, training, momentum, eps)
    return functional.batch_norm_act(x, *norm, "none", mask.reshape(-1) / keep, residual)
