"""What the recorded data flow forbids, each with a twin that passes."""

import torch
from harness import train
from torch import nn


def inline(x):  # planned
    return x * torch.sigmoid(x)


def residual(x):  # planned
    return x + x * torch.sigmoid(x)


def statements(x):  # planned
    s = torch.sigmoid(x)
    return x * s


def gate_of_chunks(x):  # row 0: GLU
    a, b = x.chunk(2, dim=1)
    return torch.sigmoid(a) * b


def swish_of_a_chunk(x):  # planned
    a, b = x.chunk(2, dim=1)
    return torch.sigmoid(a) * a + b


def written(x):  # row 5: written
    s = torch.sigmoid(x)
    x.add_(1)
    return x * s


def written_before(x):  # planned
    x.add_(1)
    s = torch.sigmoid(x)
    return x * s


def written_through_a_view(x):  # row 6: through another view
    v = x[0]
    s = torch.sigmoid(x)
    v.add_(1)
    return x * s


def written_through_a_view_before(x):  # planned
    v = x[0]
    v.add_(1)
    s = torch.sigmoid(x)
    return x * s


def written_through_data(x):  # row 5: written
    s = torch.sigmoid(x)
    x.data.add_(1)
    return x * s


def written_after(x):  # row 10: before its backward pass
    y = x * torch.sigmoid(x)
    x.data.mul_(2)
    return y


def inner_written(x):  # row 1: also read by aten.mul_
    d = x.detach()
    s = torch.sigmoid(d)
    y = d * s
    s.mul_(2)
    return x + y


def result_written(x):  # planned
    y = x * torch.sigmoid(x)
    y.mul_(2)
    return y


def in_place(x):  # row 8: in place
    d = x.detach().clone()
    d *= torch.sigmoid(d)
    return x + d


def product_in_place(x):  # row 7: written in place
    d = x.detach()
    y = torch.sigmoid(d)
    y *= d
    return x + y


def into_a_buffer(x):  # nothing is said of it
    d = x.detach()
    return x + torch.mul(d, torch.sigmoid(d), out=torch.empty_like(d))


def of_equal_values(x):  # row 0: GLU
    return (x + 1) * torch.sigmoid(x + 1)


def of_one_value(x):  # planned
    x = x + 1
    return x * torch.sigmoid(x)


def also_read(x):  # row 1: also read
    s = torch.sigmoid(x)
    return x * s + s


def pair(x):  # row 3: kept
    s = torch.sigmoid(x)
    return x * s, s


def returned(x):
    return pair(x)[0]


class Stored(nn.Module):  # row 3: kept
    def forward(self, x):
        self.last = torch.sigmoid(x)
        return x * self.last


class Shown(nn.Module):  # row 3: kept
    def forward(self, x):
        s = torch.sigmoid(x)
        self.last = s
        return x * s


LISTED = []


def listed(x):  # row 3: kept
    s = torch.sigmoid(x)
    LISTED[:] = [s]
    return x * s


def hooked(x):  # row 2: hook
    s = torch.sigmoid(x)
    s.register_hook(lambda gradient: gradient)
    return x * s


def retained(x):  # row 2: hook
    s = torch.sigmoid(x)
    s.retain_grad()
    return x * s


def result_hooked(x):  # row 41: hook
    y = x * torch.sigmoid(x)
    y.grad_fn.register_hook(lambda *_: None)
    return y


def input_hooked(x):  # planned
    x.register_hook(lambda gradient: gradient)
    return x * torch.sigmoid(x)


def quick_gelu(x):  # row 0: quick_gelu has no Python name
    return x * torch.sigmoid(1.702 * x)


class Slope(nn.Module):  # row 0: swish_beta has no Python name
    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


def excitation(x):  # row 0: squeeze-and-excitation
    return x * torch.sigmoid(x.mean(1, keepdim=True))


def hard(x):  # planned
    return x * torch.nn.functional.relu6(x + 3) / 6


def quotient_with_another_gradient_at_the_ends(x):  # row 0: NaN or infinities differ
    return x / (1 + torch.exp(-x))


def quotient(x):  # planned
    with torch.no_grad():
        y = x / (1 + torch.exp(-x))
    return x + y


def quotient_of_another_constant(x):  # row 29: constant
    return x / (1.5 + torch.exp(-x))


def half_detached(x):  # row 23: gradient
    return x.detach() * torch.sigmoid(x)


def wholly_detached(x):  # planned
    d = x.detach()
    return x + d * torch.sigmoid(d)


def cast_inside(x):  # row 16: cast
    return x * torch.sigmoid(x.double()).float()


def cast_before(x):  # planned
    d = x.double()
    return (d * torch.sigmoid(d)).float()


def integers(x):  # row 14: floating
    i = x.detach().round().long()
    return x + i * torch.sigmoid(i)


def half_without_grad(x):  # row 24: grad mode
    with torch.no_grad():
        s = torch.sigmoid(x)
    return x * s


def wholly_without_grad(x):  # planned
    with torch.no_grad():
        y = x * torch.sigmoid(x)
    return x + y


def half_under_autocast(x):  # row 17: autocast
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = torch.sigmoid(x)
    return x * s


def wholly_under_autocast(x):  # planned
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x * torch.sigmoid(x)


def main():
    train(
        inline, residual, statements, gate_of_chunks, swish_of_a_chunk, written, written_before,
        written_through_a_view, written_through_a_view_before, written_through_data, written_after,
        inner_written, result_written, in_place, product_in_place, into_a_buffer, of_equal_values,
        of_one_value, also_read, returned, Stored(), Shown(), listed, hooked, retained,
        result_hooked, input_hooked, quick_gelu, Slope(), excitation, hard, quotient,
        quotient_with_another_gradient_at_the_ends, quotient_of_another_constant, half_detached,
        wholly_detached, cast_inside, cast_before, integers, half_without_grad, wholly_without_grad,
        half_under_autocast, wholly_under_autocast,
    )  # fmt: skip


if __name__ == "__main__":
    main()
