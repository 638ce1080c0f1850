"""A gradient penalty: second derivatives of some chains."""

import torch
from harness import train
from torch.autograd import Function


def inline(x):  # planned
    return x * torch.sigmoid(x)


def penalised(x):  # row 27: second derivative
    return x * torch.sigmoid(x)


def with_penalty(x):
    y = penalised(x)
    gradient = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    return y + gradient.square()


class Right(Function):  # row 46: second derivative
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


def penalised_function(x):
    return Right.apply(x)


def with_penalty_of_a_function(x):
    y = penalised_function(x)
    gradient = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    return y + gradient.square()


if __name__ == "__main__":
    train(inline, with_penalty, with_penalty_of_a_function)
