# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package. The fate of a key is never an exception, but a status."""

from __future__ import annotations

import errno


class Error(OSError):
    """The root: every exception that the package raises on its own account. `errno` and `strerror` say what and why."""


class ArgumentError(Error, ValueError):
    """Reports a wrong call: a key that is not 32 bytes, a name with a NUL, a place outside its region."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)


class ClosedError(Error):
    """The client was closed, or the leased chunks were released, before this call."""

    def __init__(self, why: str = "the client is closed") -> None:
        super().__init__(errno.EBADF, why)


class ForkedError(Error):
    """Reports that the client belongs to the parent process. A child must create a client of its own."""

    def __init__(self) -> None:
        super().__init__(errno.ECHILD, "the client belongs to the parent process; make another one after fork()")


class MismatchError(Error):
    """The namespace exists with another fingerprint; `strerror` names the field that differs."""


class RegionError(Error):
    """Memory cannot be registered: it is not shared memory, or not such as the daemon accepts."""
