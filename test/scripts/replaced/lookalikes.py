"""What looks like a chain of the rulebook and must stay as it is, one module for each reason."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 16


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.eps = 1e-6


class InnerValueKept(RmsNorm):
    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        y = x * torch.rsqrt(variance + self.eps)
        self.last = variance
        return self.weight * y


class InnerNameReadLater(RmsNorm):
    def forward(self, x):
        before = x
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        y = self.weight * (x * torch.rsqrt(variance + self.eps))
        return torch.where(before > 9, x, y)


class EpsOutsideTheRoot(RmsNorm):
    def forward(self, x):
        return self.weight * (x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + self.eps))


class DimensionFromTheFront(RmsNorm):
    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps))


class CastAfterTheWeight(RmsNorm):
    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * self.weight.float()).to(x.dtype)


class CastOfNothing(nn.Module):
    """In f32 no cast is recorded; a bf16 input would give another dtype than the fused operator."""

    def forward(self, x):
        return x.float() * torch.sigmoid(x.float())


class CastOfTheResult(nn.Module):
    """No look-alike: the cast is no part of the chain."""

    def forward(self, x):
        return (x * torch.sigmoid(x)).float()


class EpsOfAProperty(RmsNorm):
    @property
    def small(self):
        return 1e-6

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.small))


class TwoNumbers(nn.Module):
    """Equal today."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)
        self.keep, self.rate = 0.25, 0.25

    def forward(self, x):
        return self.mixed(x, self.other(x))

    def mixed(self, a, b):
        return (1 - self.keep) * a + self.rate * b


class OtherOrder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.up(x) * F.silu(self.gate(x))


class InALoop(nn.Module):
    """What the next round reads is what this one has bound."""

    def forward(self, x):
        for _ in range(2):
            e = torch.exp(x - torch.amax(x, dim=-1, keepdim=True))
            x = e / torch.sum(e, dim=-1, keepdim=True)
            e = e.sum()
        return x


class Softplus(nn.Module):
    """Infinite above 88 in f32, where the native operator is not."""

    def forward(self, x):
        return torch.log(1 + torch.exp(x))


class ShortConstant(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.7978 * (x + 0.044715 * torch.pow(x, 3.0))))
