"""What each operator of `opfuse.functional` means, in PyTorch's own operators and with the same
signature: the other side of every test and benchmark.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate) * up


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def quick_gelu(x: Tensor, beta: float = 1.702) -> Tensor:
    return x * torch.sigmoid(beta * x)


def swish_beta(x: Tensor, beta: Tensor) -> Tensor:
    return x * torch.sigmoid(beta * x)


def _raised(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x, weight=None, eps=1e-6, *, offset=0.0, cast="output"):
    h = x if cast == "none" else _raised(x)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    if cast == "input":
        h = h.to(x.dtype)
    if weight is not None:
        w = _raised(weight) if cast == "output" else weight
        h = (offset + w if offset else w) * h
    return h.to(x.dtype) if cast == "output" else h


def add_rms_norm(x, residual, weight=None, eps=1e-6, *, offset=0.0, cast="output"):
    total = x + residual
    return rms_norm(total, weight, eps, offset=offset, cast=cast), total


def dropout_add_layer_norm(x, residual, weight=None, bias=None, p=0.0, training=False, eps=1e-5):
    total = F.dropout(x, p, training) + residual
    return F.layer_norm(total, total.shape[-1:], weight, bias, eps), total


def scale_mask_softmax(x, mask=None, scale=1.0, causal=False, fill=float("-inf")):
    scores = x * scale
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    elif mask is not None:
        scores = scores.masked_fill(~mask, fill)
    if causal:
        hidden = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril().logical_not()
        scores = scores.masked_fill(hidden, fill)
    return torch.softmax(scores, -1)


def layer_norm_channels(x, weight=None, bias=None, eps=1e-6, channels_last=False):
    if channels_last:
        y = F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), weight, bias, eps)
        return y.permute(0, 3, 1, 2)
    d = x - x.mean(1, keepdim=True)
    y = d / torch.sqrt((d * d).mean(1, keepdim=True) + eps)
    y = y if weight is None else y * weight[:, None, None]
    return y if bias is None else y + bias[:, None, None]


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    r = cos.shape[-1]
    head, rest = x[..., :r], x[..., r:]
    if interleaved:
        turned = torch.stack((-head[..., 1::2], head[..., ::2]), dim=-1).flatten(-2)
    else:
        turned = torch.cat((-head[..., r // 2 :], head[..., : r // 2]), dim=-1)
    y = head * cos + turned * sin
    return torch.cat((y, rest), dim=-1) if r < x.shape[-1] else y


def sigmoid_gate(x: Tensor, gate: Tensor, hard: bool = False) -> Tensor:
    return x * (F.hardsigmoid(gate) if hard else torch.sigmoid(gate))


ACTIVATIONS = {
    "none": lambda z: z,
    "silu": F.silu,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
}


def batch_norm_act(
    x,
    running_mean=None,
    running_var=None,
    weight=None,
    bias=None,
    training=False,
    momentum=0.1,
    eps=1e-5,
    activation="none",
    scale=None,
    residual=None,
):
    z = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    y = ACTIVATIONS[activation](z)
    if scale is not None:
        y = y * scale.view(-1, *[1] * (x.dim() - 1))
    return y if residual is None else y + residual


def batch_norm_act_se(
    x,
    running_mean,
    running_var,
    weight,
    bias,
    training,
    momentum,
    eps,
    activation,
    reduce_weight,
    reduce_bias,
    expand_weight,
    expand_bias,
    reduce_activation="silu",
    hard=False,
    statistics=None,
):
    a = batch_norm_act(
        x, running_mean, running_var, weight, bias, training, momentum, eps, activation
    )
    hidden = F.conv2d(a.mean((2, 3), keepdim=True), reduce_weight, reduce_bias)
    gate = F.conv2d(ACTIVATIONS[reduce_activation](hidden), expand_weight, expand_bias)
    return a * (F.hardsigmoid(gate) if hard else torch.sigmoid(gate))


def batch_norm_act_depthwise(
    x,
    running_mean,
    running_var,
    weight,
    bias,
    training,
    momentum,
    eps,
    activation,
    filters,
    stride=1,
    padding=0,
):
    a = batch_norm_act(
        x, running_mean, running_var, weight, bias, training, momentum, eps, activation
    )
    y = depthwise_conv2d(a, filters, None, stride, padding)
    raised = y.detach() if y.dtype == torch.float64 else y.detach().float()
    var, mean = torch.var_mean(raised, (0, 2, 3), correction=0)
    return y, mean, var


def depthwise_conv2d(x, weight, bias=None, stride=1, padding=0):
    step = (stride, stride) if isinstance(stride, int) else stride
    sides = [padding] * 4 if isinstance(padding, int) else padding
    padded = F.pad(x, sides) if any(sides) else x
    return F.conv2d(padded, weight, bias, step, groups=x.shape[1])
