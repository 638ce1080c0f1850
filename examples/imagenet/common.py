"""What training and inference share: command-line options, the model, running averages."""

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

ARCHS = tuple(f"efficientnet-b{i}" for i in range(8))
# The resolution that each width and depth was designed for.
IMAGE_SIZES = dict(zip(ARCHS, (224, 240, 260, 300, 380, 456, 528, 600), strict=True))


def positive(text: str) -> int:
    return _at_least(1, text)


def non_negative(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"expected {least} or more, found {value}")
    return value


def device_name(text: str) -> str:
    try:
        kind = torch.device(text).type
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"expected cpu or cuda[:N], found {text!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("this machine or this PyTorch has no CUDA")
    return text


def output_file(text: str) -> str:
    """A path that can be written; asked before the run, so that no result is lost at its end."""
    folder = Path(text).resolve().parent
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"the folder {folder} is not writable")
    return text


def add_shared_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "data",
        nargs="?",
        metavar="DATA",
        help="folder with train/<class>/*.jpg and val/<class>/*.jpg, or with <class>/*.jpg; "
        "without it images are generated",
    )
    add(
        "-a",
        "--arch",
        default=ARCHS[0],
        choices=ARCHS,
        metavar="ARCH",
        help=f"{ARCHS[0]} ... {ARCHS[-1]} (default: %(default)s)",
    )
    add(
        "-b",
        "--batch-size",
        type=positive,
        default=16,
        metavar="N",
        help="images per step and process (default: %(default)s)",
    )
    add(
        "-j",
        "--workers",
        type=non_negative,
        default=2,
        metavar="N",
        help="processes that load images; 0: the main one does (default: %(default)s)",
    )
    add(
        "--worker-start",
        choices=("fork", "spawn", "forkserver"),
        help="how these processes are started (default: Python's choice)",
    )
    add(
        "--image-size",
        type=positive,
        metavar="PIXELS",
        help="side of the image (default: the one ARCH was designed for)",
    )
    add(
        "--classes",
        type=positive,
        metavar="N",
        help="outputs of the model (default: the folder's classes; 1000 for generated images)",
    )
    add(
        "--seed",
        type=non_negative,
        default=0,
        metavar="N",
        help="of weights, images, their order and dropout (default: %(default)s)",
    )
    add(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads of PyTorch (default: PyTorch's choice)",
    )
    add(
        "--device",
        type=device_name,
        default="cpu",
        metavar="NAME",
        help="cpu, cuda, cuda:1 ... (default: %(default)s)",
    )
    add(
        "--amp",
        choices=("none", "bf16"),
        default="none",
        help="autocast the forward pass to this type (default: %(default)s)",
    )


def create_model(arch: str, classes: int, image_size: int) -> nn.Module:
    """A new EfficientNet whose weights are drawn from the global seed."""
    try:
        from efficientnet_pytorch import EfficientNet
    except ModuleNotFoundError as error:
        if error.name != "efficientnet_pytorch":
            raise
        sys.exit(
            "error: the Python package efficientnet_pytorch is missing. Run `make demo` once in "
            "the top folder of this\nrepository, or `pip install efficientnet_pytorch==0.7.1`."
        )
    return EfficientNet.from_name(arch, num_classes=classes, image_size=image_size)


def exit_with(error: Exception) -> NoReturn:
    """Ends with status 2 as for a wrong argument. A worker's error arrives inside a traceback."""
    text = str(error).rstrip().rpartition("DataError: ")[2]
    print(f"{Path(sys.argv[0]).name}: error: {text}", file=sys.stderr, flush=True)
    sys.exit(2)


def autocast(args: argparse.Namespace, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.amp == "bf16")


def describe_run(args: argparse.Namespace, model: nn.Module, device: torch.device) -> str:
    """The lines that make two logs comparable: model, sizes, number type, machine settings."""
    parameters = sum(p.numel() for p in model.parameters())
    threads = torch.get_num_threads()
    numbers = "fp32" if args.amp == "none" else f"{args.amp} autocast"
    return (
        f"=> model {args.arch}, {parameters:,} parameters, {args.classes} classes, "
        f"{args.image_size}x{args.image_size} pixels\n"
        f"=> {device}, {threads} thread{'s' if threads > 1 else ''}, {numbers}, "
        f"torch {torch.__version__}, seed {args.seed}"
    )


class AverageMeter:
    """A quantity's latest value and the mean of all its values."""

    def __init__(self, name: str, fmt: str):
        self.name, self.fmt = name, fmt
        self.values: list[float] = []
        self.sum = 0.0

    def update(self, value: float) -> None:
        self.values.append(value)
        self.sum += value

    def mean(self, skip: int = 0) -> float:
        return (self.sum - sum(self.values[:skip])) / (len(self.values) - skip)

    def median(self, skip: int = 0) -> float:
        return statistics.median(self.values[skip:])

    def __str__(self) -> str:
        return f"{self.name} {self.values[-1]:{self.fmt}} ({self.mean():{self.fmt}})"
