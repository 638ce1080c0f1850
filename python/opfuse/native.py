"""libopfuse_torch.so through ctypes: one C function, JSON in and JSON out."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any


class NativeError(RuntimeError):
    """The library is missing, does not fit this torch, or answered with an error."""


class Native:
    """A loaded library. `call` gives the answer as a dict or raises NativeError.

    Example: `Native("/path/libopfuse_torch.so").call("self_check")["isa"]`
    """

    def __init__(self, path: str) -> None:
        if not os.path.isfile(path):
            raise NativeError(
                f"{path or 'libopfuse_torch.so'}: expected the library, found no file"
            )
        try:
            library = ctypes.CDLL(path)
            self._call = library.opfuse_call
            self._free = library.opfuse_free
        except (OSError, AttributeError) as error:
            raise NativeError(f"the library does not load: {error}") from None
        self._call.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self._call.restype = ctypes.c_void_p  # c_char_p would lose the pointer to free
        self._free.argtypes = [ctypes.c_void_p]
        self._free.restype = None

    def call(self, method: str, **request: Any) -> dict[str, Any]:
        """Calls one method of the session. The GIL is released while it runs."""
        pointer = self._call(method.encode(), json.dumps(request).encode())
        if not pointer:
            raise NativeError(f"{method}: expected an answer, found none")
        try:
            answer = json.loads(ctypes.string_at(pointer).decode("utf-8", "replace"))
        finally:
            self._free(pointer)
        if "error" in answer:
            raise NativeError(f"{method}: {answer['error']}")
        return answer


def load(path: str, config: dict[str, Any]) -> Native:
    """Loads the library, checks that it fits and works here, and opens the session."""
    import torch

    native = Native(path)
    checked = native.call("self_check")
    built_for = str(checked.get("torch", "")).partition("+")[0]
    running = torch.__version__.partition("+")[0]
    if not checked.get("ok"):
        raise NativeError("self_check: the recorder does not work here")
    if built_for and built_for.split(".")[:2] != running.split(".")[:2]:
        raise NativeError(f"the library was built for torch {built_for}, this is torch {running}")
    native.call("open", **config)
    return native
