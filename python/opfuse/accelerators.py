"""What `opfuse doctor` says of devices and of the packages whose operators rules name.

What was never run on the silicon is said to be so, whatever is installed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

# Where no device of that kind was at hand: what was tested on the stand-in of test/device, and what
# nowhere.
_UNRUN = {
    "cuda": (
        "recording, proofs, switching, timing and graph capture: same code as on the stand-in",
        "device time from the profiler, memory of the device, several GPUs, Liger-Kernel",
    ),
    "npu": (
        "recording, proofs, switching, timing and torch_npu's operators: on the stand-in",
        "device time from the profiler, memory of the device, several NPUs, HCCL",
    ),
}
_SILICON = {"cuda": "a GPU", "npu": "an NPU"}
_VENDORS = {"torch_npu": "npu", "liger_kernel": "cuda"}


def lines() -> list[str]:
    """The rows of `opfuse doctor` below the self-check."""
    found = []
    for name, (tested, untested) in _UNRUN.items():
        found.append(f"{name:<13}{_presence(name)}")
        found.append(f"{'':<13}not run on {_SILICON[name]}: {tested}")
        found.append(f"{'':<13}not run at all: {untested}")
    for package, device in _VENDORS.items():
        found.append(f"{package:<13}{_package(package, device)}")
    return found


def _presence(name: str) -> str:
    import torch

    module: Any = getattr(torch, name, None)
    if module is None or not module.is_available():
        return "none here"
    return f"{module.device_count()} here"


def _package(name: str, device: str) -> str:
    if importlib.util.find_spec(name) is None:
        return "not installed"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = "of an unknown version"
    return f"{version}; what is chosen: opfuse rules --device {device}"
