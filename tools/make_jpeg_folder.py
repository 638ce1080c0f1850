"""Makes a small folder of JPEGs, one folder per class, for tests and for trying the example.

    python tools/make_jpeg_folder.py /tmp/jpegs --classes 4 --per-class 8 --size 96 --seed 0

writes /tmp/jpegs/train/<class>/<n>.jpg and a quarter as many under /tmp/jpegs/val. The images of a
class share a smooth pattern under noise; one seed always gives the same pixels.
"""

import argparse
import random
import sys
from pathlib import Path

try:
    from PIL import Image
except ModuleNotFoundError:
    sys.exit("error: writing JPEGs needs Pillow: pip install pillow")


def make_image(pattern_seed: str, noise_seed: str, size: int) -> Image.Image:
    """A 4x4 colour pattern, enlarged, with per-image noise; the sides differ as in photographs."""
    pattern = Image.frombytes("RGB", (4, 4), random.Random(pattern_seed).randbytes(48))
    rng = random.Random(noise_seed)
    width, height = size, max(1, round(size * rng.uniform(0.7, 1.0)))
    smooth = pattern.resize((width, height), Image.Resampling.BICUBIC)
    noise = Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height))
    return Image.blend(smooth, noise, 0.2)


def make_folder(out: Path, classes: int, per_class: int, size: int, seed: int) -> int:
    """Writes the images and returns their number.

    >>> make_folder(Path("/tmp/jpegs"), classes=2, per_class=4, size=32, seed=0)
    10
    """
    written = 0
    for part, count in (("train", per_class), ("val", max(1, per_class // 4))):
        for label in range(classes):
            folder = out / part / f"class_{label:03}"
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                image = make_image(f"{seed}/{label}", f"{seed}/{part}/{label}/{i}", size)
                image.save(folder / f"{i:05}.jpg", quality=90)
                written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; must not exist")
    parser.add_argument("--classes", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--per-class", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--size", type=int, default=96, help="longer side (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    args = parser.parse_args()
    for name in ("classes", "per_class", "size"):
        if getattr(args, name) < 1:
            option = name.replace("_", "-")
            parser.error(f"--{option}: expected 1 or more, found {getattr(args, name)}")
    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        parser.error(f"{args.out} exists and is not an empty folder")
    try:
        written = make_folder(args.out, args.classes, args.per_class, args.size, args.seed)
    except OSError as error:
        sys.exit(f"error: {error}")
    print(f"{args.out}: {written} JPEGs of {args.classes} classes in train/ and val/")


if __name__ == "__main__":
    main()
