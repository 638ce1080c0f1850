"""Chains of a user's rules (guilty.rule), each of which names a target that is not the chain."""

import torch
import vendor_ops  # noqa: F401
from spellings import Hardswish, Silu  # noqa: F401
from torch import nn


class Steeper(nn.Module):
    """Its rule says that SiLU computes this."""

    def forward(self, x):
        return x * torch.sigmoid(1.25 * x)


class Coarse(nn.Module):
    """Its rule names an operator that computes this in bf16."""

    def forward(self, x):
        return x * torch.tanh(torch.exp(x))
