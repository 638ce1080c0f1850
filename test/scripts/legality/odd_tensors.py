"""Tensors that are not plain ones. A step that holds some is not replayed: nothing is planned."""

import torch
from harness import train


def of_complex_numbers(x):  # row 34: complex
    z = torch.complex(x, x)
    return (z * torch.sigmoid(z)).abs()


def of_functional_grad(x):  # row 39: functorch
    return (x * torch.sigmoid(x)).sum()


def functional_grad(x):
    return torch.func.grad(of_functional_grad)(x)


def of_vmap(x):  # row 39: functorch
    return x * torch.sigmoid(x)


def vmapped(x):
    return torch.vmap(of_vmap)(x)


class Tensor(torch.Tensor):
    pass


def of_a_subclass(x):  # row 34: subclass
    return x * torch.sigmoid(x)


def subclass(x):
    return of_a_subclass(x.as_subclass(Tensor)).as_subclass(torch.Tensor)


if __name__ == "__main__":
    train(of_complex_numbers, functional_grad, vmapped, subclass)
