# SPDX-License-Identifier: Apache-2.0
"""Contexts: a device, its memory and streams."""

from __future__ import annotations

import threading
from ctypes import c_void_p

from ._errors import Invalid, check
from ._library import abi, byref, lib

_ALIGNED = 256


class _Memory:
    """Memory of a context that is given back with this object."""

    __slots__ = ("context", "pointer", "size")

    def __init__(self, context, size):
        self.context, self.size, self.pointer = context, size, None
        memory = c_void_p()
        check(lib.mica_malloc(context._handle, size, byref(memory)))
        self.pointer = memory.value
        context._keep()

    def __del__(self):
        if self.pointer:
            self.context._free(self.pointer)
            self.pointer = None


class Context:
    """A device and what was learnt of it: plans, tuning records.

    device: "cpu"; "cuda:0"; "auto", a GPU if there is one, else the CPU; "sm_90a" and the like, a GPU
    that is only imagined: plans are made, nothing runs. Operators that are given none use one of the
    device on which their arrays lie.

    name: the device's, "cpu" or "cuda:0"."""

    name: str

    def __init__(self, device: str = "auto") -> None:
        self._handle = None
        self._lock = threading.RLock()
        self._kept = 0
        self._closed = False
        self._local = threading.local()
        handle = c_void_p()
        check(lib.mica_context_create(str(device).encode(), byref(handle)))
        self._handle = handle.value
        info = abi.mica_device_info()
        check(lib.mica_context_info(self._handle, byref(info)))
        self.name = info.name.decode()

    def _info(self, struct, function):
        info = struct()
        check(function(self._open(), byref(info)))
        found = {name: getattr(info, name) for name, *_ in struct._fields_}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}

    @property
    def info(self) -> dict[str, Any]:
        """What is known of the device: model, arch, units, memory_bytes, ..."""
        return self._info(abi.mica_device_info, lib.mica_context_info)

    @property
    def stats(self) -> dict[str, int]:
        """Counters since the context was made: plan_hits, plan_misses, kernel_compiles, ..."""
        return self._info(abi.mica_stats, lib.mica_context_stats)

    def _open(self):
        if self._closed:
            raise Invalid(f"the context of {self.name} is closed")
        return self._handle

    def _keep(self):
        with self._lock:
            self._kept += 1

    def _free(self, memory):
        """Memory may outlive the context's closing: garbage is collected in any order."""
        with self._lock:
            lib.mica_free(self._handle, memory)
            self._kept -= 1
            last = self._closed and not self._kept
        if last:
            self._destroy()

    def _destroy(self):
        handle, self._handle = self._handle, None
        if handle:
            lib.mica_context_destroy(handle)

    def close(self) -> None:
        """No more plans from it. What was made of it, plans and arrays, stays valid."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            last = not self._kept
        if last:
            self._destroy()

    def __del__(self):
        if getattr(self, "_handle", None) and not self._closed:
            self.close()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self):
        return f"mica.Context({self.name!r})"

    def workspace(self, size: int, stream: int | None = None) -> int:
        """Address of at least `size` bytes, aligned to 256, that this thread's runs on this stream share:
        one after the other they may."""
        local = self._local.__dict__
        memory = local.get(stream)
        if memory is None or memory.size < size:
            memory = local[stream] = _Memory(self, size)
        return memory.pointer

    def empty(self, tensor: Tensor | str) -> Array:
        """A mica.Array on this device: context.empty("bf16:2x3")."""
        from ._arrays import Array

        self._open()
        return Array(tensor, self)

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for what was enqueued on the stream."""
        check(lib.mica_synchronize(self._open(), stream))

    def load_records(self, path: Any) -> None:
        """Adds the tuning records of a file."""
        check(lib.mica_context_load_records(self._open(), str(path).encode()))

    def save_records(self, path: Any) -> None:
        """Appends to the file what this context measured since the last call."""
        check(lib.mica_context_save_records(self._open(), str(path).encode()))

    def health(self) -> None:
        """Raises DeviceLost or ForkedProcess where the device cannot be used any more."""
        check(lib.mica_health(self._open()))


_default = {}
_default_lock = threading.Lock()


def default_context(device):
    """The context that operators share which are given none."""
    context = _default.get(device)
    if context is None or context._closed:
        with _default_lock:
            context = _default.get(device)
            if context is None or context._closed:
                context = Context(device)
                _default[device] = context
    return context


def as_context(device):
    """A context, or the shared one of a device's name."""
    if isinstance(device, Context):
        device._open()
        return device
    if not isinstance(device, str):
        raise TypeError(f"context is a {type(device).__name__}; it is a mica.Context or a device's name")
    return default_context(device)
