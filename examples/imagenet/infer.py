"""Measures how many images an EfficientNet classifies per second.

    python infer.py --batches 20
    python infer.py /data/imagenet --checkpoint model.pt

Each batch prints TIME (forward only), the mean of the outputs, images/s.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # started with `python -m` from another folder
    sys.path.insert(0, HERE)

import torch
from common import (
    IMAGE_SIZES,
    AverageMeter,
    add_shared_options,
    autocast,
    create_model,
    describe_run,
    exit_with,
    positive,
)
from data import DataError, GeneratedImages, open_folder
from torch.utils.data import DataLoader, Dataset


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measures how many images an EfficientNet classifies per second.",
        usage="%(prog)s [DATA] [options]",
        allow_abbrev=False,
    )
    add_shared_options(parser)
    parser.add_argument(
        "-n",
        "--batches",
        type=positive,
        default=10,
        metavar="N",
        help="batches to run, at most as many as DATA has (default: %(default)s)",
    )
    parser.add_argument("--checkpoint", metavar="FILE", help="weights that main.py --save wrote")
    return parser.parse_args()


def open_images(args: argparse.Namespace) -> tuple[Dataset, str]:
    if args.data is None:
        args.classes = args.classes or 1000
        count = args.batches * args.batch_size
        images = GeneratedImages(count, args.classes, args.image_size, args.seed, train=False)
        return images, "=> generated images (no DATA folder given)"
    train, val, found = open_folder(args.data, args.image_size, args.seed)
    args.classes = args.classes or found
    images = val or train
    images.train = False  # centre crop, no flip
    return images, f"=> {args.data}: {len(images)} images"


def load_weights(model: torch.nn.Module, path: str) -> None:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["state_dict"])
    except (OSError, KeyError, RuntimeError) as error:
        sys.exit(f"error: --checkpoint {path}: {error}")


@torch.no_grad()
def run(args: argparse.Namespace) -> None:
    args.image_size = args.image_size or IMAGE_SIZES[args.arch]
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    images, text = open_images(args)
    torch.manual_seed(args.seed)
    model = create_model(args.arch, args.classes, args.image_size)
    if args.checkpoint:
        load_weights(model, args.checkpoint)
    model = model.to(device).eval()
    print(f"{text}\n{describe_run(args, model, device)}", flush=True)
    loader = DataLoader(
        images,
        batch_size=args.batch_size,
        num_workers=args.workers,
        multiprocessing_context=args.worker_start if args.workers else None,
        generator=torch.Generator().manual_seed(args.seed),
    )
    batch_time = AverageMeter("TIME", "6.3f")
    total = min(args.batches, len(loader))
    rates: list[float] = []
    for step, (batch, _) in enumerate(loader, 1):
        start = time.perf_counter()
        with autocast(args, device):
            mean_output = model(batch.to(device)).float().mean().item()
        batch_time.update(time.perf_counter() - start)
        rates.append(len(batch) / batch_time.values[-1])
        print(
            f"Batch: [{step:{len(str(total))}}/{total}]  {batch_time}  "
            f"output {mean_output:+.6f}  images/s {rates[-1]:.1f}",
            flush=True,
        )
        if step == total:
            break
    skip = 1 if total > 1 else 0  # the first batch also allocates and chooses kernels
    print(f"TIME      mean {batch_time.mean(skip):.4f} s  median {batch_time.median(skip):.4f} s")
    print(f"images/s  {statistics.median(rates[skip:]):.2f}  (median)", flush=True)


def main() -> None:
    args = parse_arguments()
    try:
        run(args)
    except DataError as error:
        exit_with(error)


if __name__ == "__main__":
    main()
