# SPDX-License-Identifier: Apache-2.0
"""Region, a registered buffer: memory of the program that the daemon maps, so that it reads and writes chunks there directly."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import TYPE_CHECKING, Any

from . import _library as c
from ._errors import ArgumentError, RegionError
from ._memory import Pin, Places, open_file_of

if TYPE_CHECKING:
    from ._client import Client
    from ._memory import Offsets


class Region:
    """Memory that the daemon reads and writes directly. Client.register() and Client.allocate() make a region, which pins its memory.

    memory      the memory, as a writable memoryview of bytes
    registered  whether the daemon maps the memory; if not, `reason` has the cause, and libkvcache copies the bytes of puts and gets"""

    def __init__(self, client: Client, memory: Any, fd: int | None, copy: bool) -> None:
        self._client = client
        self._pin = Pin(memory)
        if self._pin.readonly or not self._pin.nbytes:
            raise ArgumentError(f"the memory is {'read-only' if self._pin.readonly else 'empty'}, but a region needs writable memory of one page "
                                "or more")
        self._owner = memory
        self._number: int | None = None
        self._fd: int | None = None
        self.reason = ""
        try:
            self._fd, offset = open_file_of(self._pin.address, self._pin.nbytes, fd)
            page = max(mmap.PAGESIZE, os.fstatvfs(self._fd).f_bsize)
            skip = -offset % page
            self._offset, self._base = offset + skip, self._pin.address + skip
            self._bytes = (self._pin.nbytes - skip) // page * page
            if self._bytes <= 0:
                raise RegionError(errno.EINVAL, f"the memory has no whole page of {page} bytes: a region needs at least one")
        except RegionError as e:
            self._close_fd()
            if not copy:
                raise
            self.reason = e.strerror or ""

    def __del__(self) -> None:
        self._close_fd()

    def __repr__(self) -> str:
        pin = getattr(self, "_pin", None)
        state = "registered" if getattr(self, "_number", None) is not None else f"copied: {getattr(self, 'reason', '') or 'not registered'}"
        return f"<Region of {pin.nbytes if pin is not None else 0} bytes, {state}>"

    def __len__(self) -> int:
        return self._pin.nbytes

    @property
    def registered(self) -> bool:
        return self._number is not None

    @property
    def refused(self) -> bool:
        """Returns whether the memory is suitable but not registered, because the daemon refused it or is unreachable."""
        return self._number is None and self._fd is not None

    def retry(self) -> bool:
        """Tries again to register refused memory, for example after the daemon's limits were raised. Returns whether the memory is registered
        now."""
        with self._client._entered():
            if self.refused and self._client._usable(None) == 0 and self._client._handle is not None:
                self._register(self._client._handle.kv)
        return self.registered

    @property
    def memory(self) -> memoryview:
        return memoryview(self._owner).cast("B")

    def places(self, offsets: Offsets, length: int, pieces: int = 1) -> Places:
        """Returns Places of `length` bytes at these offsets. Each key has `pieces` places."""
        return Places((self, offsets, length), pieces)

    def settled(self, offset: int = 0, length: int | None = None) -> bool:
        """Returns whether these bytes may be reused. A request that timed out, or was lost with its daemon, may still access them. `length`: None for
        all bytes from `offset` on. Raises ArgumentError for a range outside the region."""
        length = len(self) - offset if length is None else length
        if not isinstance(offset, int) or not isinstance(length, int) or offset < 0 or not 0 < length <= len(self) - offset:
            raise ArgumentError(f"{length} bytes from {offset} on are not a range of the region, which has {len(self)}")
        with self._client._entered() as handle:
            r = c.memory_settled(handle.kv, self._pin.address + offset, length) if handle else 1
            if r < 0:
                raise self._client._raised(r)
            return bool(r)

    def unregister(self) -> None:
        """Unregisters the memory. Waits, at most for the client's timeout, until requests in flight no longer use the memory. Raises Error with
        errno ETIMEDOUT if a request still uses it: the call must then be repeated before the memory is reused. A second call does nothing."""
        with self._client._entered() as handle:
            if handle and self._number is not None:
                r = c.buffer_unregister(handle.kv, self._number)
                if r < 0:
                    raise self._client._raised(r)
            self._forget("it is unregistered")
            self._client._regions.discard(self)

    def _forget(self, reason: str) -> None:
        self._number = None
        self.reason = reason
        self._close_fd()

    def _close_fd(self) -> None:
        fd, self._fd = getattr(self, "_fd", None), None
        if fd is not None:
            os.close(fd)

    def _register(self, kv: int) -> int:
        """Registers the memory with the daemon, unless it is registered already or unsuitable. Returns 0, or a negative errno with the
        reason in `reason`. The caller holds the client's lock."""
        if self._fd is None or self._number is not None:
            return 0
        number = ctypes.c_uint32()
        options = c.BUFFER_OPTIONS.pack(c.BUFFER_OPTIONS.size, 0, self._fd, self._offset, self._bytes, self._base)
        r: int = c.buffer_register(kv, options, ctypes.byref(number), None)
        if r == 0:
            self._number, self.reason = number.value, ""
        else:
            self.reason = self._client._words()
        return r
