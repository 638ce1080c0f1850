"""Chains as people write them, one module for each, named after the rule that it spells."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Silu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Hardswish(nn.Module):
    def forward(self, x):
        return x * F.relu6(x + 3) / 6


class Hardsigmoid(nn.Module):
    def forward(self, x):
        return F.relu6(x + 3) / 6


class Mish(nn.Module):
    def forward(self, x):
        return x * torch.tanh(F.softplus(x))


class Gelu(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


class GeluTanh(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class LogSigmoid(nn.Module):
    def forward(self, x):
        return -F.softplus(-x)


class SiluMul(nn.Module):
    """The feed-forward of Llama."""

    def __init__(self, width):
        super().__init__()
        self.gate_proj = nn.Linear(width, width)
        self.up_proj = nn.Linear(width, width)

    def forward(self, x):
        return gated(self.gate_proj(x), self.up_proj(x))


def gated(gate, up):
    return F.silu(gate) * up  # SwiGLU


class RmsNorm(nn.Module):
    """LlamaRMSNorm of transformers, word by word."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.variance_epsilon = 1e-6

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        # The mean of the squares, in float32.
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class LayerNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.bias = nn.Parameter(torch.linspace(-1, 1, width))
        self.eps = 1e-5

    def forward(self, x):
        d = x - x.mean(-1, keepdim=True)
        y = d / torch.sqrt((d * d).mean(-1, keepdim=True) + self.eps)
        return y * self.weight + self.bias


class Softmax(nn.Module):
    def forward(self, x):
        e = torch.exp(x - torch.amax(x, dim=-1, keepdim=True))
        return e / torch.sum(e, dim=-1, keepdim=True)


class LogSoftmax(nn.Module):
    def forward(self, x):
        return x - torch.logsumexp(x, dim=-1, keepdim=True)


class Addcmul(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.left = nn.Linear(width, width)
        self.right = nn.Linear(width, width)

    def forward(self, x):
        return added(x, self.left(x), self.right(x))


def added(a, b, c):
    return a + b * c


class Lerp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.other = nn.Linear(width, width)
        self.rate = 0.25

    def forward(self, x):
        return self.mixed(x, self.other(x))

    def mixed(self, a, b):
        return a + self.rate * (b - a)


class Addmm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-0.3, 0.3, width * width).reshape(width, width))
        self.b = nn.Parameter(torch.linspace(-1, 1, width))

    def forward(self, x):
        return x @ self.w + self.b


class SigmoidGate(nn.Module):
    """The end of a squeeze-and-excitation block."""

    def __init__(self, width):
        super().__init__()
        self.reduce = nn.Linear(width, width)

    def forward(self, x):
        maps = x.reshape(x.shape[0], -1, 2, 2)
        gate = self.reduce(x)[:, : maps.shape[1]].reshape(x.shape[0], -1, 1, 1).contiguous()
        return gate_by(maps, gate).reshape(x.shape)


def gate_by(x, gate):
    return x * torch.sigmoid(gate)


class HardSigmoidGate(SigmoidGate):
    def forward(self, x):
        maps = x.reshape(x.shape[0], -1, 2, 2)
        gate = self.reduce(x)[:, : maps.shape[1]].reshape(x.shape[0], -1, 1, 1).contiguous()
        return hard_gate_by(maps, gate).reshape(x.shape)


def hard_gate_by(x, gate):
    return x * F.hardsigmoid(gate)
