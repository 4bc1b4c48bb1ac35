# SPDX-License-Identifier: Apache-2.0
"""What is raised. What becomes of a key is no exception: it is a status, a value."""

from __future__ import annotations

import errno


class Error(OSError):
    """The root: every exception that the package raises on its own account. `errno` and `strerror` say what and why."""


class ArgumentError(Error, ValueError):
    """A call was made wrongly: a key that is not 32 bytes, a name with a NUL, a place outside of its region."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)


class ClosedError(Error):
    """The client was closed, or the leased chunks were released, before this call."""

    def __init__(self, why: str = "the client is closed") -> None:
        super().__init__(errno.EBADF, why)


class ForkedError(Error):
    """The client belongs to the parent process: a child makes one of its own."""

    def __init__(self) -> None:
        super().__init__(errno.ECHILD, "the client belongs to the parent process; make another one after fork()")


class MismatchError(Error):
    """The namespace exists with another fingerprint; `strerror` names the field that differs."""


class RegionError(Error):
    """Memory cannot be registered: it is not shared memory, or not such as the daemon accepts."""
