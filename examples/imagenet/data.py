"""Images for the example: class folders of JPEGs, or images generated from a seed.

Each image's random crop and flip come from (seed, epoch, index) alone, so what a run sees does
not depend on the number of workers, and two runs with one seed can be compared bit by bit.
"""

import math
import os
import random
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
JPEG_SUFFIXES = (".jpg", ".jpeg")


class DataError(Exception):
    """The folder or a file in it cannot be used; the message says which and what was expected."""


def random_crop_box(
    width: int, height: int, rng: random.Random
) -> tuple[float, float, float, float]:
    """A box of 8 to 100 % of the area and an aspect ratio between 3/4 and 4/3."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    # Very long or very small images: the largest centred box within the allowed ratios.
    w = min(width, height * 4 / 3)
    h = min(height, width * 4 / 3)
    return (width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2


def center_crop_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The centred square whose side is 224/256 of the shorter side, as ImageNet is evaluated."""
    side = min(width, height) * 224 / 256
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def to_normalized_tensor(image) -> Tensor:
    """A Pillow RGB image as a float tensor (3, height, width) with ImageNet's mean and std."""
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    pixels = pixels.view(image.height, image.width, 3).permute(2, 0, 1).float().div_(255)
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    return ((pixels - mean) / std).contiguous()


def find_classes(folder: Path) -> list[str]:
    """The names of the class folders, sorted: a class's number is its place in this list."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


class ClassFolder(Dataset):
    """JPEGs in one folder per class: FOLDER/<class>/**/*.jpg."""

    def __init__(self, folder: Path, classes: list[str], size: int, seed: int, train: bool):
        self.size, self.seed, self.train, self.epoch = size, seed, train, 0
        self.samples: list[tuple[str, int]] = []
        for name in find_classes(folder):
            if name not in classes:
                raise DataError(f"{folder / name}: a class that the training images do not have")
            label = classes.index(name)
            for parent, folders, files in os.walk(folder / name):
                folders.sort()
                jpegs = (file for file in sorted(files) if file.lower().endswith(JPEG_SUFFIXES))
                self.samples += [(os.path.join(parent, file), label) for file in jpegs]
        if not self.samples:
            raise DataError(
                f"{folder}: no JPEGs found; expected FOLDER/<class>/<image>.jpg "
                "or FOLDER/train/<class>/<image>.jpg"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image, UnidentifiedImageError

        path, label = self.samples[index]
        rng = random.Random(f"{self.seed}/{self.epoch}/{index}")
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{path}: cannot be read as a JPEG: {error}") from None
        box = random_crop_box(*image.size, rng) if self.train else center_crop_box(*image.size)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if self.train and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return to_normalized_tensor(image), label


class GeneratedImages(Dataset):
    """Noise over a smooth pattern of the class, so that there is something to learn."""

    def __init__(self, count: int, classes: int, size: int, seed: int, train: bool):
        self.count, self.classes, self.size, self.epoch = count, classes, size, 0
        self.pattern_seed = seed * 1_000_003
        self.image_seed = (seed * 2 + train + 1) * 1_000_000_007

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = torch.Generator().manual_seed(self.image_seed + index)
        label = int(torch.randint(self.classes, (), generator=rng))
        pattern_rng = torch.Generator().manual_seed(self.pattern_seed + label)
        pattern = torch.randn(1, 3, 4, 4, generator=pattern_rng)
        pattern = F.interpolate(pattern, size=(self.size, self.size), mode="bilinear")[0]
        noise = torch.randn(3, self.size, self.size, generator=rng)
        return pattern + 0.5 * noise, label


def open_folder(folder: str, size: int, seed: int) -> tuple[ClassFolder, ClassFolder | None, int]:
    """Training images, validation images if there is a val/ folder, and the number of classes."""
    try:
        import PIL.Image  # noqa: F401  (asked for here, so that no worker fails later)
    except ModuleNotFoundError:
        raise DataError("reading JPEGs needs Pillow: pip install pillow") from None
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; leave DATA out to train on generated images")
    train_root = root / "train" if (root / "train").is_dir() else root
    val_root = root / "val"
    classes = find_classes(train_root)
    train = ClassFolder(train_root, classes, size, seed, train=True)
    val = None
    if train_root != root and val_root.is_dir():
        val = ClassFolder(val_root, classes, size, seed, train=False)
    return train, val, len(classes)
