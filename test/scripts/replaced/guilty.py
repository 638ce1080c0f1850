"""Chains of the program's rules, and one of a user's rule whose target is not the chain."""

import torch
from spellings import Hardswish, Silu  # noqa: F401
from torch import nn


class Steeper(nn.Module):
    """Its rule says that SiLU computes this."""

    def forward(self, x):
        return x * torch.sigmoid(1.25 * x)
