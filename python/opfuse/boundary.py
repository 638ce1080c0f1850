"""Finds the step boundaries of a script from outside and measures what lies between them.

A step ends at the first-seen optimizer's post hook. Without an optimizer it is one call of the root
module: the first module that is called a second time from outside any module. Everything that is
registered here is removed as soon as it has done its work; nothing is patched.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from opfuse.switch import in_graph_task

# Calls of the root with gradients wanted before we stop waiting for an optimizer: more than any
# usual number of accumulated micro-batches.
_CALLS_WITHOUT_OPTIMIZER = 16
# Steps of other optimizers before the first-seen one counts as given up.
_OTHER_OPTIMIZER_STEPS = 64


class NotTunable(Exception):
    """Not an error: this script cannot be tuned, and the message says why."""


@dataclass(frozen=True)
class StepSample:
    """One step. `wall_s` and `cpu_s` are without `data_s`, the time until its first forward."""

    step: int
    wall_s: float
    cpu_s: float
    data_s: float
    forwards: int
    signature: str
    batch: int


class Hook:
    """A module hook that a copied or pickled model takes along as a callable that does nothing."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> None:
        if not torch.compiler.is_compiling():  # a compiler that traces us finds nothing
            self._function(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class StepClock:
    """Accumulates what happens between two boundaries."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._begin = self._start = time.perf_counter()
        self._cpu = time.process_time()
        self.forwards = 0
        self._signatures: list[str] = []
        self.batch = -1

    def forward(self, arguments: Any) -> None:
        """The root's forward begins: the first one ends the time spent on data."""
        if self.forwards == 0:
            self._start = time.perf_counter()
            self._cpu = time.process_time()
            self.batch = batch_of(arguments)
        self.forwards += 1
        self._signatures.append(signature_of(arguments))

    def sample(self, step: int) -> StepSample:
        text = " ".join(self._signatures)
        if len(text) > 200:
            text = f"{self.forwards} forwards {zlib.crc32(text.encode()):08x}"
        return StepSample(
            step=step,
            wall_s=time.perf_counter() - self._start,
            cpu_s=time.process_time() - self._cpu,
            data_s=self._start - self._begin,
            forwards=self.forwards,
            signature=text,
            batch=self.batch,
        )


def _tensors(value: Any, depth: int = 3) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth == 0:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item, depth - 1)]
    return []


def signature_of(arguments: Any) -> str:
    """Shapes and dtypes of the tensors in `arguments`: "f32[16,3,224,224]" in torch's own names."""
    return ",".join(
        f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}".replace(" ", "")
        for t in _tensors(arguments)
    )


def batch_of(arguments: Any) -> int:
    """First dimension of the first tensor, -1 when there is none."""
    return next((int(t.shape[0]) for t in _tensors(arguments) if t.dim() > 0), -1)


def uses_torch_compile() -> bool:
    """True when torch.compile has captured something in this process."""
    utilities = sys.modules.get("torch._dynamo.utils")
    return utilities is not None and bool(utilities.counters.get("stats"))


def synchronize_devices() -> None:
    """Waits for what runs asynchronously, so that a step's time is its own."""
    for _, module in _accelerators():
        module.synchronize()


def _accelerators() -> list[tuple[str, Any]]:
    """Name and module of each device type that this process uses beside the CPU."""
    found = [(name, getattr(torch, name, None)) for name in ("cuda", "npu", "xpu")]
    return [(name, module) for name, module in found if module and module.is_initialized()]


def is_captured() -> str:
    """The device whose current stream is being captured into a graph, "" when there is none.

    Nothing may wait for it then, and what is captured keeps its operators.
    """
    for name, module in _accelerators():
        capturing = getattr(module, "is_current_stream_capturing", None)
        if capturing is not None and capturing():
            return name
    return ""


def holds_graph() -> str:
    """The device that a captured graph of this process is for, "" when there is none."""
    kinds = {
        kind: name
        for name, module in _accelerators()
        for kind in (getattr(module, f"{name.upper()}Graph", None),)
        if isinstance(kind, type)
    }
    if not kinds:
        return ""
    return next((kinds[type(o)] for o in gc.get_objects() if type(o) in kinds), "")


def in_loader_worker() -> bool:
    """True in a DataLoader's worker process."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


class Boundaries:
    """Calls `on_step` at every boundary and `on_restart` when another kind of boundary takes over.

    `on_trouble` gets an error of our own; after it nothing is registered any more.
    """

    def __init__(
        self,
        on_step: Callable[[StepSample], None],
        on_restart: Callable[[str], None],
        on_trouble: Callable[[Exception], None],
    ) -> None:
        self._on_step = on_step
        self._on_restart = on_restart
        self._on_trouble = on_trouble
        self.kind = "none"  # "optimizer" | "root"
        self.name = ""
        self.step = 0
        self.clock = StepClock()
        self._root: weakref.ref[Any] | None = None
        self._optimizer: weakref.ref[Any] | None = None
        self._thread = 0
        self._optimizers: set[int] = set()
        self._other_steps = 0
        self._inside_backward = False
        self._at_start = False  # kind root: the boundary is before the forward, not after it
        self._enabled_calls = 0
        self._called: set[int] = set()
        self._handles: dict[str, Any] = {}
        self._on_gradients: Callable[[], None] | None = None
        self._stopped = False
        self._filter: Any = None
        self.measuring = False
        self.compiles = False  # True: what is compiled is compiled by us
        self.before_first_forward: Callable[[], None] | None = None

    # What others ask

    @property
    def root(self) -> Any:
        return self._root() if self._root is not None else None

    @property
    def optimizer(self) -> Any:
        return self._optimizer() if self._optimizer is not None else None

    @property
    def inference(self) -> bool:
        """True when the steps are forwards without gradients."""
        return self.kind == "root" and not self._at_start

    def describe(self) -> dict[str, Any]:
        count = max(len(self._optimizers), 1) if self.kind == "optimizer" else 1
        return {"kind": self.kind, "name": self.name, "count": count}

    # Registration

    def start(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._handles["optimizer"] = register_optimizer_step_post_hook(self._optimizer_hook)
        self._hide_from_compiler(True)
        self._watch_for_root()

    def stop(self, on_gradients: Callable[[], None] | None = None) -> None:
        """Removes every hook. With `on_gradients` one stays: an inference loop was changed, and the
        first forward or optimizer step that wants gradients is to be told."""
        self._stopped = True
        self._on_gradients = on_gradients
        self._hide_from_compiler(False)
        keep = ("root_pre", "optimizer") if on_gradients else ()
        for name in [name for name in self._handles if name not in keep]:
            self._remove(name)

    def registered(self) -> list[str]:
        """Names of what is still registered."""
        return sorted(self._handles)

    def _remove(self, name: str) -> None:
        handle = self._handles.get(name)
        if handle is None:
            return
        if name == "optimizer" and not self._optimizer_hook_is_last(handle):
            # torch iterates over that dict while it calls us; taking out any entry but the last
            # would raise in the user's step. Later calls find nothing to do and try again.
            return
        handle.remove()
        del self._handles[name]

    @staticmethod
    def _optimizer_hook_is_last(handle: Any) -> bool:
        from torch.optim import optimizer

        ids = list(optimizer._global_optimizer_post_hooks)
        return not ids or ids[-1] == handle.id or handle.id not in ids

    def _guard(self, body: Callable[[], None]) -> None:
        """Runs our part of a hook; the user's program never sees an error of ours."""
        try:
            body()
        except Exception as error:
            self.stop()
            self._on_trouble(error)

    # Finding the root module

    def _hide_from_compiler(self, hide: bool) -> None:
        """torch.compile warns about global hooks; ours is gone before it could matter."""
        if hide:
            warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are gl")
            self._filter = warnings.filters[0]
        elif self._filter in warnings.filters:
            warnings.filters.remove(self._filter)

    def _watch_for_root(self) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        self._handles["any_pre"] = register_module_forward_pre_hook(Hook(self._any_pre))

    def _any_pre(self, module: Any, arguments: Any) -> None:
        """A module is called from outside any module: inside a call this hook is not registered."""
        self._guard(lambda: self._candidate(module, arguments))

    def _candidate(self, module: Any, arguments: Any) -> None:
        if in_loader_worker():
            self.stop()
            return
        self._remove("any_pre")
        if type(module).__name__ in ("OptimizedModule", "RecursiveScriptModule"):
            raise NotTunable(f"the model is compiled: {type(module).__name__}")
        first_call = self.kind == "none" and self.step == 0 and not self._called
        if first_call:
            if self.before_first_forward is not None:
                self.before_first_forward()
            self.clock.restart()
        if id(module) in self._called:
            self._adopt_root(module)
            # This call has passed the point where its own pre-hooks are looked up.
            self._root_pre(module, arguments, {})
            return
        self._called.add(id(module))
        if first_call:
            self.clock.forward(arguments)
        self._handles["candidate"] = module.register_forward_hook(
            Hook(self._candidate_done), always_call=True
        )

    def _candidate_done(self, *_: Any) -> None:
        def body() -> None:
            self._remove("candidate")
            if "any_pre" not in self._handles:
                self._watch_for_root()

        self._guard(body)

    def _adopt_root(self, module: Any) -> None:
        self._root = weakref.ref(module)
        self._hide_from_compiler(False)
        self._handles["root_pre"] = module.register_forward_pre_hook(
            Hook(self._root_pre), with_kwargs=True
        )
        self._handles["root_post"] = module.register_forward_hook(Hook(self._root_post))

    # The boundaries

    def _root_pre(self, module: Any, arguments: Any, keywords: Any) -> None:
        self._guard(lambda: self._forward_begins(arguments, keywords))

    def _forward_begins(self, arguments: Any, keywords: Any) -> None:
        if torch.is_grad_enabled() and self._on_gradients is not None:
            self._gradients_wanted()
            return
        if self._stopped:
            return
        if self.kind == "none" and torch.is_grad_enabled():
            self._enabled_calls += 1
            if self._inside_backward or self._enabled_calls > _CALLS_WITHOUT_OPTIMIZER:
                self._take(kind="root", name=self._root_name(), at_start=True)
        elif self.kind == "root" and self._at_start:
            self._boundary()
        self.clock.forward((arguments, keywords))

    def _root_post(self, *_: Any) -> None:
        self._guard(self._forward_ends)

    def _forward_ends(self) -> None:
        if torch.is_grad_enabled() or self._at_start:
            return
        if self.kind == "none" and self._optimizer is None:
            self._take(kind="root", name=self._root_name(), at_start=False)
        if self.kind == "root":
            self._boundary()

    def _optimizer_hook(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        self._guard(lambda: self._optimizer_stepped(optimizer))

    def _optimizer_stepped(self, optimizer: Any) -> None:
        if self._on_gradients is not None:
            self._gradients_wanted()
            return
        if self._stopped:
            self._remove("optimizer")
            return
        if in_graph_task() or self._inside_backward:
            self._inside_backward = True
            if self.kind == "optimizer":
                self._restart("an optimizer steps inside the backward pass")
            return
        if self.kind == "root":
            self._restart("an optimizer appeared")
        if self.kind == "none":
            self._take("optimizer", f"{type(optimizer).__name__}.step", at_start=False)
            self._adopt_optimizer(optimizer)
        self._optimizers.add(id(optimizer))
        if optimizer is not self.optimizer:
            self._other_steps += 1
            if self.optimizer is not None and self._other_steps < _OTHER_OPTIMIZER_STEPS:
                return
            self._adopt_optimizer(optimizer)
        self._other_steps = 0
        self._boundary()

    def _adopt_optimizer(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.name = f"{type(optimizer).__name__}.step"

    def _root_name(self) -> str:
        return f"{type(self.root).__name__}.forward"

    def _take(self, kind: str, name: str, at_start: bool) -> None:
        self.kind, self.name, self._at_start = kind, name, at_start
        self._thread = threading.get_ident()

    def _restart(self, why: str) -> None:
        self._on_restart(why)
        self.kind, self.name, self._at_start, self.step = "none", "", False, 0

    def _gradients_wanted(self) -> None:
        tell, self._on_gradients = self._on_gradients, None
        self.stop()
        if tell is not None:
            tell()

    def _boundary(self) -> None:
        if in_loader_worker():
            self.stop()
            return
        if threading.get_ident() != self._thread:
            raise NotTunable("steps run in several threads")
        if not self.compiles and uses_torch_compile():
            raise NotTunable("the script compiles its model with torch.compile")
        if device := is_captured():
            raise NotTunable(f"the script captures its steps into a graph of {device}")
        if self.measuring:
            synchronize_devices()
        self.step += 1
        sample = self.clock.sample(self.step)
        self._on_step(sample)
        self.clock.restart()
