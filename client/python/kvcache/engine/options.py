# SPDX-License-Identifier: Apache-2.0
"""Checks of the options that users set in an engine's configuration, for the adapters of all engines.

Each function returns the value in the type that the adapter uses, or raises ValueError with one sentence: the option, the allowed values and
the given value. An engine may read its configuration from a command line or YAML, which turn numbers into texts. vLLM's adapters therefore
accept any value that float() or int() accepts. The other adapters pass `plain`, which accepts only numbers.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

LONGEST_S = (2**31 - 1) / 1000  # the longest timeout of libkvcache; a longer one has the same effect
T = TypeVar("T", int, float)


def _checked(convert: Callable[[Any], T], fits: Callable[[T], bool], name: str, value: Any, allowed: str,
             kinds: tuple[type, ...] = ()) -> T:
    """Returns the value as convert() does if the result fits. `allowed`: the values that fit, in words. `kinds`: the types that are accepted;
    empty: all types."""
    try:
        if not kinds or (isinstance(value, kinds) and not isinstance(value, bool)):
            number = convert(value)
            if fits(number):
                return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{name} must be {allowed}, not {value!r}")


def _numbers(plain: bool) -> tuple[type, ...]:
    return (int, float) if plain else ()


def number_of(name: str, value: Any, allowed: str = "a number, 0 or more", below: float = math.inf, *, plain: bool = False) -> float:
    """Returns the value of an option as a number, 0 or more and less than `below`. `allowed`: these values in words."""
    return _checked(float, lambda n: 0 <= n < below, name, value, allowed, _numbers(plain))


def rate_of(name: str, value: Any) -> float:
    """Returns the value of an option as a number, 0 or more. Infinity is the rate of work that takes no time."""
    return _checked(float, lambda n: n >= 0, name, value, "a number, 0 or more")


def timeout_of(name: str, value: Any, most: float = math.inf, *, plain: bool = False) -> float:
    """Returns the value of an option as a number of seconds above 0, `most` at most. Returns LONGEST_S for a longer time."""
    allowed = "a number of seconds above 0" + (f", {most:g} at most" if most < math.inf else "")
    return min(_checked(float, lambda n: 0 < n <= most, name, value, allowed, _numbers(plain)), LONGEST_S)


def bound_of(name: str, value: Any, *, plain: bool = False) -> float:
    """Returns the value of an option as a number between 0 and 1, both excluded."""
    return _checked(float, lambda n: 0 < n < 1, name, value, "a number above 0 and below 1", _numbers(plain))


def size_of(name: str, value: Any) -> int:
    """Returns the value of an option as a number of bytes, 0 or more."""
    return _checked(int, lambda n: n >= 0, name, value, "a number of bytes, 0 or more")


def whole_of(name: str, value: Any, allowed: str, least: int, most: float = math.inf, multiple: int = 1) -> int:
    """Returns the value of an option, which must be a multiple of `multiple` from `least` to `most`, and an int. `allowed`: these values in
    words."""
    return _checked(int, lambda n: least <= n <= most and n % multiple == 0, name, value, allowed, (int,))


def part_bytes_of(name: str, value: Any) -> int:
    """Returns the value of an option as the longest chunk in bytes."""
    return whole_of(name, value, "a multiple of 4096", 4096, multiple=4096)


def socket_of(name: str, value: Any) -> Any:
    """Returns the value of an option, which must be the path of a socket, or None for the usual places."""
    if value is None or (isinstance(value, (str, bytes, os.PathLike)) and os.fspath(value)):
        return value
    raise ValueError(f"{name} must be the path of the daemon's socket, not {value!r}")


def prefix_of(name: str, value: Any) -> str:
    """Returns the value of an option as the prefix of namespaces' names."""
    if re.fullmatch(r"[ -~]*", str(value)):
        return str(value)
    raise ValueError(f"{name} must be printable ASCII, not {value!r}")
