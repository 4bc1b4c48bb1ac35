# SPDX-License-Identifier: Apache-2.0
"""Functions of the CUDA driver, called through ctypes, that order the engine's streams with the adapter's: events, streams and copies.

Used by mover.py and loads.py. Imports nothing of vLLM. No call here invalidates a CUDA graph that another thread is capturing.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

NOT_READY = 600         # CUDA_ERROR_NOT_READY
CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: result for the legacy default stream while another stream is being captured
RELAXED = 2             # CU_STREAM_CAPTURE_MODE_RELAXED: no call of this thread invalidates a capture of another thread
NON_BLOCKING = 1        # CU_STREAM_NON_BLOCKING: a stream without order against the legacy default stream
BLOCKING_SYNC = 1       # CU_EVENT_BLOCKING_SYNC: a thread that waits for the event sleeps
UNTIMED = 2             # CU_EVENT_DISABLE_TIMING


class Cuda:
    """The primary CUDA context of a device, which PyTorch uses, too. Methods whose docstring says "For any thread" may be called on any thread,
    others only on a thread that has called use(), or within entered(). A failure of the driver raises OSError."""

    def __init__(self, device: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        mode = self._relax()
        try:
            self._call("cuInit", 0)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        finally:
            self._restore(mode)

    def _relax(self) -> int:
        """Sets this thread's capture mode so that its calls do not invalidate captures of other threads. Returns the mode before, for _restore()."""
        mode = ctypes.c_int(RELAXED)
        exchange = getattr(self._cuda, "cuThreadExchangeStreamCaptureMode", None)  # since CUDA 10.1
        return RELAXED if exchange is None or exchange(ctypes.byref(mode)) else mode.value

    def _restore(self, mode: int) -> None:
        if mode != RELAXED:
            self._cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(mode)))

    def _call(self, name: str, *arguments: Any) -> None:
        r = getattr(self._cuda, name)(*arguments)
        if r:
            raise OSError(f"{name}() of the GPU's driver failed with CUDA error {r}")

    def use(self) -> None:
        """Prepares this thread, which belongs to the adapter, for all later calls."""
        self._relax()
        self._call("cuCtxPushCurrent_v2", self._context)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Prepares a thread of the engine for the calls within, and restores it afterwards. For any thread."""
        mode = self._relax()
        try:
            self._call("cuCtxPushCurrent_v2", self._context)
            try:
                yield
            finally:
                self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        finally:
            self._restore(mode)

    def is_capturing(self, stream: int) -> bool:
        """Returns whether the stream is being captured, or work in the stream would invalidate a capture."""
        state = ctypes.c_int()
        asked = self._cuda.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(state))
        return bool(asked == CAPTURE_IMPLICIT or (asked == 0 and state.value))

    def record(self, stream: int) -> int:
        """Returns a new event that completes after all work that is in the stream now. Returns 0, and does nothing, if the stream is being
        captured. For any thread."""
        event = ctypes.c_void_p()
        with self.entered():
            if self.is_capturing(stream):
                return 0
            self._call("cuEventCreate", ctypes.byref(event), BLOCKING_SYNC | UNTIMED)
            self._call("cuEventRecord", event, ctypes.c_void_p(stream))
        return event.value or 0

    def record_again(self, event: int, stream: int) -> bool:
        """Records an event again, so that it completes after all work that is in the stream now. Returns False, and does nothing, if the stream is
        being captured. For any thread."""
        with self.entered():
            if self.is_capturing(stream):
                return False
            self._call("cuEventRecord", ctypes.c_void_p(event), ctypes.c_void_p(stream))
        return True

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        return stream.value or 0

    def wait_for(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), 0)

    def is_over(self, event: int) -> bool:
        """Returns whether all work before the event is done. Returns True if the driver fails; the next call of the driver reports the failure."""
        return bool(self._cuda.cuEventQuery(ctypes.c_void_p(event)) != NOT_READY)

    def wait_until(self, event: int) -> None:
        """Sleeps until all work before the event is done, without holding Python's lock."""
        self._call("cuEventSynchronize", ctypes.c_void_p(event))

    def drop(self, event: int) -> None:
        self._call("cuEventDestroy_v2", ctypes.c_void_p(event))

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream))

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))
