"""CPU memory of tensors that is kept when it is freed and handed out again.

The C library gives a large block back to the system as soon as it is freed; at its next use the
kernel clears every page of it again, which costs two to three times the work of a pointwise
operator. With the caching allocator a training step reuses the blocks of the step before. Results
do not change by a bit. Off by default: it trades memory that stays reserved for time.

    import opfuse.memory
    opfuse.memory.use_caching_allocator()

Safe with tensors that are alive when it is switched on or off, with threads, with fork (DataLoader
workers) and with shared memory. CUDA memory is not touched.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from opfuse import library as _library

__all__ = ["Statistics", "in_use", "reset_peak", "statistics", "stop", "trim",
           "use_caching_allocator"]  # fmt: skip

_CGROUP_FILES = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_SUFFIXES = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Statistics:
    """Bytes, and counts since the process began. Blocks below 64 KiB are counted as live only."""

    live_bytes: int  # handed out now
    peak_bytes: int  # the most of live_bytes since reset_peak()
    cached_bytes: int  # kept for the next request
    hits: int  # requests served from kept blocks
    misses: int  # requests that went to the system
    evictions: int  # kept blocks given back because of the limit


def use_caching_allocator(limit: int | str | None = None) -> None:
    """Takes CPU memory for tensors from a cache from now on, in all threads.

    `limit`: the most bytes of freed blocks that are kept, as a number or "500M", "2G"; by default
    half of the memory that is free in this machine or cgroup now. Beyond it the least recently
    freed go back to the system. Calling it again changes the limit. Raises ValueError for another
    `limit`, RuntimeError when another library has installed an allocator that must not be replaced.

    Example: `use_caching_allocator("2G")`
    """
    size = _free_bytes() // 2 if limit is None else _bytes(limit)
    if not _functions().opfuse_memory_use(size):
        raise RuntimeError(
            "opfuse.memory: expected torch's own CPU allocator, found one of a higher priority"
        )


def stop() -> None:
    """Puts back the allocator that was there before, and gives kept blocks to the system.

    Example: `stop()`
    """
    _functions().opfuse_memory_stop()


def in_use() -> bool:
    """True while new CPU tensors take their memory from the cache.

    Example: `in_use()`
    """
    return bool(_functions().opfuse_memory_in_use())


def trim() -> int:
    """Gives all kept blocks back to the system; returns their bytes.

    Example: `trim()`
    """
    return _functions().opfuse_memory_trim()


def reset_peak() -> None:
    """Begins to measure `statistics().peak_bytes` anew.

    Example: `reset_peak()`
    """
    _functions().opfuse_memory_reset_peak()


def statistics() -> Statistics:
    """What is in use, what is kept, and how often a kept block served.

    Example: `statistics().cached_bytes`
    """
    values = (ctypes.c_int64 * 6)()
    _functions().opfuse_memory_statistics(values)
    return Statistics(*values)


def _functions() -> ctypes.CDLL:
    functions = _library.load()
    functions.opfuse_memory_use.argtypes = [ctypes.c_int64]
    functions.opfuse_memory_stop.restype = None
    functions.opfuse_memory_reset_peak.restype = None
    functions.opfuse_memory_trim.restype = ctypes.c_int64
    functions.opfuse_memory_statistics.restype = None
    return functions


def _bytes(limit: int | str) -> int:
    text = str(limit).strip().upper().removesuffix("B").removesuffix("I")
    unit = _SUFFIXES.get(text[-1:], 1)
    try:
        size = int(float(text.rstrip("KMG")) * unit)
    except (ValueError, OverflowError):
        size = -1
    if size < 0 or size >= 2**62 or isinstance(limit, bool):
        raise ValueError(
            f"opfuse.memory: expected a size such as 2000000000, '500M' or '2G', found {limit!r}"
        )
    return size


def _free_bytes() -> int:
    """What this process may still take: of the machine, or of its cgroup when that is less."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line
    )
    free = int(fields["MemAvailable"].split()[0]) * 1024
    for folder, limit, used in _CGROUP_FILES:
        try:
            left = int(Path(folder, limit).read_text()) - int(Path(folder, used).read_text())
        except (OSError, ValueError):
            continue  # no such cgroup, or "max"
        free = min(free, left)
    return max(free, 0)
