# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package. They report mistakes in calls, and failures of the few calls that return no statuses, such as
Client(required=True). The result of a request for a key is never an exception, but a status."""

from __future__ import annotations

import errno


class Error(OSError):
    """The base class of the package's exceptions. `errno` is the kind of the error, and `strerror` a sentence that explains it."""


class ArgumentError(Error, ValueError):
    """Reports a wrong call: a key that is not 32 bytes, a name with a NUL, a place outside its region."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EINVAL, why)


class ClosedError(Error):
    """Reports that the client was closed, or the leased chunks were released, before this call."""

    def __init__(self, why: str = "the client is closed") -> None:
        super().__init__(errno.EBADF, why)


class ForkedError(Error):
    """Reports that the client belongs to the parent process. A child must create a client of its own."""

    def __init__(self) -> None:
        super().__init__(errno.ECHILD, "the client belongs to the parent process; make another one after fork()")


class MismatchError(Error):
    """Reports that the namespace exists with another fingerprint; `strerror` names the field that differs."""


class RegionError(Error):
    """Reports that memory is unsuitable for registration, for example because it is not shared memory; `strerror` has the reason."""
