"""Trains an EfficientNet on class folders of JPEGs, or on generated images.

    python main.py /data/imagenet --arch efficientnet-b0 -b 64 -j 4 --epochs 90
    python main.py --steps 10                       # no images at hand
    python main.py --steps 10 --profile trace.json  # open it in chrome://tracing or Perfetto

Each step prints TIME (forward, backward, optimizer), DATA (waiting for images), LOSS, images/s.
"""

import argparse
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # started with `python -m` from another folder
    sys.path.insert(0, HERE)

import torch
import torch.distributed as dist
from common import (
    IMAGE_SIZES,
    AverageMeter,
    add_shared_options,
    autocast,
    create_model,
    describe_run,
    exit_with,
    non_negative,
    output_file,
    positive,
)
from data import DataError, GeneratedImages, open_folder
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

GENERATED_STEPS = 10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains an EfficientNet on class folders of JPEGs, or on generated images.",
        usage="%(prog)s [DATA] [options]",
        allow_abbrev=False,
    )
    add_shared_options(parser)
    add = parser.add_argument
    add(
        "--epochs",
        type=non_negative,
        default=1,
        metavar="N",
        help="passes over the images (default: %(default)s)",
    )
    add(
        "--steps",
        type=positive,
        metavar="N",
        help="end each epoch after N steps (default: all images; "
        f"{GENERATED_STEPS} steps of generated ones)",
    )
    add("--lr", type=float, default=0.01, help="learning rate (default: %(default)s)")
    add("--lr-step", type=positive, default=30, metavar="EPOCHS", help="divide it by 10 this often")
    add("--momentum", type=float, default=0.9, help="of SGD (default: %(default)s)")
    add("--weight-decay", type=float, default=1e-4, help="of SGD (default: %(default)s)")
    add(
        "-p",
        "--print-freq",
        type=positive,
        default=1,
        metavar="N",
        help="print every N-th step (default: %(default)s)",
    )
    add("--exact-loss", action="store_true", help="print losses with all their digits")
    add(
        "--evaluate",
        action="store_true",
        help="measure loss and accuracy on the validation images after each epoch; "
        "with --epochs 0 do only that",
    )
    add(
        "--profile",
        type=output_file,
        metavar="FILE.json",
        help="profile a few steps with torch.profiler and write a Chrome trace",
    )
    add(
        "--save",
        type=output_file,
        metavar="FILE",
        help="write model and optimizer to FILE after each epoch",
    )
    args = parser.parse_args()
    if args.profile and args.epochs == 0:
        parser.error("--profile needs a training step, and --epochs 0 has none")
    return args


def open_images(args: argparse.Namespace, world: int) -> tuple[Dataset, Dataset | None, str]:
    """Training and validation images, and a line that says what they are."""
    if args.data is None:
        args.classes = args.classes or 1000
        steps = args.steps or GENERATED_STEPS
        shape = dict(classes=args.classes, size=args.image_size, seed=args.seed)
        train = GeneratedImages(steps * args.batch_size * world, train=True, **shape)
        val = GeneratedImages(2 * args.batch_size * world, train=False, **shape)
        return train, val, f"=> generated images (no DATA folder given), {len(train)} an epoch"
    train, val, found = open_folder(args.data, args.image_size, args.seed)
    args.classes = args.classes or found
    if args.classes < found:
        raise DataError(f"{args.data}: has {found} classes, more than --classes {args.classes}")
    if len(train) < args.batch_size * world:
        raise DataError(
            f"{args.data}: {len(train)} training images do not fill one step of "
            f"{args.batch_size * world}; use a smaller --batch-size"
        )
    if args.evaluate and val is None:
        raise DataError(f"{args.data}: --evaluate needs the folders train/ and val/ in it")
    text = f"=> {args.data}: {len(train)} training images of {found} classes"
    return train, val, text if val is None else f"{text}, {len(val)} validation images"


def make_loader(
    images: Dataset, args: argparse.Namespace, rank: int, world: int, train: bool
) -> DataLoader:
    sampler = DistributedSampler(images, world, rank, shuffle=train, seed=args.seed)
    return DataLoader(
        images,
        batch_size=args.batch_size,
        sampler=sampler,
        drop_last=train,
        num_workers=args.workers,
        multiprocessing_context=args.worker_start if args.workers else None,
        generator=torch.Generator().manual_seed(args.seed),
        pin_memory=args.device != "cpu",
    )


class Trainer:
    """One model in training: its optimizer, schedule, meters and, if asked for, the profiler."""

    def __init__(self, args: argparse.Namespace, model: nn.Module, device: torch.device):
        self.args, self.device = args, device
        self.plain_model = self.model = model
        if dist.is_initialized():
            self.model = nn.parallel.DistributedDataParallel(model)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(
            model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=args.lr_step)
        self.step_time = AverageMeter("TIME", "6.3f")
        self.data_time = AverageMeter("DATA", "6.3f")
        self.losses = AverageMeter("LOSS", "" if args.exact_loss else ".4f")

    def train_epoch(
        self, epoch: int, loader: DataLoader, profiler, world: int, quiet: bool
    ) -> None:
        loader.dataset.epoch = epoch
        loader.sampler.set_epoch(epoch)
        self.model.train()
        steps = min(self.args.steps or len(loader), len(loader))
        images_per_step = self.args.batch_size * world
        start = waiting_since = time.perf_counter()
        for step, (images, target) in enumerate(loader, 1):
            self.data_time.update(time.perf_counter() - waiting_since)
            self.train_step(images, target)
            if profiler is not None:
                profiler.step()
            if not quiet and (step % self.args.print_freq == 0 or step == steps):
                rate = images_per_step / self.step_time.values[-1]
                print(
                    f"Epoch: [{epoch}][{step:{len(str(steps))}}/{steps}]  {self.step_time}  "
                    f"{self.data_time}  {self.losses}  images/s {rate:.1f}",
                    flush=True,
                )
            if step == steps:
                break
            waiting_since = time.perf_counter()
        self.scheduler.step()
        seconds = time.perf_counter() - start
        if not quiet:
            rate = steps * images_per_step / seconds
            took = f"Epoch: [{epoch}] took {seconds:.2f} s"
            print(f"{took}, {rate:.1f} images/s with DATA", flush=True)

    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        start = time.perf_counter()
        images = images.to(self.device, non_blocking=True)
        target = target.to(self.device, non_blocking=True)
        with autocast(self.args, self.device):
            loss = self.criterion(self.model(images), target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        if self.device.type == "cuda":  # item() waited for the loss only
            torch.cuda.synchronize(self.device)
        self.losses.update(value)
        self.step_time.update(time.perf_counter() - start)

    @torch.no_grad()
    def evaluate(self, loader: DataLoader) -> str:
        self.plain_model.eval()
        loss_sum, correct, count = 0.0, 0, 0
        for images, target in loader:
            images, target = images.to(self.device), target.to(self.device)
            with autocast(self.args, self.device):
                output = self.plain_model(images)
                loss_sum += self.criterion(output, target).item() * len(target)
            correct += (output.argmax(1) == target).sum().item()
            count += len(target)
        return f"Validation: LOSS {loss_sum / count:.4f}  top-1 {100 * correct / count:.2f} %"

    def save(self, epoch: int) -> None:
        state = {
            "epoch": epoch + 1,
            "arch": self.args.arch,
            "state_dict": self.plain_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        unfinished = f"{self.args.save}.unfinished"  # an interrupted save keeps the old file
        torch.save(state, unfinished)
        os.replace(unfinished, self.args.save)

    def summary(self, world: int) -> str:
        count = len(self.step_time.values)
        skip = 1 if count > 1 else 0  # the first step also allocates and chooses kernels
        median = self.step_time.median(skip)
        rate = self.args.batch_size * world / median
        without = " without the first" if skip else ""
        return (
            f"TIME      mean {self.step_time.mean(skip):.4f} s  median {median:.4f} s  "
            f"({count - skip} step{'s' if count - skip > 1 else ''}{without})\n"
            f"DATA      mean {self.data_time.mean(skip):.4f} s  "
            f"median {self.data_time.median(skip):.4f} s\n"
            f"images/s  {rate:.2f}  (batch / median TIME)"
        )


def make_profiler(path: str, total_steps: int) -> torch.profiler.profile:
    """A profiler for two steps, after one plain step and one in which the profiler warms up."""
    active = min(2, total_steps)
    warmup = min(1, total_steps - active)
    wait = min(1, total_steps - active - warmup)

    def write(profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(path)
        last = wait + warmup + active
        print(
            f"=> {path}: trace of steps {last - active + 1} to {last} "
            f"({os.path.getsize(path) / 1e6:.1f} MB); their TIME includes the profiler",
            flush=True,
        )

    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=write,
        record_shapes=True,
        with_stack=True,
    )


def run(args: argparse.Namespace, rank: int, world: int) -> None:
    quiet = rank != 0
    args.image_size = args.image_size or IMAGE_SIZES[args.arch]
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    train_images, val_images, text = open_images(args, world)
    torch.manual_seed(args.seed)
    model = create_model(args.arch, args.classes, args.image_size).to(device)
    if not quiet:
        print(f"{text}\n{describe_run(args, model, device)}", flush=True)
    torch.manual_seed(args.seed + rank)  # each process has its own dropout
    trainer = Trainer(args, model, device)
    train_loader = make_loader(train_images, args, rank, world, train=True)
    val_loader = None
    if args.evaluate and not quiet:
        val_loader = make_loader(val_images, args, rank=0, world=1, train=False)
    profiler = None
    if args.profile and not quiet:
        steps = min(args.steps or len(train_loader), len(train_loader))
        profiler = make_profiler(args.profile, args.epochs * steps)
    with profiler or nullcontext():
        for epoch in range(args.epochs):
            trainer.train_epoch(epoch, train_loader, profiler, world, quiet)
            if val_loader is not None:
                print(trainer.evaluate(val_loader), flush=True)
            if args.save and not quiet:
                trainer.save(epoch)
    if args.epochs == 0 and val_loader is not None:
        print(trainer.evaluate(val_loader), flush=True)
    if args.epochs and not quiet:
        print(trainer.summary(world), flush=True)


def main() -> None:
    args = parse_arguments()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:  # started by torchrun
        if args.device == "cuda":
            args.device = f"cuda:{os.environ['LOCAL_RANK']}"
        dist.init_process_group("gloo" if args.device == "cpu" else "nccl")
    try:
        run(args, rank, world)
    except DataError as error:
        exit_with(error)
    finally:
        if world > 1:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
