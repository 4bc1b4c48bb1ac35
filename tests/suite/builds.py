# SPDX-License-Identifier: Apache-2.0
"""Builds trees with meson and ninja, one after the other, at idle priority while tests use the processors.

A build that a leg waits for is raised to normal priority. A failed build fails the leg that needs it and ends no other."""

import dataclasses
import os
import pathlib
import shutil
import threading
import time

import children


class Failed(Exception):
    """Reports a failed build; the text is the end of its output."""


@dataclasses.dataclass
class Build:
    name: str
    folder: pathlib.Path
    cc: str
    cflags: str
    options: tuple = ()
    targets: object = None  # None: all; a list; or a function that returns a list once the build is set up
    cpu_s: float = 0.0
    seconds: float = 0.0
    error: str = ""

    def __post_init__(self):
        self.ready = threading.Event()
        self.urgent = False
        self.child = None


def compiler(cc):
    """Returns the compiler's command, through ccache where it is installed."""
    return f"ccache {cc}" if shutil.which("ccache") and "ccache" not in cc else cc


class Builder:
    """Builds in the order given, on a thread of its own."""

    def __init__(self, root, builds):
        self.root, self.builds = root, builds
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def wait(self, build):
        """Waits for a build; raises Failed if it failed."""
        build.urgent = True
        if build.child:
            children.set_policy(build.child.pid, os.SCHED_OTHER)
        while not build.ready.wait(0.2):
            pass
        if build.error:
            raise Failed(build.error)
        return build

    def _work(self):
        for build in self.builds:
            try:
                self._make(build)
            except Exception as problem:    # the waiting leg reports it
                build.error = build.error or f"{type(problem).__name__}: {problem}"
            build.ready.set()

    def _make(self, build):
        began = time.monotonic()
        build.folder.mkdir(parents=True, exist_ok=True)
        log = build.folder / "build.log"
        log.write_text("")
        # Objects of the same source are the same in every folder, so ccache need not distinguish the folders.
        env = dict(os.environ, CC=compiler(build.cc), CFLAGS=build.cflags, CCACHE_NOHASHDIR="1")
        # Updates an existing folder with meson before its targets are listed, because a new test is one of them.
        steps = [["ninja", "-C", build.folder, "build.ninja"] if (build.folder / "build.ninja").exists()
                 else ["meson", "setup", *build.options, build.folder, self.root], None]
        for step in steps:
            if step is None:
                targets = build.targets() if callable(build.targets) else build.targets or []
                step = ["ninja", "-C", build.folder, *targets]
            build.child = children.Child(step, log, env=env, idle=not build.urgent)
            if build.urgent:    # a leg began to wait meanwhile
                children.set_policy(build.child.pid, os.SCHED_OTHER)
            status = build.child.wait(every_s=0.1)
            build.cpu_s += build.child.cpu_s
            if status != 0:
                lines = [line for line in log.read_text(errors="replace").splitlines() if not line.startswith("[")]
                build.error = "\n".join(lines[-60:]) or f"{step[0]} ended with {status}"
                break
        build.seconds = time.monotonic() - began
