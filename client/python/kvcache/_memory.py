# SPDX-License-Identifier: Apache-2.0
"""Keys, Places and Batch, which pack the caller's keys and memory for requests; and functions that find a buffer's address and its file.

A buffer whose address is in use is pinned: Python's buffer protocol then prevents its owner from resizing or closing it.
"""

from __future__ import annotations

import ctypes
import math
import os
import stat
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Tuple

from . import _library as c
from ._errors import ArgumentError, RegionError

if TYPE_CHECKING:
    from typing_extensions import Buffer, TypeAlias

    from ._region import Region

    KeysLike: TypeAlias = "Keys" | Buffer | Iterable[Buffer]
    Offsets: TypeAlias = Iterable[int]
    PlacesLike: TypeAlias = "Places" | Tuple[Region, Offsets, int] | Sequence[Any]


# --- buffers ---

class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer, whose layout is part of the stable ABI."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_void_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class Pin:
    """Keeps a buffer at its address until the pin is freed. `address`, `nbytes`, `readonly`: those of the buffer. An object that has only
    NumPy's __array_interface__ is kept alive, but its owner could still resize it."""

    __slots__ = ("address", "nbytes", "readonly", "_buffer", "_owner")

    def __init__(self, owner: Any) -> None:
        self._buffer: _PyBuffer | None = None
        self._owner = owner
        try:
            buffer = _PyBuffer()
            _get_buffer(owner, buffer, 0)
        except TypeError:
            self._from_array_interface(owner)
            return
        except (BufferError, ValueError) as e:
            raise ArgumentError(f"the buffer cannot be used, because it is closed or released, or its memory is not contiguous: {e}") from e
        self._buffer = buffer
        self.address: int = buffer.buf or 0
        self.nbytes: int = buffer.len
        self.readonly = bool(buffer.readonly)

    def _from_array_interface(self, owner: Any) -> None:
        interface = getattr(owner, "__array_interface__", None)
        if not isinstance(interface, dict):
            raise TypeError(f"memory must be a buffer (bytes, bytearray, memoryview, mmap, NumPy array), not {type(owner).__name__}")
        if interface.get("strides") is not None or not interface.get("data"):
            raise ArgumentError("the array cannot be used, because its memory is not contiguous")
        self.address, self.readonly = interface["data"]
        self.nbytes = math.prod(interface["shape"]) * int(interface["typestr"][2:])

    def __del__(self) -> None:
        if self._buffer is not None:
            _release_buffer(self._buffer)


def pin(owner: Any) -> tuple[int, int, bool, Any]:
    """Pins a buffer. Returns its address, its size in bytes, whether it is read-only, and the object that keeps it pinned. For a writable buffer
    this object is a ctypes object, whose creation takes a fifth of the time of a Pin's."""
    try:
        first = ctypes.c_char.from_buffer(owner)
        return ctypes.addressof(first), memoryview(owner).nbytes, False, first
    except (TypeError, ValueError):
        held = Pin(owner)
        return held.address, held.nbytes, held.readonly, held


# --- files behind memory ---

def _mapping_at(address: int, nbytes: int) -> tuple[int, int, int, str, str]:
    """Finds the shared mapping that contains the `nbytes` bytes at an address. Returns the offset of the address in the mapped file, the
    file's device, inode and path, and the mapping's name in /proc/self/map_files. Raises RegionError if the memory is private to this
    process, not mapped, or not within one mapping."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as f:
        for line in f:
            fields = line.split(None, 5)
            start, end = (int(x, 16) for x in fields[0].split("-"))
            if not start <= address < end:
                continue
            path = fields[5].rstrip("\n") if len(fields) > 5 else ""
            if fields[1][3] != "s" or fields[4] == "0":
                raise RegionError(22, "the daemon cannot map memory that is private to this process: allocate it with Client.allocate(), or map "
                                  "a memfd MAP_SHARED")
            if address + nbytes > end:
                raise RegionError(22, "the memory lies in more than one mapping: register the memory of each mapping separately")
            major, minor = (int(x, 16) for x in fields[3].split(":"))
            return int(fields[2], 16) + address - start, os.makedev(major, minor), int(fields[4]), path, fields[0]
    raise RegionError(22, "the memory is not mapped in this process")


def _is_file(fd: int, device: int, inode: int) -> bool:
    st = os.fstat(fd)
    return (st.st_dev, st.st_ino) == (device, inode) and stat.S_ISREG(st.st_mode)


def open_file_of(address: int, nbytes: int, fd: int | None) -> tuple[int, int]:
    """Opens the file that is mapped at `address`. Returns a new descriptor for reading and writing, which the caller must close, and the offset of
    the address in the file.

    `fd`: a descriptor of the file, if the caller has one. Otherwise the file is searched for among the descriptors of this process, at the
    mapping's path, and in /proc/self/map_files, which only root may read. Raises RegionError if the memory is not within one shared
    mapping, `fd` is of another file, or the file cannot be opened for writing."""
    offset, device, inode, path, name = _mapping_at(address, nbytes)
    if fd is not None:
        if not _is_file(fd, device, inode):
            raise RegionError(22, f"descriptor {fd} refers to another file than the memory")
        ways = [f"/proc/self/fd/{fd}"]
    else:
        ways = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")] + [path, f"/proc/self/map_files/{name}"]
    for way in ways:
        try:
            st = os.stat(way)
            if (st.st_dev, st.st_ino) != (device, inode):
                continue
            found = os.open(way, os.O_RDWR | os.O_CLOEXEC)
        except (OSError, ValueError):
            continue
        if _is_file(found, device, inode):
            return found, offset
        os.close(found)
    raise RegionError(22, f"the file behind the memory ({path or 'without a name'}) cannot be opened for reading and writing" +
                      ("; pass its fd" if fd is None else f" by descriptor {fd}"))


# --- keys and places ---

class Keys:
    """Keys that are packed once for any number of requests. The constructor takes a buffer of 32 * n bytes, or n objects of 32 bytes."""

    __slots__ = ("words", "count")

    def __init__(self, keys: KeysLike) -> None:
        self.words: array[int] = array("Q")
        self.count: int
        if isinstance(keys, Keys):
            self.words, self.count = keys.words, keys.count
            return
        try:
            self.words.frombytes(keys)  # type: ignore[arg-type]
        except TypeError:
            if isinstance(keys, str) or not hasattr(keys, "__iter__"):
                raise TypeError("keys must be one buffer with 32 bytes for each key, or a sequence of 32-byte buffers, not "
                                f"{type(keys).__name__}") from None
            many: Any = keys
            listed = list(many)
            try:
                joined = b"".join(listed)
            except TypeError as e:
                raise TypeError(f"a key must be a bytes-like object of 32 bytes: {e}") from None
            if set(map(len, listed)) - {c.KEY_BYTES} or len(joined) != c.KEY_BYTES * len(listed):
                wrong = next(i for i, k in enumerate(listed) if memoryview(k).nbytes != c.KEY_BYTES or len(k) != c.KEY_BYTES)
                size, items = memoryview(listed[wrong]).nbytes, len(listed[wrong])
                raise ArgumentError(f"key {wrong} has {size} bytes, not 32" if size != c.KEY_BYTES else
                                    f"key {wrong} has {items} items, not 32 of one byte each: pass bytes") from None
            self.words.frombytes(joined)
        except (ValueError, BufferError) as e:
            raise ArgumentError(f"a buffer of keys must be contiguous, with 32 bytes for each key: {e}") from None
        self.count, rest = divmod(len(self.words), 4)
        if rest:
            raise ArgumentError(f"a buffer of keys must have a multiple of 32 bytes, not {len(self.words) * 8}")

    def __repr__(self) -> str:
        first = getattr(self, "words", array("Q"))[:4].tobytes().hex()
        return f"<Keys {getattr(self, 'count', 0)}{': ' + first[:16] + '...' if first else ''}>"

    def __len__(self) -> int:
        return self.count

    def address(self) -> int:
        return self.words.buffer_info()[0]


class Places:
    """The memory that requests read or write for their keys, packed once. `addresses` and `lengths` have `pieces` entries for each key."""

    __slots__ = ("addresses", "lengths", "pieces", "count", "readonly", "_keep")

    def __init__(self, places: PlacesLike, pieces: int = 1) -> None:
        self._keep: Any
        self.addresses: array[int]
        self.lengths: array[int]
        self.count: int
        self.readonly = False
        self.pieces = pieces
        if isinstance(places, Places):
            self.addresses, self.lengths, self.pieces = places.addresses, places.lengths, places.pieces
            self.count, self.readonly, self._keep = places.count, places.readonly, places
            return
        if isinstance(places, tuple) and len(places) == 3 and hasattr(places[0], "_pin"):
            self._in_region(*places)
        else:
            self._of_buffers(places)
        if pieces < 1:
            raise ArgumentError(f"pieces must be a number of places for each key, 1 or more, not {pieces!r}")
        if len(self.addresses) % pieces:
            raise ArgumentError(f"with {pieces} pieces for each key, the number of places must be a multiple of {pieces}, not {len(self.addresses)}")
        self.count = len(self.addresses) // pieces

    def _in_region(self, region: Region, offsets: Offsets, length: int) -> None:
        held = region._pin
        listed = offsets.tolist() if hasattr(offsets, "tolist") else list(offsets)
        if not isinstance(length, int) or length <= 0:
            raise ArgumentError(f"the length of places must be a number of bytes, 1 or more, not {length!r}")
        try:
            if listed and (min(listed) < 0 or max(listed) + length > held.nbytes):
                wrong = min(listed) if min(listed) < 0 else max(listed)
                raise ArgumentError(f"a place of {length} bytes at offset {wrong} exceeds its region, which has {held.nbytes} bytes")
            base = held.address
            self.addresses = array("Q", [base + o for o in listed])
        except TypeError as e:
            raise ArgumentError(f"offsets must be whole numbers, one for each place: {e}") from None
        self.lengths = array("Q", [length]) * len(listed)
        self.readonly = held.readonly
        self._keep = held

    def _of_buffers(self, places: Any) -> None:
        if isinstance(places, (str, bytes, bytearray, memoryview)):
            raise TypeError("places must be a sequence of buffers, one for each key, not one buffer")
        pins = [pin(p) for p in places]
        self.addresses = array("Q", [p[0] for p in pins])
        self.lengths = array("Q", [p[1] for p in pins])
        self.readonly = any([p[2] for p in pins])
        self._keep = pins

    def __repr__(self) -> str:
        if not hasattr(self, "count"):
            return "<Places of nothing>"
        pieces = f", {self.pieces} pieces each" if self.pieces > 1 else ""
        return f"<Places {self.count}: {sum(self.lengths)} bytes{pieces}{', read-only' if self.readonly else ''}>"

    def __len__(self) -> int:
        return self.count


class Batch:
    """Keys with their places, packed once for any number of puts and gets.

    The keys and places of a batch are fixed. The bytes at the places may change while no request with the batch is in flight. `costs_us`, for
    puts: the microseconds that an engine needs to compute each chunk again, or 0 if unknown. The daemon keeps chunks with a higher cost per
    byte for longer."""

    __slots__ = ("entries", "count", "readonly", "_keep")

    def __init__(self, keys: KeysLike, places: PlacesLike, costs_us: Sequence[int] | None = None) -> None:
        keys = keys if type(keys) is Keys else Keys(keys)
        places = places if type(places) is Places else Places(places)
        n = self.count = keys.count
        if places.count != n:
            raise ArgumentError(f"{n} keys need {n} places, not {places.count}")
        entries = array("Q", bytes(8)) * (n * c.ENTRY_WORDS)
        for i in range(4):
            entries[i::c.ENTRY_WORDS] = keys.words[i::4]
        pieces: array[int] | None = None
        if places.pieces == 1:
            entries[4::c.ENTRY_WORDS] = places.addresses
            entries[5::c.ENTRY_WORDS] = places.lengths
        else:
            pieces = array("Q", bytes(16)) * len(places.addresses)
            pieces[0::2] = places.addresses
            pieces[1::2] = places.lengths
            first, step = pieces.buffer_info()[0], 16 * places.pieces
            entries[8::c.ENTRY_WORDS] = array("Q", range(first, first + n * step, step))
            entries[9::c.ENTRY_WORDS] = array("Q", [places.pieces]) * n
        if costs_us is not None:
            if len(costs_us) != n or not all(0 <= cost < 1 << 32 for cost in costs_us):
                raise ArgumentError(f"costs_us must have {n} costs, one for each key, of 0 to 2**32 - 1 microseconds")
            pieces_of = entries[9] if n else 0
            entries[9::c.ENTRY_WORDS] = array("Q", [pieces_of | int(cost) << 32 for cost in costs_us])
        self.entries = entries
        self.readonly = places.readonly
        self._keep = (places, pieces)

    def __repr__(self) -> str:
        if not hasattr(self, "_keep"):
            return "<Batch of nothing>"
        return f"<Batch {self.count}: {sum(self._keep[0].lengths)} bytes{', read-only' if self.readonly else ''}>"

    def __len__(self) -> int:
        return self.count

    def address(self) -> int:
        return self.entries.buffer_info()[0]
