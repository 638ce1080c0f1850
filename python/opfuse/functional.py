"""Fused operators, as functions. Each is one pass over memory where PyTorch's small operators make
several, forward and backward, and saves its inputs only.

They are total: where the kernel does not apply (a dtype or device it is not for, broadcasting, a
tensor subclass, forward-mode derivatives, `torch.func`), the composition in the docstring runs,
with its results and its errors. Kernels run on CPU in float32, float64, bfloat16 and float16,
compute in float32 (float64 in float64) and round results once. Inputs and gradients are never
written. Second derivatives, `torch.compile(fullgraph=True)`, `vmap`, autocast and checkpointing
work.

`torch.ops.opfuse.NAME` are the same operators without Python around them.
"""

from __future__ import annotations

import torch as _torch
from torch import Tensor
from torch import ops as _ops

from opfuse import library as _library

_library.load()

_silu_mul = _ops.opfuse.silu_mul.default
_gelu_mul = _ops.opfuse.gelu_mul.default
_gelu_tanh_mul = _ops.opfuse.gelu_tanh_mul.default
_quick_gelu = _ops.opfuse.quick_gelu.default
_swish_beta = _ops.opfuse.swish_beta.default
_rms_norm = _ops.opfuse.rms_norm.default
_add_rms_norm = _ops.opfuse.add_rms_norm.default
_dropout_add_layer_norm = _ops.opfuse.dropout_add_layer_norm.default
_scale_mask_softmax = _ops.opfuse.scale_mask_softmax.default
_layer_norm_channels = _ops.opfuse.layer_norm_channels.default
_rope = _ops.opfuse.rope.default
_sigmoid_gate = _ops.opfuse.sigmoid_gate.default
_batch_norm_act = _ops.opfuse.batch_norm_act.default
_batch_norm_act_se = _ops.opfuse.batch_norm_act_se.default
_batch_norm_act_depthwise = _ops.opfuse.batch_norm_act_depthwise.default
_depthwise_conv2d = _ops.opfuse.depthwise_conv2d.default


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """`F.silu(gate) * up`: the gated activation of Llama, Qwen, Mistral (SwiGLU).

    Shapes: any; the kernel wants equal ones. The halves of one tensor, as from `chunk(2, -1)`, are
    read in place. Class E1. Saves gate and up.

    Example: `silu_mul(torch.randn(4, 8), torch.randn(4, 8))`
    """
    return _silu_mul(gate, up)


def gelu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """`F.gelu(gate) * up`: GEGLU, with the error function. Shapes, class and memory as `silu_mul`.

    Example: `gelu_mul(*torch.randn(4, 16).chunk(2, -1))`
    """
    return _gelu_mul(gate, up)


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    """`F.gelu(gate, approximate="tanh") * up`: Gemma, T5 v1.1. Another function than `gelu_mul`, by
    up to 5e-4 for up = 1. Shapes, class and memory as `silu_mul`.

    Example: `gelu_tanh_mul(torch.randn(4, 8), torch.randn(4, 8))`
    """
    return _gelu_tanh_mul(gate, up)


def quick_gelu(x: Tensor, beta: float = 1.702) -> Tensor:
    """`x * torch.sigmoid(beta * x)`: CLIP's activation. Any shape. Class E1. Saves x.

    Example: `quick_gelu(torch.randn(4, 8))`
    """
    return _quick_gelu(x, beta)


def swish_beta(x: Tensor, beta: Tensor) -> Tensor:
    """`x * torch.sigmoid(beta * x)` with a learnable beta; the kernel wants one of one element.

    x is of any shape. Class E1; the gradient of beta is summed in float64. Saves x and beta.

    Example: `swish_beta(torch.randn(4, 8), torch.ones(1))`
    """
    return _swish_beta(x, beta)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: str = "output",
) -> Tensor:
    """`x * rsqrt(mean(x**2, -1) + eps) * (offset + weight)`, the root over the last dimension.

    x is (..., n), weight (n,). `cast` says where low precision is raised to float32 and rounded:
    "output": `(norm(x.float()) * (offset + weight.float())).to(x.dtype)`, as F.rms_norm and, with
    offset=1, Gemma; "input": `(offset + weight) * norm(x.float()).to(x.dtype)`, as Llama, Qwen and
    T5; "none": no casts. Class E1 for the same `cast`; another one is E2. Saves x and weight.
    Raises ValueError for another `cast`.

    Example: `rms_norm(torch.randn(4, 8), torch.ones(8), 1e-6, cast="input")`
    """
    return _rms_norm(x, weight, eps, offset, cast)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: str = "output",
) -> tuple[Tensor, Tensor]:
    """`sum = x + residual; y = rms_norm(sum, …)`; returns (y, sum). See `rms_norm`.

    A pre-norm block needs both. Class E1. Saves sum and weight.

    Example: `y, h = add_rms_norm(torch.randn(4, 8), torch.randn(4, 8), torch.ones(8))`
    """
    return _add_rms_norm(x, residual, weight, eps, offset, cast)


def dropout_add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    p: float = 0.0,
    training: bool = False,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """`sum = F.dropout(x, p, training) + residual; y = F.layer_norm(sum, sum.shape[-1:], …)`.

    Returns (y, sum): a pre-norm block hands the sum on. x and residual are (..., n), weight and
    bias (n,); the kernel wants contiguous ones. The random numbers are drawn as F.dropout draws
    them, so a seed gives the same mask. Class E1. Saves sum, mask and parameters. Raises ValueError
    for p outside of [0, 1].

    Example: `y, h = dropout_add_layer_norm(torch.randn(4, 8), torch.randn(4, 8), torch.ones(8))`
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout_add_layer_norm: expected p between 0 and 1, found {p}")
    noise = None
    if training and p > 0 and x.numel():
        noise = _torch.empty_like(x).bernoulli_(1 - p) if p < 1 else _torch.zeros_like(x)
        if p < 1:
            noise = noise.div_(1 - p)
    return _dropout_add_layer_norm(x, residual, noise, weight, bias, eps)


def scale_mask_softmax(
    x: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    causal: bool = False,
    fill: float = float("-inf"),
) -> Tensor:
    """`softmax(mask(x * scale), -1)`: the probabilities of attention, where they are wanted.

    x is (..., q, k). A floating mask is added; a boolean one says which scores take part, the
    others become `fill` (-1e4 or torch.finfo(dtype).min where the code replaced has it);
    causal=True lets row i see columns 0 to i, as scaled_dot_product_attention does. The kernel
    wants a mask whose last size is k and whose others are 1 or those of x; a mask that is trained
    takes the small operators. A row without any score is NaN with fill=-inf and uniform with a
    finite one, as from masked_fill and softmax; scores that take no part have the gradient 0. The
    result is contiguous. Class E1. Saves the result and the boolean mask.

    Example: `scale_mask_softmax(torch.randn(2, 4, 5, 5), None, 0.125, causal=True)`
    """
    return _scale_mask_softmax(x, mask, scale, causal, fill)


def layer_norm_channels(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    channels_last: bool = False,
) -> Tensor:
    """Layer norm over the channels of images (ConvNeXt). With `d = x - x.mean(1, keepdim=True)`:

    `d / sqrt((d * d).mean(1, keepdim=True) + eps) * weight[:, None, None] + bias[:, None, None]`

    x is (N, C, H, W), contiguous or channels_last, and the result is laid out as x. With
    channels_last=True it is channels_last whatever x is, as
    `F.layer_norm(x.permute(0, 2, 3, 1), (C,), …).permute(0, 3, 1, 2)` gives it. weight and bias are
    (C,); the kernel wants them in x's dtype. Class E1. Saves x and the weight. Raises RuntimeError
    for an x that is not 4-dimensional.

    Example: `layer_norm_channels(torch.randn(2, 8, 5, 5), torch.ones(8), torch.zeros(8))`
    """
    return _layer_norm_channels(x, weight, bias, eps, channels_last)


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """`x * cos + rotate(x) * sin`: rotary position embedding of queries or keys.

    x is (..., d); cos and sin (..., r) with r <= d, broadcast over the leading dimensions; elements
    beyond r pass through (partial rotary). `rotate` turns halves, `cat(-x2, x1)` (Llama, Qwen), or
    with interleaved=True neighbours, `(-x1, x0, -x3, x2, …)` (GPT-J). The two are different
    functions. Class E1. Saves cos and sin.

    Example: `rope(torch.randn(1, 2, 5, 8), torch.ones(5, 8), torch.zeros(5, 8))`
    """
    return _rope(x, cos, sin, interleaved)


def sigmoid_gate(x: Tensor, gate: Tensor, hard: bool = False) -> Tensor:
    """`x * torch.sigmoid(gate)`, or with hard=True `x * F.hardsigmoid(gate)`.

    x is (N, C, *), contiguous or channels_last; the kernel wants a gate of (N, C, 1, …): the last
    step of squeeze-and-excitation. Class E1. Saves x and gate.

    Example: `sigmoid_gate(torch.randn(2, 8, 4, 4), torch.randn(2, 8, 1, 1))`
    """
    return _sigmoid_gate(x, gate, hard)


def batch_norm_act(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str = "none",
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`act(F.batch_norm(x, …)) * scale.view(-1, 1, …) + residual`, arguments as of F.batch_norm.

    x is (N, C, *), contiguous or channels_last; `activation` is "none", "silu", "relu", "relu6",
    "hardswish" or "gelu"; `scale` (N,) and `residual` (as x) are optional: stochastic depth and the
    sum after it. In training the running statistics are updated as by F.batch_norm. Parameters may
    be float32 beside bfloat16 or float16. Class E1. Saves x and the statistics: neither the norm's
    result nor the activation's. Raises ValueError for another activation, and where F.batch_norm
    does.

    Example: `batch_norm_act(torch.randn(4, 8, 5, 5), training=True, activation="silu")`
    """
    if not training:
        return _batch_norm_act(
            x, weight, bias, running_mean, running_var, eps, activation, scale, residual
        )[0]
    _torch.nn.functional._verify_batch_size(x.size())
    y, mean, var = _batch_norm_act(x, weight, bias, None, None, eps, activation, scale, residual)
    _update_running(running_mean, running_var, mean, var, x, momentum)
    return y


def _update_running(running_mean, running_var, mean, var, x, momentum) -> None:
    """As F.batch_norm does in training; `var` is the biased one."""
    with _torch.no_grad():
        if running_mean is not None:
            running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
        if running_var is not None:
            count = x.numel() // x.size(1)
            running_var.mul_(1 - momentum).add_(var, alpha=momentum * count / (count - 1))


def batch_norm_act_se(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    activation: str,
    reduce_weight: Tensor,
    reduce_bias: Tensor | None,
    expand_weight: Tensor,
    expand_bias: Tensor | None,
    reduce_activation: str = "silu",
    hard: bool = False,
    statistics: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Batch norm, activation and squeeze-and-excitation in one. With `a = batch_norm_act(x, …)`:

    `a * sigmoid(conv2d(act(conv2d(a.mean((2, 3), keepdim=True), reduce…)), expand…))`

    x is (N, C, H, W), best in channels_last (otherwise it is copied); reduce_weight (R, C, 1, 1),
    expand_weight (C, R, 1, 1); the first eight arguments are those of F.batch_norm, activations
    those of `batch_norm_act`, `reduce_activation` the one between the convolutions; hard=True takes
    F.hardsigmoid. `statistics`: in training, mean and biased variance of x where they are known
    already (`batch_norm_act_depthwise` returns those of its result); they are not computed again
    and must be x's own. Class E1. Saves x, the statistics and three matrices of (N, C) and (N, R).
    Threads share the samples. Raises ValueError for another activation, and where F.batch_norm
    does.

    Example: `batch_norm_act_se(torch.randn(2, 8, 4, 4), None, None, None, None, True, 0.1, 1e-3,
    "silu", torch.randn(2, 8, 1, 1), None, torch.randn(8, 2, 1, 1), None)`
    """
    layers = (reduce_weight, reduce_bias, expand_weight, expand_bias, reduce_activation, hard)
    if not training:
        return _batch_norm_act_se(
            x, weight, bias, running_mean, running_var, eps, activation, *layers
        )[0]
    _torch.nn.functional._verify_batch_size(x.size())
    known = (None, None) if statistics is None else statistics
    y, mean, var, *_ = _batch_norm_act_se(
        x, weight, bias, None, None, eps, activation, *layers, *known
    )
    _update_running(running_mean, running_var, mean, var, x, momentum)
    return y


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
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int, int, int] = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm, activation and depthwise convolution in one; returns (y, mean, variance of y).

    `y = depthwise_conv2d(batch_norm_act(x, …), filters, None, stride, padding)`

    x is (N, C, H, W), best in channels_last (otherwise it is copied); filters (C, 1, K, K), the
    kernel wants K up to 7; the first eight arguments are those of F.batch_norm, `activation` as of
    `batch_norm_act`, stride and padding as of `depthwise_conv2d`. The activated values are never in
    memory: a few rows of them are kept in cache. The second and third result, (C,), are the mean
    and biased variance of y per channel, for the norm that follows; they have no gradient. Class
    E1. Saves x, the statistics and the filters. Threads share the samples.

    Example: `y, mean, var = batch_norm_act_depthwise(torch.randn(2, 8, 5, 5), None, None, None,
    None, True, 0.1, 1e-3, "silu", torch.randn(8, 1, 3, 3), 1, 1)`
    """
    step = (stride, stride) if isinstance(stride, int) else stride
    sides = (padding, padding, padding, padding) if isinstance(padding, int) else padding
    if not training:
        y, _, _, y_mean, y_var = _batch_norm_act_depthwise(
            x, weight, bias, running_mean, running_var, eps, activation, filters, step, sides
        )
        return y, y_mean, y_var
    _torch.nn.functional._verify_batch_size(x.size())
    y, mean, var, y_mean, y_var = _batch_norm_act_depthwise(
        x, weight, bias, None, None, eps, activation, filters, step, sides
    )
    _update_running(running_mean, running_var, mean, var, x, momentum)
    return y, y_mean, y_var


def depthwise_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int, int, int] = 0,
) -> Tensor:
    """`F.conv2d(F.pad(x, padding), weight, bias, stride, groups=C)`: one filter a channel.

    x is (N, C, H, W), best in channels_last; weight (C, 1, K, K); `padding` is one number or (left,
    right, top, bottom) as of F.pad, so that TensorFlow's "same" needs no copy. Registers are used
    best for K of 3, 5, 7, strides 1 and 2, in float32. Class E1. Saves x and weight. Under autocast
    inputs are cast as those of F.conv2d.

    Example: `depthwise_conv2d(torch.randn(1, 8, 9, 9), torch.randn(8, 1, 3, 3), padding=1)`
    """
    step = (stride, stride) if isinstance(stride, int) else stride
    sides = (padding, padding, padding, padding) if isinstance(padding, int) else padding
    return _depthwise_conv2d(x, weight, bias, step, sides)
