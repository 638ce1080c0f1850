"""Chains as people write them, one module for each rule that has a torch_npu target."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Silu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Gelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class GeluTanh(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Mish(nn.Module):
    def forward(self, x):
        return x * torch.tanh(F.softplus(x))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.eps = 1e-6

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps))


class Doubled(nn.Module):
    """A linear layer of twice the width and a gate of its two halves."""

    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, 2 * width)

    def forward(self, x):
        return self.gated(self.proj(x))


class Swiglu(Doubled):
    def gated(self, x):
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up


class SwigluLast(Doubled):
    def gated(self, x):
        up, gate = x.chunk(2, dim=-1)
        return F.silu(gate) * up


class Geglu(Doubled):
    def gated(self, x):
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate) * up


class GegluLast(Doubled):
    """GEGLU of diffusers."""

    def gated(self, x):
        up, gate = x.chunk(2, dim=-1)
        return up * F.gelu(gate)


class GegluTanh(Doubled):
    def gated(self, x):
        gate, up = x.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up


class GegluTanhLast(Doubled):
    def gated(self, x):
        up, gate = torch.chunk(x, 2, dim=-1)
        return up * F.gelu(gate, approximate="tanh")


class Rope(nn.Module):
    """A batch of one head: the rows are positions."""

    def __init__(self, width):
        super().__init__()
        turns = torch.outer(torch.arange(12.0), 1.0 / 100 ** (torch.arange(0, width, 2) / width))
        turns = torch.cat((turns, turns), dim=-1)[None, None]
        self.register_buffer("cos", turns.cos())
        self.register_buffer("sin", turns.sin())

    def forward(self, x):
        return self.turned(x[None, None], self.cos, self.sin)[0, 0]

    def turned(self, x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-x2, x1), dim=-1) * sin


class MaskedSoftmax(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mask", torch.ones(12, width, dtype=torch.bool).triu(3))

    def forward(self, x):
        return self.weights(x, self.mask)

    def weights(self, scores, mask):
        return torch.softmax((scores * 0.25).masked_fill(mask, -10000.0), dim=-1)


class GemmaNorm(RmsNorm):
    def forward(self, x):
        h = x.float()
        y = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).to(x.dtype)


class InfinityMasked(MaskedSoftmax):
    """NaN where a row is masked all over; npu_scaled_masked_softmax is uniform there."""

    def weights(self, scores, mask):
        return torch.softmax((scores * 0.25).masked_fill(mask, float("-inf")), dim=-1)


class Glu(Doubled):
    """Its gate is another half than the one that it multiplies."""

    def gated(self, x):
        a, b = x.chunk(2, dim=-1)
        return a * torch.sigmoid(b)
