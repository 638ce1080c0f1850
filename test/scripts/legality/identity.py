"""A user's objects while the edited code is in place: prints one line of JSON at the end."""

import copy
import io
import json
import pickle

import torch
from harness import train
from torch import nn
from torch.nn import functional as F


class Swish(nn.Module):  # planned
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return x * torch.sigmoid(x)


class Watched(nn.Module):  # row 4: hook
    def __init__(self):
        super().__init__()
        self.sigmoid = nn.Sigmoid()
        self.values = []
        self.sigmoid.register_forward_hook(lambda m, i, o: self.values.append((i[0], o)))

    def forward(self, x):
        return x * self.sigmoid(x)


def three(x):  # planned
    y = x * torch.sigmoid(x)
    z = y * torch.sigmoid(y)
    return z * torch.sigmoid(z)


SWISH, WATCHED = Swish(), Watched()
OWN = Swish.forward.__code__
KEYS = list(SWISH.state_dict())
FACTS = {}


def with_edited_code(model, step):
    if FACTS or step < 4 or Swish.forward.__code__ is OWN:
        return
    x = torch.randn(4, 8)
    wanted = F.silu(x)

    def same(y):
        return bool(torch.allclose(y, wanted, atol=1e-6))

    fired = []
    handle = SWISH.register_forward_hook(lambda m, i, o: fired.append(same(o)))
    SWISH(x)
    handle.remove()
    SWISH(x)
    FACTS["a hook of later fires, and only while it is there"] = fired == [True]
    FACTS["the class is the user's"] = type(SWISH) is Swish and type(model.cases[0]) is Swish
    FACTS["no attribute is new"] = "forward" not in vars(SWISH)
    FACTS["names, mode, dtype and device are kept"] = (
        list(SWISH.state_dict()) == KEYS
        and SWISH.training
        and SWISH.scale.requires_grad
        and (SWISH.scale.dtype, str(SWISH.scale.device)) == (torch.float32, "cpu")
    )
    FACTS["it is copied"] = same(copy.deepcopy(SWISH)(x))
    FACTS["it is pickled"] = same(pickle.loads(pickle.dumps(SWISH))(x))
    fresh = Swish()
    fresh.load_state_dict(SWISH.state_dict())
    FACTS["its state loads into a new one"] = same(fresh(x))
    FACTS["it prints"] = repr(SWISH) == "Swish()"
    FACTS["it is traced"] = same(torch.jit.trace(SWISH, x)(x))
    exported = torch.export.export(SWISH, (x,))
    FACTS["it is exported"] = same(exported.module()(x))
    buffer = io.BytesIO()
    torch.save(SWISH, buffer)
    buffer.seek(0)
    FACTS["it is saved"] = same(torch.load(buffer, weights_only=False)(x))
    y = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)
    FACTS["second derivatives are right"] = torch.autograd.gradgradcheck(SWISH, y)


train(SWISH, WATCHED, three, later=with_edited_code)
FACTS["every hook saw its own tensors"] = len(WATCHED.values) == 8 and all(
    torch.equal(torch.sigmoid(i), o) for i, o in WATCHED.values
)
print(json.dumps(FACTS))
