# SPDX-License-Identifier: Apache-2.0
"""Programs that use libkvcache for a test: each line of their input is a command, and each line of their output an answer."""

import os
import subprocess

import harness


class LineClient:
    """A process of `program`, which a subclass names."""

    def __init__(self, daemon, namespace="n", flags=0):
        environment = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
        self.process = harness.spawn([str(self.program), daemon.socket, namespace, str(flags)], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.process.stdin.close()
        errors = self.process.stderr.read()
        self.process.wait(60 * harness.slow())
        self.process.stdout.close()
        self.process.stderr.close()
        assert exc[0] or (self.process.returncode == 0 and not harness.SANITIZER_REPORT.search(errors)), errors

    def ask(self, *words):
        self.process.stdin.write(" ".join(w.hex() if isinstance(w, bytes) else str(w) for w in words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()
