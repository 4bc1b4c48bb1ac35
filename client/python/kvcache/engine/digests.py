# SPDX-License-Identifier: Apache-2.0
"""A cache of the digests of weight files, in the user's cache folder, so that an engine's start need not read unchanged files again (weights.py).

An entry is valid for one state of a file: device, inode, size, mtime and ctime. A program can restore a file's mtime but not its ctime.
A cache that another user owns or may write to is not used. A damaged cache is rebuilt.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import time

FORMAT = 1             # version of the cache's format
MOST_ENTRIES = 20_000  # most entries that are kept
MOST_BYTES = 8 << 20   # bytes of the largest cache that is read
RECENT_NS = 2_000_000_000  # least age of a file's last change for its digest to be cached: until then, a change may leave its times equal

State = tuple[int, int, int, int, int]
_KEY, _DIGEST = re.compile(r"(full|samples)(:-?\d{1,20}){5}"), re.compile(r"[0-9a-f]{64}")


def _folder() -> str:
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "kvcache")


class Digests:
    """The digests of files, by the files' states and the kind of digest ("full" or "samples"). save() writes new digests to the cache."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder or _folder()
        self._file = os.path.join(self._folder, "weights.json")
        self._known = self._read()
        self._used: dict[str, str] = {}
        self._new = False

    def get(self, state: State, how: str) -> str | None:
        key = _key(state, how)
        digest = self._known.get(key)
        if digest is not None:
            self._used[key] = digest
        return digest

    def put(self, state: State, how: str, digest: str) -> None:
        if state[4] < time.time_ns() - RECENT_NS:
            self._used[_key(state, how)] = digest
            self._new = True

    def save(self) -> None:
        """Writes the cache if there are new entries, and keeps the entries that were used last. Never raises OSError: without the cache, the next
        start reads the files again."""
        if not self._new:
            return
        entries = {k: d for k, d in self._read().items() if k not in self._used}
        entries.update(self._used)
        kept = dict(list(entries.items())[-MOST_ENTRIES:])
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            if not _is_own(os.stat(self._folder)):
                return
            fd, name = tempfile.mkstemp(prefix="weights-", dir=self._folder)  # mode 0600
            try:
                with os.fdopen(fd, "w", encoding="ascii") as f:
                    json.dump({"format": FORMAT, "files": kept}, f)
                os.replace(name, self._file)
            except BaseException:
                os.unlink(name)
                raise
            self._new = False
        except OSError:
            pass

    def _read(self) -> dict[str, str]:
        try:
            if not _is_own(os.stat(self._folder)):
                return {}
            fd = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as f:
                st = os.fstat(fd)
                if not stat.S_ISREG(st.st_mode) or not _is_own(st) or st.st_size > MOST_BYTES:
                    return {}
                content = json.loads(f.read(MOST_BYTES))
            if content["format"] != FORMAT:
                return {}
            return {k: d for k, d in content["files"].items() if _KEY.fullmatch(k) and _DIGEST.fullmatch(d)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}


def _is_own(st: os.stat_result) -> bool:
    """Returns whether this user owns the file or folder, and no other user may write to it."""
    return st.st_uid == os.geteuid() and not st.st_mode & 0o022


def _key(state: State, how: str) -> str:
    return ":".join([how, *map(str, state)])
