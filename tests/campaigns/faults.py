# SPDX-License-Identifier: Apache-2.0
"""Faults of files under a daemon: the rules of tests/lib/faulty-files.c, in shared memory."""

import mmap
import struct

import harness

SHIM = harness.BUILD / "tests" / "campaigns" / "faulty-files.so"
WRITE_FAILS, WRITE_LIES, SYNC_FAILS, SYNC_IS_SLOW, WRITE_IS_SLOW, WRITE_KILLS, WRITE_THEN_KILLS = range(1, 8)
RULE = struct.Struct("<52sIiI")
RULES = 16


class Faults:
    def __init__(self, directory):
        self.path = directory / "faults"
        self.path.write_bytes(bytes(RULES * RULE.size))
        with open(self.path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), 0)

    def environment(self):
        """Returns the environment that subjects a daemon to the faults."""
        return {"LD_PRELOAD": str(SHIM), "FAULTY_FILES": str(self.path),
                "ASAN_OPTIONS": "exitcode=99:detect_leaks=1:verify_asan_link_order=0"}

    def set(self, rules):
        """Sets the rules: (end of the path, kind, number of times, ms)."""
        self.map[:] = bytes(len(self.map))
        for i, (suffix, kind, count, ms) in enumerate(rules):
            self.map[i * RULE.size:(i + 1) * RULE.size] = RULE.pack(suffix.encode(), kind, count, ms)
