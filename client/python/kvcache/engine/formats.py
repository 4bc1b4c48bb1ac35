# SPDX-License-Identifier: Apache-2.0
"""Computes the digest of one weight file: of all its bytes, or of its description and of samples of its tensors. Used by weights.py.

The formats are safetensors, GGUF, and zip (PyTorch), and are recognised by the content. A file that claims a format but contradicts it is
sampled at equal distances, like a file of any other format. Samples read a number of bytes that constants bound, whatever a header says;
only the digest "full" reads a file of any size completely.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable
from typing import Any

WHOLE = 1 << 20  # bytes of the largest file that is read completely
SAMPLE = 4096    # bytes of a sample
END = 64 << 10   # bytes that are read at either end of a zip file, or of a file without a known format
SAMPLES = 256    # number of samples at equal distances, of a zip file or of a file without a known format
MOST_HEADER = 32 << 20  # bytes of the largest description, which is a file's header or directory
MOST_TENSORS = 200_000
MOST_NESTING = 4    # most arrays of GGUF metadata that are nested in each other
MOST_PAIRS = 65_536  # most entries of GGUF metadata
MOST_ELEMENTS = 2_000_000  # most texts and arrays in arrays of GGUF metadata; a vocabulary and its merges have 1,000,000
PIECE = 8 << 20  # most bytes that are read at a time

_GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_TEXT, _GGUF_ARRAY = 8, 9


class Changed(Exception):
    """Reports that the file changed while it was read."""


class _Malformed(Exception):
    """The file contradicts the format that it claims, or exceeds a bound."""


class _Short(_Malformed):
    """The description continues after the bytes that were read."""


def content_digest(fd: int, size: int, how: str) -> str:
    """Returns the digest of an open file of this size. `how`: "full" or "samples"; a file of at most WHOLE bytes is read completely in
    either case. Raises Changed if the file is shorter than `size`."""
    seen = hashlib.blake2b(digest_size=32)
    if how == "full" or size <= WHOLE:
        seen.update(b"whole\n")
        _update(seen, fd, 0, size)
        return seen.hexdigest()
    head = _read(fd, 0, 16)
    for name, applies, parse in (("safetensors", head[8:9] == b"{", _safetensors), ("gguf", head[:4] == b"GGUF", _gguf),
                                 ("zip", head[:4] == b"PK\3\4", _zip)):
        if not applies:
            continue
        try:
            described, ranges = parse(fd, size)
        except (_Malformed, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error):
            continue
        seen.update(name.encode() + b"\n")
        _update(seen, fd, *described)
        _update_samples(seen, fd, ranges)
        if name == "zip":
            _update_spread(seen, fd, size)
        return seen.hexdigest()
    seen.update(b"other\n")
    _update_spread(seen, fd, size)
    return seen.hexdigest()


def _read(fd: int, at: int, n: int) -> bytes:
    data = os.pread(fd, n, at)
    if len(data) != n:
        raise Changed
    return data


def _update(seen: Any, fd: int, at: int, n: int) -> None:
    while n > 0:
        data = _read(fd, at, min(n, PIECE))
        seen.update(data)
        at, n = at + len(data), n - len(data)


def _update_samples(seen: Any, fd: int, ranges: Iterable[tuple[int, int]]) -> None:
    """Hashes a sample from the beginning, the middle and the end of each range; all of a range that is no longer than three samples."""
    for at, end in ranges:
        if end - at <= 3 * SAMPLE:
            seen.update(_read(fd, at, end - at))
        else:
            for place in (at, (at + end - SAMPLE) // 2, end - SAMPLE):
                seen.update(_read(fd, place, SAMPLE))


def _update_spread(seen: Any, fd: int, size: int) -> None:
    """Hashes both ends of the file and samples at equal distances."""
    seen.update(_read(fd, 0, END) + _read(fd, size - END, END))
    for i in range(SAMPLES):
        seen.update(_read(fd, i * (size - SAMPLE) // (SAMPLES - 1), SAMPLE))


def _safetensors(fd: int, size: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    length = int.from_bytes(_read(fd, 0, 8), "little")
    first = 8 + length
    if length > MOST_HEADER or first > size:
        raise _Malformed
    tensors = json.loads(_read(fd, 8, length))
    ranges = []
    for name, tensor in tensors.items():
        if name == "__metadata__":
            continue
        at, end = tensor["data_offsets"]
        if type(at) is not int or type(end) is not int or not 0 <= at <= end <= size - first:
            raise _Malformed
        ranges.append((first + at, first + end))
    if len(ranges) > MOST_TENSORS:
        raise _Malformed
    return (0, first), sorted(ranges)


class _Cursor:
    """Reads the fields of a GGUF description one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.elements = data, 0, 0

    def skip(self, n: int) -> int:
        """Skips n bytes. Returns the position of the first skipped byte. Raises _Short if fewer bytes are left."""
        at = self.at
        if n > len(self.data) - at:
            raise _Short
        self.at = at + n
        return at

    def number(self, n: int) -> int:
        at = self.skip(n)
        return int.from_bytes(self.data[at:at + n], "little")

    def text(self) -> bytes:
        n = self.number(8)
        at = self.skip(n)
        return self.data[at:at + n]

    def value(self, kind: int, depth: int = 0) -> int:
        """Skips a value of metadata. Returns the value if it is a number, else 0."""
        if kind in _GGUF_SIZES:
            return self.number(_GGUF_SIZES[kind])
        if kind == _GGUF_TEXT:
            self.skip(self.number(8))
        elif kind == _GGUF_ARRAY and depth < MOST_NESTING:
            element, count = self.number(4), self.number(8)
            if element in _GGUF_SIZES:
                self.skip(count * _GGUF_SIZES[element])
            else:
                self.elements += count
                if self.elements > MOST_ELEMENTS:
                    raise _Malformed
                for _ in range(count):
                    self.value(element, depth + 1)
        else:
            raise _Malformed
        return 0


def _gguf(fd: int, size: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Returns the offset and length of a GGUF file's description, and for each tensor the offsets of its first byte and of its end. A
    tensor is assumed to end where the next one begins, and the last one at the file's end, so that the sizes of quantized elements need not
    be known."""
    length = WHOLE
    while True:
        length = min(length, size, MOST_HEADER)
        try:
            end, alignment, offsets = _gguf_table(_Cursor(_read(fd, 0, length)))
            break
        except _Short:
            if length == min(size, MOST_HEADER):
                raise
            length *= 8
    first = -(-end // alignment) * alignment
    starts = sorted(first + o for o in offsets)
    if starts and starts[-1] > size:
        raise _Malformed
    return (0, end), list(zip(starts, [*starts[1:], size]))


def _gguf_table(at: _Cursor) -> tuple[int, int, set[int]]:
    at.skip(4)
    version, tensors, pairs, alignment = at.number(4), at.number(8), at.number(8), 32
    if version not in (2, 3) or tensors > MOST_TENSORS or pairs > MOST_PAIRS:
        raise _Malformed
    for _ in range(pairs):
        name, kind = at.text(), at.number(4)
        value = at.value(kind)
        if name == b"general.alignment":
            alignment = value
    offsets = set()
    for _ in range(tensors):
        at.text()
        at.skip(8 * at.number(4) + 4)
        offsets.add(at.number(8))
    if alignment < 1:
        raise _Malformed
    return at.at, alignment, offsets


def _zip(fd: int, size: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Returns the offset and length of a zip file's central directory, which has a CRC of each member, and an empty list instead of ranges
    of tensors."""
    tail = min(size, 22 + 65535)
    end = _read(fd, size - tail, tail)
    at = end.rfind(b"PK\5\6")
    if at < 0:
        raise _Malformed
    length, first = struct.unpack_from("<II", end, at + 12)
    if 0xffffffff in (length, first):
        locator = end.rfind(b"PK\6\7", 0, at)
        if locator < 0:
            raise _Malformed
        place = struct.unpack_from("<Q", end, locator + 8)[0]
        if place > size - 56:
            raise _Malformed
        length, first = struct.unpack_from("<QQ", _read(fd, place, 56), 40)
    if length > MOST_HEADER or first > size - length:
        raise _Malformed
    return (first, length), []
