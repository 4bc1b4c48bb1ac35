# SPDX-License-Identifier: Apache-2.0
"""Loads libkvcache with ctypes, and declares its functions, structures and constants for the other modules of this package.

Structures are packed with `struct`. Structures of many keys lie in an `array` of 64-bit words, whose members are set and read for all keys at
once, so that no call loops over the keys of a request in Python. The layout is that of 64-bit little-endian Linux, the only platform that
libkvcache supports.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pathlib
import struct
import sys

if sys.byteorder != "little" or struct.calcsize("P") != 8 or not sys.platform.startswith("linux"):
    raise ImportError("kvcache runs on 64-bit little-endian Linux only")


def _load(kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Loads libkvcache from the file $KVCACHE_LIBRARY, else from the package, else the installed library. Raises ImportError after a failure."""
    asked = os.environ.get("KVCACHE_LIBRARY")
    bundled = pathlib.Path(__file__).with_name("lib") / "libkvcache.so.1"
    name = asked or (str(bundled) if bundled.exists() else "libkvcache.so.1")
    try:
        return kind(name)
    except OSError as e:
        remedy = ("Correct the variable KVCACHE_LIBRARY, which names this file, or unset it and install the package "
                  "(pip install ./client/python)" if asked else
                  "Install the package (pip install ./client/python), install libkvcache, or set KVCACHE_LIBRARY to its file")
        raise ImportError(f"libkvcache cannot be loaded: {e}. {remedy}") from e


lib = _load()
held = _load(ctypes.PyDLL)  # the same library, whose functions keep Python's global lock during the call

KEY_BYTES = 32

# enum kvcache_status
OK, MISS, EXISTS, BUSY, TOO_LARGE, NOT_DURABLE, FAILED, INVALID, STALE, DENIED, QUOTA = range(11)
MISMATCH, NO_NAMESPACE, VERSION, SHUTDOWN, NO_SPACE, NOT_EMPTY = range(11, 17)
LOST, PENDING, CANCELLED = 100, 101, 102

# enum kvcache_op
OP_PUT, OP_GET, OP_GET_INTO, OP_EXISTS, OP_MATCH, OP_TOUCH, OP_EVICT, OP_STAT, OP_PREFETCH, OP_GIVE_BACK, OP_HINT, OP_PIN, OP_UNPIN, OP_ADVISE = range(1, 15)

ACKS = {"accepted": 0, "written": 1, "durable": 2}
TIER_MEMORY, TIER_DISK, TIER_ALL, TIER_REMOTE = 1, 2, 3, 4
NOWAIT, REMOTE = 1 << 0, 1 << 4  # flags of struct kvcache_request: return BUSY instead of waiting for room; include keys of the shared tier

# enum kvcache_advice, by the names that advise() takes
ADVICE = {name: i for i, name in enumerate(("return", "final", "tool_call", "turn_end", "pin", "unpin", "demote", "prefetch", "share"), 1)}
ADVICE_SHIFT = 32  # bit at which an advice begins in the number of advice_number(); return_s is in the lower bits

PURGE = 1 << 0  # flag of kvcache_namespace_remove()
POPULATE, NO_LOOKUP, NO_SPIN = 1, 2, 4  # flags of struct kvcache_options

# struct kvcache_options, _namespace_options, _buffer_options, _request, _completion, _namespace_info and _info. Padding (x) stands for
# members that this package does not use, such as those for lent chunks, except the 4 bytes that align the words of BUFFER_OPTIONS.
OPTIONS = struct.Struct("<IIQQiiQ")
NAMESPACE_OPTIONS = struct.Struct("<IIQQQII")
BUFFER_OPTIONS = struct.Struct("<IIi4xQQQ")
REQUEST = struct.Struct("<IIIiIIiIQQQQQQiI8xii")
COMPLETION = struct.Struct("<QQiiQ")
NAMESPACE_INFO = struct.Struct("@256s64sII5Q4I")
INFO = struct.Struct("<IIQQQQ16sQQ16xQQ")

# In the following lists of members, "a | b" is one word: a in its lower and b in its upper half.
# struct kvcache_entry in words of 8 bytes: key (4), data, length, range_offset, range_length, pieces, n_pieces | cost_us.
ENTRY_WORDS = 10
# struct kvcache_result in words: status | tiers, length, chunk_length, data, lease, created_ms, crc32c | leases. The members after these
# are for lent chunks and for tools; the result_size of a request tells libkvcache that they are missing.
RESULT_WORDS = 7

# struct kvcache_transfer: size, path, layout, technology, result and reserved, of 4 bytes each; transfers, blocks, regions, bytes,
# device_bytes and duration_ns, of 8 bytes each.
TRANSFER = struct.Struct("@6I6Q")
PATHS = ("other", "host_to_disk", "disk_to_host", "host_to_device", "device_to_host", "device_to_device", "host_to_host",
         "disk_to_device", "device_to_disk")
LAYOUTS = ("other", "fully_contiguous", "layer_separate_block_first", "layer_separate_outer_first", "regions")
TECHNOLOGIES = ("other", "io_uring", "posix", "gds", "cuda_batch", "cuda_kernel", "cuda_copy", "memcpy", "composed")
RESULTS = ("ok", "io", "short", "checksum", "cancelled", "timeout")

_i, _z, _p, _s = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p


def _function(name: str, result: object, *arguments: object, library: ctypes.CDLL = lib) -> ctypes._NamedFuncPointer:
    function = library[name]
    function.restype = result  # type: ignore[assignment]
    function.argtypes = arguments  # type: ignore[assignment]
    return function


# A parameter of type _s takes the address of a bytes object, for memory that the library only reads. Memory that it writes is passed as _p.
version = _function("kvcache_version", _s)
status_text = _function("kvcache_status_name", _s, _i)
connect = _function("kvcache_connect", _i, _p, _s, _p, _z)
close = _function("kvcache_close", None, _p)
error = _function("kvcache_error", _s, _p)
get_info = _function("kvcache_get_info", _i, _p, _p)
namespace_open = _function("kvcache_namespace_open", _i, _p, _s, _p)
namespace_stat = _function("kvcache_namespace_stat_sized", _i, _p, _s, _s, _p, _z, _p)
namespace_remove = _function("kvcache_namespace_remove", _i, _p, _s, _s, ctypes.c_uint32, _p)
buffer_register = _function("kvcache_buffer_register", _i, _p, _s, _p, _p)
buffer_unregister = _function("kvcache_buffer_unregister", _i, _p, ctypes.c_uint32)
memory_settled = _function("kvcache_memory_settled", _i, _p, _p, _z)
count_declined = _function("kvcache_count_declined", _i, _p, ctypes.c_uint32, ctypes.c_uint64)
count_transfer = _function("kvcache_count_transfer", _i, _p, _s)
submit = _function("kvcache_submit", _i, _p, _s)
submit_and_wait = _function("kvcache_submit_and_wait", _i, _p, _s, _p)
descriptor = _function("kvcache_fd", _i, _p)
reap = _function("kvcache_reap_sized", _i, _p, _p, _z, _z, _i)
cancel = _function("kvcache_cancel", _i, _p, ctypes.c_uint64)
release = _function("kvcache_release", _i, _p, _p, _z)
flush = _function("kvcache_flush", _i, _p)
pool_of = _function("kvcache_pool_of", _i, _p, _p, _p, _p)
report = _function("kvcache_report", _i, _p, _i, _p)
REPORT_STATUS = 0
free = ctypes.CDLL(None).free
free.restype, free.argtypes = None, (_p,)


def address_of(data: bytes) -> int:
    """Returns the address of a bytes object's content, which is valid as long as the caller keeps the object."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def status_name(status: int) -> str:
    """Returns the name of a status, such as "miss" or "no such namespace"."""
    text: bytes = status_text(status)
    return text.decode()


def status_ok(status: int) -> bool:
    """Returns whether the chunk is stored: True for OK, EXISTS and NOT_DURABLE."""
    return status in (OK, EXISTS, NOT_DURABLE)


# Maps the errno of a request that libkvcache refused to the status of its keys; every other errno means LOST.
_STATUS_OF = {
    errno.ENOBUFS: BUSY, errno.ETIMEDOUT: BUSY, errno.ENOMEM: BUSY, errno.EBUSY: BUSY, errno.E2BIG: TOO_LARGE,
    errno.EACCES: DENIED, errno.EDQUOT: QUOTA, errno.EEXIST: MISMATCH, errno.ENOENT: NO_NAMESPACE,
    errno.ESHUTDOWN: SHUTDOWN, errno.ENOSPC: NO_SPACE, errno.ECANCELED: CANCELLED,
}


def status_of(number: int) -> int:
    return _STATUS_OF.get(number, LOST)


# The reasons of a completion that has an errno and no text, where the text of the errno would be wrong.
_REASON_OF = {
    errno.ETIMEDOUT: "the daemon did not answer in time", errno.ECONNRESET: "the connection to the daemon was lost",
    errno.EPIPE: "the connection to the daemon was lost", errno.ENOTCONN: "the connection to the daemon was lost",
    errno.EBADMSG: "the daemon sent a malformed message", errno.EINVAL: "invalid", errno.ESTALE: "stale",
    errno.EPROTONOSUPPORT: "no version in common", errno.ENOTEMPTY: "not empty", errno.ENOMEM: "out of memory",
}


def reason_of(number: int) -> str:
    """Returns the reason of a failed request as text: for an errno that stands for a status, the status's name."""
    if number in _REASON_OF:
        return _REASON_OF[number]
    return status_name(_STATUS_OF[number]) if number in _STATUS_OF else os.strerror(number)
