# SPDX-License-Identifier: Apache-2.0
"""Computes the distance between a computed chunk of KV cache and a stored one, for the canary (verification.py).

Two computations of the same chunk differ in rounding, because their batches have different shapes, so their bytes cannot be compared. A chunk is
divided into units: the keys of a layer, or its values, or both if they cannot be separated. The elements of a unit are decoded by their dtype.
The distance of two units is the L2 norm of their difference, divided by the larger of their norms; for unrelated units it is about 1.4. Keys
and values are separate units, because keys are much larger numbers and would hide differences of the values.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

BOUND = 0.2  # default of the distance above which chunks differ; not calibrated on a GPU, see the vLLM adapter's README


class Unit(NamedTuple):
    """Elements of a chunk that are compared together. `ranges`: the contiguous byte ranges of these elements in the chunk, each as the
    offset of its first byte and of the byte after its last one."""

    name: str
    dtype: str
    ranges: tuple[tuple[int, int], ...]


class Distance(NamedTuple):
    """The distance of two chunks, and the name of the unit that has this distance. `unit` is empty if the distance is 0, and names the
    lengths of the chunks if these differ."""

    value: float
    unit: str


def can_decode(dtype: str) -> bool:
    return dtype in _DECODERS


def distance(units: Sequence[Unit], computed: bytes | memoryview, stored: bytes | memoryview) -> Distance:
    """Returns the largest distance of any unit; infinity if a unit has no finite distance, or the chunks have different lengths."""
    if len(computed) != len(stored):
        return Distance(math.inf, f"lengths {len(computed)} and {len(stored)}")
    worst = Distance(0.0, "")
    for unit in units:
        one, other = (b"".join(chunk[start:end] for start, end in unit.ranges) for chunk in (computed, stored))
        if one == other:
            continue
        a, b = _DECODERS[unit.dtype](one), _DECODERS[unit.dtype](other)
        size = max(math.hypot(*a), math.hypot(*b))
        value = math.dist(a, b) / size if size else 0.0
        if not value <= worst.value:  # NaN counts as the worst value
            worst = Distance(value if math.isfinite(value) else math.inf, unit.name)
    return worst


def _bfloat16(data: bytes) -> list[float]:
    """Decodes bfloat16 elements, each of which is the upper half of a little-endian float32."""
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return _float32(bytes(wide))


def _float16(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 2}e", data))


def _float32(data: bytes) -> list[float]:
    values = array("f", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def _by_table(table: Sequence[float]) -> Callable[[bytes], list[float]]:
    return lambda data: [table[b] for b in data]


def _float8(exponent_bits: int, has_infinity: bool) -> list[float]:
    """Returns the value of each byte as an 8-bit float. Without infinities, as in e4m3fn, only the largest mantissa of the largest exponent is not
    a number."""
    mantissa_bits = 7 - exponent_bits
    bias, most, values = (1 << (exponent_bits - 1)) - 1, (1 << exponent_bits) - 1, []
    for byte in range(256):
        exponent, mantissa = byte >> mantissa_bits & most, byte & ((1 << mantissa_bits) - 1)
        if exponent == most and (has_infinity or mantissa == (1 << mantissa_bits) - 1):
            value = math.inf if has_infinity and not mantissa else math.nan
        elif exponent:
            value = math.ldexp(1 + mantissa / (1 << mantissa_bits), exponent - bias)
        else:
            value = math.ldexp(mantissa / (1 << mantissa_bits), 1 - bias)
        values.append(-value if byte & 0x80 else value)
    return values


_DECODERS: dict[str, Callable[[bytes], list[float]]] = {
    "bfloat16": _bfloat16, "float16": _float16, "float32": _float32,
    "float8_e4m3fn": _by_table(_float8(4, False)), "float8_e5m2": _by_table(_float8(5, True)),
}
