# SPDX-License-Identifier: Apache-2.0
"""Finds the daemon and its tools, in this package or else on the host, and runs them. The last three functions are the console scripts of a
wheel that contains these programs."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import sys
from typing import NoReturn

from ._errors import Error

_HERE = pathlib.Path(__file__).parent


def find(name: str) -> str:
    """Returns the path of a program. Raises Error if neither the package nor $PATH has it."""
    bundled = _HERE / "bin" / name
    if bundled.exists():
        return str(bundled)
    found = shutil.which(name)
    if found:
        return found
    reason = _HERE / "no-daemon.txt"
    why = f": {reason.read_text().strip()}" if reason.exists() else ""
    raise Error(errno.ENOENT, f"{name} is neither in $PATH nor in the installed kvcache package{why}. Install a wheel that "
                "contains the daemon (pip install --config-settings daemon=yes ./client/python), or the package kvcache-daemon")


def _exec(name: str) -> NoReturn:
    try:
        os.execv(find(name), [name, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"{name}: {e.filename + ': ' if e.filename else ''}{e.strerror}")


def kvcache_daemon() -> NoReturn:
    _exec("kvcache-daemon")


def kvcachectl() -> NoReturn:
    _exec("kvcachectl")


def kvcache_bench() -> NoReturn:
    _exec("kvcache-bench")
