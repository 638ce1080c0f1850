"""What the source, and the place of the code, forbid."""

import asyncio

import torch
from harness import train
from torch import nn

ONES = torch.ones(4, 8)


class OfAProperty(nn.Module):  # row 36: property
    def __init__(self):
        super().__init__()
        self.kept = None

    @property
    def x(self):
        return self.kept

    def forward(self, x):
        self.kept = x
        return self.x * torch.sigmoid(self.x)


class OfABuffer(nn.Module):  # planned
    def __init__(self):
        super().__init__()
        self.register_buffer("x", torch.ones(4, 8))

    def forward(self, x):
        return x + self.x * torch.sigmoid(self.x)


class Holder:
    pass


HOLDER = Holder()
HOLDER.x = torch.ones(4, 8)


def of_an_attribute(x):  # row 36: attribute
    return x + HOLDER.x * torch.sigmoid(HOLDER.x)


def of_a_global(x):  # row 36: ONES
    return x + ONES * torch.sigmoid(ONES)


def of_two_names(x):  # row 36: only in the recorded calls
    z = x
    return x * torch.sigmoid(z)


def sigmoid(x):
    return torch.sigmoid(x)


def of_a_name_of_the_users(x):  # row 44: resolves to something else
    return x * sigmoid(x)


class OfAModule(nn.Module):  # row 37: module
    def __init__(self):
        super().__init__()
        self.act = nn.Sigmoid()

    def forward(self, x):
        return x * self.act(x)


class OfAHookedModule(nn.Module):  # row 4: hook
    def __init__(self):
        super().__init__()
        self.act = nn.Sigmoid()
        self.act.register_forward_hook(lambda *_: None)

    def forward(self, x):
        return x * self.act(x)


def walrus(x):  # row 3: bound inside
    return x * (s := torch.sigmoid(x))  # noqa: F841


def of_a_global_inner_value(x):  # row 3: no plain local
    global KEPT
    KEPT = torch.sigmoid(x)
    return x * KEPT


def of_a_captured_inner_value(x):  # row 3: no plain local
    s = torch.sigmoid(x)
    y = x * s
    HOLDER.reader = lambda: s
    return y


def rebound(x):  # planned
    s = torch.sigmoid(x)
    x = x * s
    return x


def frame_magic(x):  # row 3: its own frame
    s = torch.sigmoid(x)
    assert len(locals()) == 2
    return x * s


def opted_out(x):  # row 0: opfuse: off
    return x * torch.sigmoid(x)  # opfuse: off


def pieces(x):  # row 43: generator
    yield x * torch.sigmoid(x)
    yield x


def of_a_generator(x):
    return next(pieces(x))


async def waiting(x):  # row 43: coroutine
    return x * torch.sigmoid(x)


def of_a_coroutine(x):
    return asyncio.run(waiting(x))


def of_a_list(x):  # planned
    return sum([x * torch.sigmoid(x), x])


def around(x):  # row 43: inside another function
    def nested(x):
        return x * torch.sigmoid(x)

    return nested(x)


def in_a_lambda(x):
    return LAMBDA(x)


LAMBDA = lambda x: x * torch.sigmoid(x)  # planned  # noqa: E731


def conditional(x):  # planned
    if x.shape[0] == 4:
        return x * torch.sigmoid(x)
    return x


def one_of_two_branches(x):  # row 36: different blocks
    s = torch.sigmoid(x)
    if x.shape[0] == 4:
        x = x * s
    return x


def with_a_statement_between(x):  # row 36: other statements
    s = torch.sigmoid(x)
    n = x.shape[0]
    return x * s / n


def twice_in_one_function(x):
    y = x * torch.sigmoid(x)  # planned
    return y * torch.sigmoid(y)  # planned


def with_a_longer_formula(x):  # planned
    return (x * x.sigmoid()).mean(1, keepdim=True) + 1


def in_a_method_call(x):  # planned
    return x.mul(x.sigmoid())


def main():
    train(
        OfAProperty(), OfABuffer(), of_an_attribute, of_a_global, of_two_names,
        of_a_name_of_the_users, OfAModule(), OfAHookedModule(), walrus, of_a_global_inner_value,
        of_a_captured_inner_value, rebound, frame_magic, opted_out, of_a_generator, of_a_coroutine,
        of_a_list, around, in_a_lambda, conditional, one_of_two_branches, with_a_statement_between,
        twice_in_one_function, with_a_longer_formula, in_a_method_call,
    )  # fmt: skip


if __name__ == "__main__":
    main()
