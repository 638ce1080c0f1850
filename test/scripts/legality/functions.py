"""Custom Functions whose forward is Swish."""

import torch
from harness import train
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Right(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


class Halved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return 0.5 * gradient * (s * (1 + x * (1 - s)))


class Clamped(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return gradient.clamp(-8, 8) * (s * (1 + x * (1 - s)))


class StraightThrough(Function):
    @staticmethod
    def forward(ctx, x):
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Once(Function):  # row 26: once_differentiable
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))


class WithJvp(Function):  # row 26: jvp
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s)))

    @staticmethod
    def jvp(ctx, tangent):
        return tangent


class Branches(Function):  # row 25: straight-line
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        if gradient.abs().max().item() > 8:
            return gradient
        return gradient * (s * (1 + x * (1 - s)))


class Scale:
    factor = 1.0


class ReadsAGlobal(Function):  # row 25: straight-line
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0]
        s = torch.sigmoid(x)
        return gradient * (s * (1 + x * (1 - s))) * Scale.factor


class Outer(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def right(x):  # planned
    return Right.apply(x)


def halved(x):  # row 0: d/dx
    return Halved.apply(x)


def clamped(x):  # row 0: chooses by value
    return Clamped.apply(x)


def straight_through(x):  # row 0: hands the gradient through
    return StraightThrough.apply(x)


def once(x):
    return Once.apply(x)


def with_jvp(x):
    return WithJvp.apply(x)


def branches(x):
    return Branches.apply(x)


def reads_a_global(x):
    return ReadsAGlobal.apply(x)


def across(x):  # row 25: custom Function
    return x * Outer.apply(x)


if __name__ == "__main__":
    train(
        right, halved, clamped, straight_through, once, with_jvp, branches, reads_a_global, across
    )
