"""Which torch this was tested with, and what to say of another one."""

from __future__ import annotations

# The torch that the tests run on, and the oldest that this is meant to work with.
TESTED = ("2.13",)
OLDEST = "2.10"


def note(version: str) -> str:
    """What to say of this version of torch; "" when the tests run on it.

    Example: `note("2.12.1")` says that it is not tested.
    """
    numbers = _numbers(version)
    if len(numbers) < 2:
        return f"torch {version} is not tested (tested: {', '.join(TESTED)})"
    if numbers < _numbers(OLDEST):
        return f"torch {version} is older than {OLDEST}, the oldest that this is meant to work with"
    if f"{numbers[0]}.{numbers[1]}" in TESTED:
        return ""
    return f"torch {version} is not tested (tested: {', '.join(TESTED)}); the self-check is run"


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers: (2, 13) of "2.13.0+cpu"."""
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
