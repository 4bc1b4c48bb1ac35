# SPDX-License-Identifier: Apache-2.0
"""Starts the processes of the tests, and ends those that a test leaves behind.

spawn() is the only way in which a test starts a process that runs beside it. The fixture `end_processes` of conftest.py kills the
processes of a test when the test ends, whether it has passed or failed. If pytest itself is killed, the kernel kills them.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading

_libc = ctypes.CDLL(None, use_errno=True)
_started = []


def die_with_parent():
    """Makes the kernel kill this process when the thread that started it ends. Called in the child between fork and exec."""
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)


def _dying_with_parent(command, how):
    """Returns the command that has the kernel kill `command` when this thread ends, or None if only the child can ask for that before exec."""
    setpriv = shutil.which("setpriv")
    # A preloaded library would count the calls of setpriv as those of the command.
    is_preloaded = "LD_PRELOAD" in (os.environ if how.get("env") is None else how["env"])
    if sys.version_info < (3, 11) or not setpriv or is_preloaded or how.get("shell") or isinstance(command, (str, bytes)):
        return None
    return [setpriv, "--pdeathsig", "KILL", *command]


def spawn(command, *, preexec_fn=None, start_new_session=False, **how):
    """Starts a process, in a process group of its own, and registers it for end_since(). `how` is as subprocess.Popen() takes it.

    With a function to call before exec, Python forks, which copies the page tables of pytest and costs up to 100 ms. Without one, vfork costs
    2 ms."""
    # The kernel would kill a process that another thread started as soon as that thread ends.
    dies_with_thread = threading.current_thread() is threading.main_thread()
    dying = _dying_with_parent(command, how) if dies_with_thread and not preexec_fn else None

    def before_exec():
        if not start_new_session:  # a session begins with a group of its own
            os.setpgid(0, 0)
        if preexec_fn:
            preexec_fn()
        if dies_with_thread:
            die_with_parent()  # last, because a change of the user takes it back

    if dying:
        process = subprocess.Popen(dying, start_new_session=start_new_session, process_group=None if start_new_session else 0, **how)
    else:
        process = subprocess.Popen(command, preexec_fn=before_exec, start_new_session=start_new_session, **how)
    _started.append(process)
    return process


def count():
    """Returns the number of processes started so far, for end_since()."""
    return len(_started)


def end_since(number):
    """Kills the processes started after count() returned `number`, with their groups, and reaps them."""
    started = _started[number:]
    del _started[number:]
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in started:
        process.wait(60)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with contextlib.suppress(OSError):  # bytes that nothing reads any longer
                    pipe.close()
