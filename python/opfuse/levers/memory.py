"""CPU memory of tensors from a cache: see opfuse.memory."""

from __future__ import annotations

from opfuse.levers.lever import Context, Lever, LeverRefused, devices_of


class MemoryLever(Lever):
    """`opfuse.memory.use_caching_allocator()`. It changes no bit of any result."""

    name = "memory"
    what = "CPU memory of tensors is kept and reused"
    lines = ("import opfuse.memory", "opfuse.memory.use_caching_allocator()")
    warm_steps = 1  # the first step after a change fills the cache, or meets fresh pages

    def __init__(self, context: Context) -> None:
        if devices := devices_of(context.boundaries.root) - {"cpu"}:
            raise LeverRefused(f"the model is on {', '.join(sorted(devices))}")
        from opfuse import library

        library.look_beside(context.config.get("library", ""))
        try:
            from opfuse import memory

            if memory.in_use():
                raise LeverRefused("the script uses opfuse.memory already")
        except ImportError as error:
            raise LeverRefused(str(error)) from None
        self._memory = memory

    def set(self, on: bool) -> None:
        if on == self.on:
            return
        if not on:
            self._memory.stop()
        else:
            try:
                self._memory.use_caching_allocator()
            except RuntimeError as error:
                raise LeverRefused(str(error)) from None
        self.on = on
