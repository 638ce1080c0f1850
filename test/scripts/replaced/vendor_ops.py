"""An operator of a vendor that rounds far more than the chain that it stands for."""

import torch

_LIBRARY = torch.library.Library("vendor", "DEF")
_LIBRARY.define("coarse(Tensor x) -> Tensor")


def _formula(x):
    return x * torch.tanh(torch.exp(x))


@torch.library.impl(_LIBRARY, "coarse", "CompositeImplicitAutograd")
def _coarse(x):
    return _formula(x.bfloat16()).to(x.dtype)


def coarse(x):
    return torch.ops.vendor.coarse(x)
