"""opfuse inside the user's process. `opfuse tune -- python main.py` is the way in; see README.md.

Importing this package imports nothing else: torch least of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opfuse.attach import Tuning

__version__ = "0.1.0"
__all__ = ["__version__", "optimize", "tune"]


def tune(**flags: Any) -> Tuning:
    """Tunes the steps that run inside the block, as `opfuse tune` does for a whole script.

    Keywords are the flags of `opfuse tune`, with underscores: `levers="all"`, `budget=128`,
    `output="report"`, `force=True`. What was kept stays after the block, until `undo()`. Training
    goes on whatever happens here. Raises ValueError for flags that mean nothing, RuntimeError where
    this process is tuned already or the program is not found.

    Example: `with opfuse.tune(levers="all") as tuning: train(model)`, then `tuning.report`
    """
    from opfuse.attach import Tuning

    return Tuning(flags)


def optimize(model: Any, **options: Any) -> Any:
    """`torch.compile(model)` with the operators of opfuse: see opfuse.backend.optimize.

    Example: `model = opfuse.optimize(model)`
    """
    from opfuse import backend

    return backend.optimize(model, **options)
