# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of calls, and converts them to the form that libkvcache takes. Wrong arguments raise ArgumentError."""

from __future__ import annotations

import math
import os
import re
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import _library as c
from ._errors import ArgumentError
from ._memory import Batch, Keys

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._memory import KeysLike, PlacesLike

MOST_MS = 2**31 - 1  # the longest timeout in milliseconds


def milliseconds(seconds: float | None) -> int:
    """Converts a timeout to whole milliseconds, rounded up, at most MOST_MS. Returns 0, which stands for the client's own timeout, for
    None."""
    if seconds is None:
        return 0
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ArgumentError(f"a timeout must be a number of seconds above 0, not {seconds!r}")
    return min(math.ceil(seconds * 1000), MOST_MS) if math.isfinite(seconds) else MOST_MS


def text(what: str, value: str | os.PathLike[str], most: int) -> bytes:
    """Returns the text as a NUL-terminated C string. Raises ArgumentError if the text is empty, longer than `most` bytes, contains a NUL,
    or cannot be encoded. `what`: its name for the error message."""
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError as e:
        raise ArgumentError(f"{what}: {e}") from None
    if not 1 <= len(encoded) <= most or b"\0" in encoded:
        raise ArgumentError(f"{what} must have 1 to {most} bytes, none of them NUL, not {value!r}")
    return encoded + b"\0"


def transfer_kind(path: str, layout: str, technology: str, result: str) -> tuple[int, int, int, int]:
    """Returns the numbers of the four names that describe a transfer."""
    names = {"path": (path, c.PATHS), "layout": (layout, c.LAYOUTS), "technology": (technology, c.TECHNOLOGIES),
             "result": (result, c.RESULTS)}
    for what, (name, known) in names.items():
        if name not in known:
            raise ArgumentError(f"a transfer's {what} must be one of {', '.join(known)}, not {name!r}")
    return c.PATHS.index(path), c.LAYOUTS.index(layout), c.TECHNOLOGIES.index(technology), c.RESULTS.index(result)


def whole_numbers(**numbers: int) -> tuple[int, ...]:
    for name, number in numbers.items():
        if not isinstance(number, int) or not 0 <= number < 2**64:
            raise ArgumentError(f"{name} must be a whole number from 0 to 2**64 - 1, not {number!r}")
    return tuple(numbers.values())


def fingerprint_text(fields: Mapping[str, object]) -> bytes:
    """Returns a fingerprint as a C string with a line "key=value" for each field, sorted by key."""
    lines = []
    for key, value in fields.items():
        if not isinstance(key, str) or not re.fullmatch(r"[a-z0-9_.-]+", key) or not re.fullmatch(r"[ -~]*", str(value)):
            raise ArgumentError("the keys of a fingerprint must consist of a-z, 0-9, '_', '.' and '-', and its values of printable ASCII, not "
                                f"{key!r}: {value!r}")
        lines.append((key, f"{key}={value}\n"))
    encoded = "".join(line for _, line in sorted(lines)).encode()
    if len(encoded) > 4096:
        raise ArgumentError(f"a fingerprint may have 4096 bytes at most, not {len(encoded)}")
    return encoded + b"\0"


def batch_of(keys: Batch | KeysLike, places: PlacesLike | None, is_get: bool) -> Batch:
    if isinstance(keys, Batch):
        if places is not None:
            raise ArgumentError("a Batch contains its places, so no other places may be passed")
        batch = keys
    elif places is None:
        raise ArgumentError("keys that are not a Batch need places, one for each key")
    else:
        batch = Batch(keys, places)
    if is_get and batch.readonly:
        raise ArgumentError("get() cannot write to read-only memory, and a place is read-only")
    return batch


def return_seconds(seconds: int) -> int:
    if not isinstance(seconds, int) or not 0 <= seconds < 1 << 32:
        raise ArgumentError(f"return_s must be whole seconds from 0 to 2**32 - 1, not {seconds!r}")
    return seconds


def advice_number(advice: str, return_s: int) -> int:
    """Returns the number of the advice, shifted by ADVICE_SHIFT, with `return_s` in its lower bits, for Client._request()."""
    if not isinstance(advice, str) or advice not in c.ADVICE:
        raise ArgumentError(f"advice is one of {', '.join(c.ADVICE)}, not {advice!r}")
    seconds = return_seconds(return_s)
    if (advice == "return") != (seconds > 0):
        raise ArgumentError(f"return_s is 1 or more for the advice 'return' and 0 for others, not {return_s!r} for {advice!r}")
    return c.ADVICE[advice] << c.ADVICE_SHIFT | seconds


def expected_number(return_s: int | None) -> int:
    """Returns, as advice_number() does, what a put announces about the next use of its chain. `return_s`: seconds; 0 for never, and None for no
    announcement, which gives 0."""
    return 0 if return_s is None else advice_number("return" if return_s else "final", return_s)


def ack_number(name: str) -> int:
    try:
        return c.ACKS[name]
    except (KeyError, TypeError):
        raise ArgumentError(f"ack must be one of {', '.join(c.ACKS)}, not {name!r}") from None


def parent_words(key: Buffer) -> array[int]:
    return Keys([key]).words
