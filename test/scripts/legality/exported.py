"""Memory that is written from outside of torch."""

import torch
from harness import train


def written_through_numpy(x):  # row 36: other statements
    s = torch.sigmoid(x)
    x.detach().numpy()[0] = 1
    return x * s


def written_through_numpy_before(x):  # row 42: numpy
    x.detach().numpy()[0] = 1
    s = torch.sigmoid(x)
    return x * s


def inline(x):  # planned
    return x * torch.sigmoid(x)


if __name__ == "__main__":
    train(written_through_numpy, written_through_numpy_before, inline)
