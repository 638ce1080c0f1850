# ruff: noqa: B008
"""Ways in which known chains are written in public code, one function each.

The comment on a function's first line names the rule that must find it. Each function gets inputs
of its own; `x` is f32[2,8,4,4] where the name of the function says image, else f32[2,6,8].
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


# Swish ---------------------------------------------------------------------------------------
def swish_product(x):  # silu
    return x * torch.sigmoid(x)


def swish_method(x):  # silu
    return x.mul(x.sigmoid())


def swish_method_reversed(x):  # silu
    return x.sigmoid().mul(x)


def swish_torch_mul(x):  # silu
    return torch.mul(x, torch.sigmoid(x))


def swish_quotient(x):  # silu
    return x / (1 + torch.exp(-x))


def swish_in_fp32(x):  # silu
    y = x.to(torch.bfloat16)
    z = y.float()
    return (z * torch.sigmoid(z)).to(torch.bfloat16)


def swish_with_slope(x):  # swish_beta
    return x * torch.sigmoid(1.5 * x)


def swish_learned(x, beta=torch.ones(1)):  # swish_learned
    return x * torch.sigmoid(beta * x)


def quick_gelu(x):  # quick_gelu
    return x * torch.sigmoid(1.702 * x)


# Hardswish -----------------------------------------------------------------------------------
def hardswish_relu6(x):  # hardswish
    return x * F.relu6(x + 3) / 6


def hardswish_relu6_first(x):  # hardswish
    return x * (F.relu6(x + 3) / 6)


def hardswish_in_place(x):  # hardswish
    inner = F.relu6(x + 3.0).div_(6.0)
    return x.mul(inner)


def hardswish_clamp(x):  # hardswish
    return x * (x + 3).clamp(0, 6) / 6


def hardswish_hardtanh(x):  # hardswish
    return x * F.hardtanh(x + 3, 0.0, 6.0) / 6.0


def hardswish_hardsigmoid(x):  # hardswish
    return x * F.hardsigmoid(x)


def hardsigmoid_relu6(x):  # hardsigmoid
    return F.relu6(x + 3.0) / 6.0


# Mish ----------------------------------------------------------------------------------------
def mish_functions(x):  # mish
    return x * torch.tanh(F.softplus(x))


def mish_methods(x):  # mish
    return x.mul(F.softplus(x).tanh())


def mish_by_log(x):  # mish
    return x * torch.tanh(torch.log(1 + torch.exp(x)))


# GELU ----------------------------------------------------------------------------------------
def gelu_erf(x):  # gelu
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_erf_constant(x):  # gelu
    return 0.5 * x * (1 + torch.erf(x * 0.7071067811865476))


def gelu_half_last(x):  # gelu
    return x * (1 + torch.erf(x / math.sqrt(2.0))) * 0.5


def gelu_new(x):  # gelu_tanh
    return (
        0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
    )


def gelu_half_last_tanh(x):  # gelu_tanh
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))) * 0.5


def gelu_factored(x):  # gelu_tanh
    return 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608028654 * (1.0 + 0.044715 * x * x)))


# Norms ---------------------------------------------------------------------------------------
def layer_norm_var(x, w=torch.ones(8), b=torch.zeros(8)):  # layer_norm
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * w + b


def layer_norm_duplicated_sub(x):  # layer_norm
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5)


def layer_norm_channels_image(x, w=torch.ones(8), b=torch.zeros(8)):  # layer_norm_channels
    u = x.mean(1, keepdim=True)
    s = (x - u).pow(2).mean(1, keepdim=True)
    x = (x - u) / torch.sqrt(s + 1e-6)
    return w[:, None, None] * x + b[:, None, None]


def layer_norm_permuted_image(x, w=torch.ones(8), b=torch.zeros(8)):  # layer_norm_channels_moved
    x = x.permute(0, 2, 3, 1)
    return F.layer_norm(x, (8,), w, b, 1e-6).permute(0, 3, 1, 2)


def rms_norm_llama(x, w=torch.ones(8)):  # rms_norm
    h = x.to(torch.bfloat16)
    y = h.to(torch.float32)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w.to(torch.bfloat16) * y.to(h.dtype)


def rms_norm_weight_last(x, w=torch.ones(8)):  # rms_norm
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def rms_norm_square(x, w=torch.ones(8)):  # rms_norm
    return x * torch.rsqrt(torch.mean(x.square(), -1, keepdim=True) + 1e-6) * w


def rms_norm_product_mean(x, w=torch.ones(8)):  # rms_norm
    return w * (x / torch.sqrt(torch.mean(x * x, dim=-1, keepdim=True) + 1e-6))


def rms_norm_without_weight(x):  # rms_norm
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rms_norm_variance_in_fp32(x, w=torch.ones(8)):  # rms_norm
    h = x.to(torch.bfloat16)
    variance = h.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return h * torch.rsqrt(variance + 1e-6) * w


def rms_norm_weight_in_fp32(x, w=torch.ones(8)):  # rms_norm
    h = x.to(torch.bfloat16)
    y = h.to(torch.float32)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * w).to(h.dtype)


def rms_norm_gemma(x, w=torch.zeros(8)):  # rms_norm_offset
    h = x.to(torch.bfloat16)
    y = h.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (y * (1.0 + w.float())).type_as(h)


def rms_norm_channels_image(x, w=torch.ones(8)):  # rms_norm_channels
    v = x.pow(2).mean(1, keepdim=True)
    return x * torch.rsqrt(v + 1e-6) * w.reshape(1, -1, 1, 1)


def add_rms_norm(x, r=torch.randn(2, 6, 8), w=torch.ones(8)):  # add_rms_norm
    h = x + r
    y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    return y, h


def group_norm_view_image(x, w=torch.ones(8), b=torch.zeros(8)):  # group_norm
    n, c, h, ww = x.shape
    g = x.view(n, 2, -1)
    mean, var = g.mean(-1, keepdim=True), g.var(-1, unbiased=False, keepdim=True)
    g = (g - mean) / (var + 1e-5).sqrt()
    return g.view(n, c, h, ww) * w.view(1, c, 1, 1) + b.view(1, c, 1, 1)


def group_norm_five_image(x, w=torch.ones(8), b=torch.zeros(8)):  # group_norm
    n, c, h, ww = x.shape
    g = x.reshape(n, 4, c // 4, h, ww)
    mean = g.mean(dim=[2, 3, 4], keepdim=True)
    var = (g - mean).pow(2).mean(dim=[2, 3, 4], keepdim=True)
    g = (g - mean) / torch.sqrt(var + 1e-6)
    return g.reshape(n, c, h, ww) * w[:, None, None] + b[:, None, None]


def dropout_add_layer_norm(x, r=torch.randn(2, 6, 8)):  # dropout_add_layer_norm
    return F.layer_norm(r + F.dropout(x, 0.1), (8,), torch.ones(8), torch.zeros(8), 1e-5)


def add_layer_norm(x, r=torch.randn(2, 6, 8), w=torch.ones(8)):  # dropout_add_layer_norm
    h = x + r
    return F.layer_norm(h, (8,), w, w), h


# Batch norm and convolutions -----------------------------------------------------------------
class BatchNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(8)


def stats():
    return torch.zeros(8), torch.ones(8), torch.ones(8), torch.zeros(8)


def batch_norm_silu_image(x, s=stats()):  # batch_norm_silu
    return F.silu(F.batch_norm(x, *s, training=True))


def batch_norm_swish_image(x, s=stats()):  # batch_norm_silu
    y = F.batch_norm(x, *s, training=True)
    return y * y.sigmoid()


def batch_norm_relu_image(x, s=stats()):  # batch_norm_relu
    return F.relu(F.batch_norm(x, *s, training=True))


def batch_norm_hardswish_image(x, s=stats()):  # batch_norm_hardswish
    return F.hardswish(F.batch_norm(x, *s, training=True))


def batch_norm_gelu_image(x, s=stats()):  # batch_norm_gelu
    return F.gelu(F.batch_norm(x, *s, training=True))


def batch_norm_add_image(x, r=torch.randn(2, 8, 4, 4), s=stats()):  # batch_norm_add
    return r + F.batch_norm(x, *s, training=True)


def batch_norm_connect_image(  # batch_norm_drop_connect_add
    x, r=torch.randn(2, 8, 4, 4), s=stats()
):
    mask = torch.floor(0.8 + torch.rand([2, 1, 1, 1]))
    return F.batch_norm(x, *s, training=True) / 0.8 * mask + r


def batch_norm_se_image(
    x, s=stats(), a=torch.randn(2, 8, 1, 1), b=torch.randn(8, 2, 1, 1)
):  # batch_norm_act_se
    y = F.silu(F.batch_norm(x, *s, training=True))
    g = F.conv2d(
        F.silu(F.conv2d(F.adaptive_avg_pool2d(y, 1), a, torch.zeros(2))), b, torch.zeros(8)
    )
    return torch.sigmoid(g) * y


def batch_norm_depthwise_image(x, s=stats(), w=torch.randn(8, 1, 3, 3)):  # batch_norm_act_depthwise
    return F.conv2d(F.silu(F.batch_norm(x, *s, training=True)), w, None, 1, 1, 1, 8)


def depthwise_image(x, w=torch.randn(8, 1, 3, 3)):  # depthwise_conv2d
    return F.conv2d(x, w, None, 1, 1, 1, 8)


def depthwise_padded_image(x, w=torch.randn(8, 1, 3, 3)):  # depthwise_conv2d_padded
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), w, None, 2, 0, 1, 8)


def conv_batch_norm_image(
    x, w=torch.randn(4, 8, 1, 1), s=(torch.zeros(4), torch.ones(4), torch.ones(4), torch.zeros(4))
):  # conv_batch_norm
    with torch.no_grad():
        return F.batch_norm(F.conv2d(x, w), *s, training=False)


# Gates ---------------------------------------------------------------------------------------
def se_gate_image(x, s=torch.randn(2, 8, 1, 1)):  # sigmoid_gate
    return x * torch.sigmoid(s)


def se_gate_reversed_image(x, s=torch.randn(2, 8, 1, 1)):  # sigmoid_gate
    return s.sigmoid() * x


def se_gate_expanded_image(x, s=torch.randn(2, 8, 1, 1)):  # sigmoid_gate
    return x * s.sigmoid().expand_as(x)


def se_gate_viewed_image(x, s=torch.randn(2, 8)):  # sigmoid_gate_of_rows
    return x * s.sigmoid().view(2, 8, 1, 1).expand_as(x)


def hard_gate_image(x, s=torch.randn(2, 8, 1, 1)):  # hard_sigmoid_gate
    return x * F.hardsigmoid(s)


def hard_gate_relu6_image(x, s=torch.randn(2, 8, 1, 1)):  # hard_sigmoid_gate
    return x * (F.relu6(s + 3.0) / 6.0)


def swiglu(x, u=torch.randn(2, 6, 8)):  # silu_mul
    return F.silu(x) * u


def swiglu_by_hand(x, u=torch.randn(2, 6, 8)):  # silu
    return u * (x * torch.sigmoid(x))


def swiglu_halves(x):  # silu_mul_packed
    a, b = x.chunk(2, dim=-1)
    return F.silu(a) * b


def swiglu_halves_gate_last(x):  # silu_mul_packed_last
    a, b = x.chunk(2, dim=-1)
    return a * F.silu(b)


def swiglu_slices(x):  # silu_mul
    d = x.shape[-1] // 2
    return F.silu(x[..., :d]) * x[..., d:]


def geglu(x, u=torch.randn(2, 6, 8)):  # gelu_mul
    return F.gelu(x) * u


def geglu_halves(x):  # gelu_mul_packed
    a, b = x.chunk(2, dim=-1)
    return F.gelu(a) * b


def geglu_halves_gate_last(x):  # gelu_mul_packed_last
    h, gate = x.chunk(2, dim=-1)
    return h * F.gelu(gate)


def geglu_tanh(x, u=torch.randn(2, 6, 8)):  # gelu_tanh_mul
    return F.gelu(x, approximate="tanh") * u


def glu(x):  # glu
    a, b = x.chunk(2, -1)
    return a * b.sigmoid()


def glu_slices(x):  # glu_slices
    d = x.shape[-1] // 2
    return x[..., :d] * torch.sigmoid(x[..., d:])


def glu_channels_image(x):  # glu_slices_of_channels
    return x[:, :4] * torch.sigmoid(x[:, 4:])


def geglu_tanh_halves(x):  # gelu_tanh_mul_packed
    a, b = x.chunk(2, dim=-1)
    return F.gelu(a, approximate="tanh") * b


def geglu_tanh_halves_gate_last(x):  # gelu_tanh_mul_packed_last
    h, gate = x.chunk(2, dim=-1)
    return h * F.gelu(gate, approximate="tanh")


# Other functions -----------------------------------------------------------------------------
def softplus(x):  # softplus
    return torch.log(1 + torch.exp(x))


def softplus_log1p(x):  # softplus
    return torch.log1p(x.exp())


def log_sigmoid(x):  # log_sigmoid
    return torch.log(torch.sigmoid(x))


def log_sigmoid_by_softplus(x):  # log_sigmoid
    return -F.softplus(-x)


# Stochastic depth ----------------------------------------------------------------------------
def drop_connect_image(x, r=torch.randn(2, 8, 4, 4)):  # drop_connect_add
    mask = torch.floor(0.8 + torch.rand([2, 1, 1, 1]))
    return x / 0.8 * mask + r


def drop_path_image(x, r=torch.randn(2, 8, 4, 4)):  # drop_connect_add
    mask = x.new_empty((2, 1, 1, 1)).bernoulli_(0.8).div_(0.8)
    return r + x * mask


def drop_path_of_rows(x, r=torch.randn(2, 6, 8)):  # drop_connect_add
    mask = x.new_empty((2, 1, 1)).bernoulli_(0.8).div_(0.8)
    return r + x * mask


def drop_path_unscaled(x, r=torch.randn(2, 6, 8)):  # drop_path_add
    return r + x * x.new_empty((2, 1, 1)).bernoulli_(0.8)


# Rotary --------------------------------------------------------------------------------------
def rope_half(x, c=torch.randn(6, 8), s=torch.randn(6, 8)):  # rope
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return (x * c) + (torch.cat((-x2, x1), dim=-1) * s)


def rope_chunks(x, c=torch.randn(6, 8), s=torch.randn(6, 8)):  # rope
    x1, x2 = x.chunk(2, dim=-1)
    return x * c + torch.cat((-x2, x1), dim=-1) * s


def rope_half_width(x, c=torch.randn(6, 4), s=torch.randn(6, 4)):  # rope_half_width
    a, b = torch.chunk(x, 2, dim=-1)
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1)


def rope_interleaved(x, c=torch.randn(6, 8), s=torch.randn(6, 8)):  # rope_interleaved
    x1, x2 = x[..., ::2], x[..., 1::2]
    rotated = torch.stack((-x2, x1), dim=-1).flatten(-2)
    return x * c + rotated * s


def rope_unbound(x, c=torch.randn(6, 8), s=torch.randn(6, 8)):  # rope_interleaved
    x1, x2 = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    rotated = torch.stack([-x2, x1], dim=-1).flatten(-2)
    return (x.float() * c + rotated.float() * s).to(x.dtype)


def rope_partial(x, c=torch.randn(6, 4), s=torch.randn(6, 4)):  # rope_partial
    q, rest = x[..., :4], x[..., 4:]
    a, b = q[..., :2], q[..., 2:]
    return torch.cat((q * c + torch.cat((-b, a), -1) * s, rest), dim=-1)


def rope_complex(x, f=torch.randn(6, 4, dtype=torch.complex64)):  # rope_complex
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * f).flatten(-2).type_as(x)


# Attention -----------------------------------------------------------------------------------
def qkv():
    return torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4)


def attention_scaled_after(x, kv=qkv()):  # attention
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    p = (q @ kv[0].transpose(-2, -1) / math.sqrt(4)).softmax(-1)
    return p @ kv[1]


def attention_query_first(x, kv=qkv()):  # attention
    q = x.view(2, 6, 2, 4).transpose(1, 2) * 0.5
    return torch.softmax(q @ kv[0].transpose(-2, -1), -1) @ kv[1]


def attention_mask_added(x, kv=qkv(), m=torch.zeros(1, 1, 6, 6)):  # attention
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    p = F.softmax(q @ kv[0].transpose(-2, -1) * 0.5 + m, dim=-1, dtype=torch.float32).to(q.dtype)
    return p @ kv[1]


def attention_masked_fill(x, kv=qkv(), m=torch.ones(6, 6).triu(1).bool()):  # attention_masked
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    scores = (q @ kv[0].transpose(-2, -1) * 0.5).masked_fill(m, float("-inf"))
    return scores.softmax(-1) @ kv[1]


def attention_where(x, kv=qkv(), m=torch.ones(6, 6).tril().bool()):  # attention_where
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    scores = torch.where(m, q @ kv[0].transpose(-2, -1) * 0.5, torch.full([], -1e9))
    return scores.softmax(-1) @ kv[1]


def attention_dropout(x, kv=qkv(), m=torch.zeros(1, 1, 6, 6)):  # attention_dropout
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    p = F.dropout((q @ kv[0].transpose(-2, -1) * 0.5 + m).softmax(-1), 0.1)
    return p @ kv[1]


def attention_keys_first(x, kv=qkv()):  # attention
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    return torch.softmax(q @ (kv[0] * 0.5).transpose(-2, -1), -1) @ kv[1]


def attention_both_scaled(x, kv=qkv()):  # attention
    s = math.sqrt(1 / math.sqrt(4))
    q = x.view(2, 6, 2, 4).transpose(1, 2) * s
    return torch.softmax(q @ (kv[0] * s).transpose(-2, -1), -1) @ kv[1]


def attention_heads_in_the_batch(x, kv=qkv(), m=torch.zeros(2, 1, 6, 6)):  # attention
    q = x.view(2, 6, 2, 4).transpose(1, 2).reshape(4, 6, 4) * 0.5
    k, v = (t.reshape(4, 6, 4) for t in kv)
    scores = torch.bmm(q, k.transpose(1, 2)).view(2, 2, 6, 6) + m
    return torch.bmm(F.softmax(scores.view(4, 6, 6), dim=-1), v)


def attention_added(x, kv=qkv(), m=torch.zeros(4, 6, 6)):  # attention_added
    q = x.view(2, 6, 2, 4).transpose(1, 2).reshape(4, 6, 4)
    k, v = (t.reshape(4, 6, 4) for t in kv)
    scores = torch.baddbmm(m, q, k.transpose(1, 2), beta=1.0, alpha=0.5)
    return torch.bmm(F.softmax(scores, dim=-1), v)


def attention_swin(x, kv=qkv(), b=torch.randn(2, 6, 6), m=torch.zeros(2, 6, 6)):  # attention_biased
    q = x.view(2, 6, 2, 4).transpose(1, 2) * 0.5
    scores = q @ kv[0].transpose(-2, -1) + b.unsqueeze(0)
    scores = scores.view(1, 2, 2, 6, 6) + m.unsqueeze(1).unsqueeze(0)
    return F.softmax(scores.view(-1, 2, 6, 6), dim=-1) @ kv[1]


def attention_position_bias(x, kv=qkv(), b=torch.randn(1, 2, 6, 6)):  # attention_unscaled_dropout
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    scores = torch.matmul(q, kv[0].transpose(3, 2))
    scores += b
    p = F.dropout(F.softmax(scores.float(), dim=-1).type_as(scores), 0.1)
    return torch.matmul(p, kv[1])


def attention_bias_and_mask(
    x, kv=qkv(), b=torch.randn(1, 2, 6, 6), m=torch.zeros(1, 1, 6, 6)
):  # attention_unscaled_biased
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    scores = torch.matmul(q, kv[0].transpose(3, 2)) * 1.0 + b + m
    return torch.matmul(F.softmax(scores, dim=-1), kv[1])


def attention_tril(x, kv=qkv(), m=torch.tril(torch.ones(1, 1, 6, 6))):  # attention_masked
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    scores = (q @ kv[0].transpose(-2, -1)) * (1.0 / math.sqrt(4))
    p = F.dropout(F.softmax(scores.masked_fill(m == 0, float("-inf")), dim=-1), 0.1)
    return p @ kv[1]


def grouped():
    return torch.randn(2, 1, 6, 4), torch.randn(2, 1, 6, 4)


def attention_repeated_heads(x, kv=grouped(), m=torch.zeros(1, 1, 6, 6)):  # attention_grouped
    q = x.view(2, 6, 2, 4).transpose(1, 2)
    k, v = (t[:, :, None].expand(2, 1, 2, 6, 4).reshape(2, 2, 6, 4) for t in kv)
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.5 + m
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def attention_repeat_interleave(x, kv=grouped()):  # attention_grouped
    q = x.view(2, 6, 2, 4).transpose(1, 2) * 0.5
    k, v = (t.repeat_interleave(2, dim=1) for t in kv)
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


def scaled_masked_softmax(x, m=torch.zeros(6, 8)):  # scale_mask_softmax
    return F.softmax(x * 0.125 + m, dim=-1)


def softmax_by_hand(x):  # softmax
    e = torch.exp(x - x.max(-1, keepdim=True)[0])
    return e / e.sum(-1, keepdim=True)


# Losses --------------------------------------------------------------------------------------
def label_smoothing(x, t=torch.tensor([1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4])):  # label_smoothing
    p = F.log_softmax(x.reshape(12, 8), dim=-1)
    nll = -p.gather(dim=-1, index=t.unsqueeze(1)).squeeze(1)
    return (0.9 * nll + 0.1 * -p.mean(dim=-1)).mean()


def nll_of_log_softmax(x, t=torch.tensor([1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4])):  # cross_entropy
    p = F.log_softmax(x.reshape(12, 8), dim=-1)
    return -p.gather(-1, t.unsqueeze(1)).squeeze(1).mean()


def log_softmax_by_hand(x):  # log_softmax
    s = x - x.max(dim=-1, keepdim=True)[0]
    return s - s.exp().sum(dim=-1, keepdim=True).log()


def log_softmax_by_logsumexp(x):  # log_softmax
    return x - torch.logsumexp(x, dim=-1, keepdim=True)


# Linear algebra ------------------------------------------------------------------------------
def addmm(x, w=torch.randn(8, 5), b=torch.randn(5)):  # addmm
    return x.reshape(12, 8).mm(w) + b


def addcmul(x, a=torch.randn(2, 6, 8), b=torch.randn(2, 6, 8)):  # addcmul
    return x + a * b


def lerp(x, a=torch.randn(2, 6, 8)):  # lerp
    return 0.9 * x + 0.1 * a
