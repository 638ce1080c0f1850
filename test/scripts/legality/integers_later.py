"""A place that sees floats in every recorded step, and integers at the end."""

import torch
from harness import train


def inline(x):  # planned
    return x * torch.sigmoid(x)


if __name__ == "__main__":
    train(inline)
    print(inline(torch.arange(4)).tolist())
