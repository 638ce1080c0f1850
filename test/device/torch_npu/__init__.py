"""A stand-in for Ascend's torch_npu: device `npu` in host memory, for tests.

Kernels run in order on a thread of their own; float64 is refused; an operator without a kernel here
runs the CPU's. OPFUSE_TEST_NPU names the library that cmake builds from test/device/npu. It shows
nothing about the silicon, nor its speed.
"""

import ctypes
import os
import types

import torch

__version__ = "2.13.0"  # the wheel whose schemas these are

_library = os.environ["OPFUSE_TEST_NPU"]
torch.utils.rename_privateuse1_backend("npu")
torch.ops.load_library(_library)
_native = ctypes.CDLL(_library)
_native.standin_error.restype = ctypes.c_char_p
_native.standin_set_duration.argtypes = [ctypes.c_char_p, ctypes.c_double]
_native.standin_set_launch_time.argtypes = [ctypes.c_char_p, ctypes.c_double]
_native.standin_launches.argtypes = [ctypes.c_char_p]
for _count in ("synchronizations", "launches", "memory_in_use", "memory_peak"):
    getattr(_native, f"standin_{_count}").restype = ctypes.c_long


def synchronize(device=None):
    if _native.standin_synchronize() != 0:
        raise RuntimeError(_native.standin_error().decode())


npu = types.ModuleType("torch.npu")
npu.synchronize = synchronize
npu.is_available = npu.is_initialized = lambda: True
npu.init = npu._lazy_init = lambda: None
npu.device_count = lambda: 1
npu.current_device = lambda: 0
npu.set_device = lambda device: None
npu.manual_seed = npu.manual_seed_all = lambda seed: None  # random numbers are the host's
npu._is_in_bad_fork = lambda: False
npu.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
npu.get_rng_state = lambda device=None: torch.get_rng_state()
npu.set_rng_state = lambda state, device=None: torch.set_rng_state(state)


npu.memory_allocated = lambda device=None: _native.standin_memory_in_use()
npu.max_memory_allocated = lambda device=None: _native.standin_memory_peak()
npu.reset_peak_memory_stats = lambda device=None: _native.standin_reset_memory_peak()


class NPUGraph:
    """Captured operators; here only that they are there."""


class graph:
    """While it is open, the current stream is captured."""

    capturing = False

    def __init__(self, npu_graph):
        self.npu_graph = npu_graph

    def __enter__(self):
        graph.capturing = True

    def __exit__(self, *_):
        graph.capturing = False


npu.NPUGraph, npu.graph = NPUGraph, graph
npu.is_current_stream_capturing = lambda: graph.capturing

torch._register_device_module("npu", npu)
torch.utils.generate_methods_for_privateuse1_backend()


def set_duration(kernel: str, seconds: float) -> None:
    """Kernels of this name take at least so long on the device."""
    _native.standin_set_duration(kernel.encode(), seconds)


def set_launch_time(kernel: str, seconds: float) -> None:
    """Launching a kernel of this name takes the program at least so long."""
    _native.standin_set_launch_time(kernel.encode(), seconds)


def synchronizations() -> int:
    """How often anybody has waited for the device."""
    return _native.standin_synchronizations()


def launches(kernel: str) -> int:
    """How many kernels of this name were queued so far."""
    return _native.standin_launches(kernel.encode())


def allocates() -> bool:
    """Does the device's memory come from its own allocator?"""
    return bool(_native.standin_allocates())


# Under the names by which the wheel has them.
npu_silu = torch.ops.npu.npu_silu
npu_gelu = torch.ops.npu.npu_gelu
npu_fast_gelu = torch.ops.npu.npu_fast_gelu
fast_gelu = torch.ops.npu.fast_gelu
npu_mish = torch.ops.npu.npu_mish
npu_rms_norm = torch.ops.npu.npu_rms_norm
npu_gemma_rms_norm = torch.ops.npu.npu_gemma_rms_norm
npu_add_rms_norm = torch.ops.npu.npu_add_rms_norm
npu_swiglu = torch.ops.npu.npu_swiglu
npu_geglu = torch.ops.npu.npu_geglu
npu_rotary_mul = torch.ops.npu.npu_rotary_mul
npu_scaled_masked_softmax = torch.ops.npu.npu_scaled_masked_softmax
