# SPDX-License-Identifier: Apache-2.0
"""Child processes of the suite: each has a process group of its own, a limit, and its processor time is known at its end."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

_running = set()
_lock = threading.Lock()


class Child:
    """A process whose output goes to a file. It does not outlive the suite."""

    def __init__(self, command, output, *, env=None, cwd=None, idle=False):
        self.began = time.monotonic()
        self.cpu_s = 0.0
        self.status = None    # exit status; negative: the signal that ended it
        self._waiting = threading.Lock()
        with open(output, "ab") as out:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                            env=env, cwd=cwd, start_new_session=True)
        with _lock:
            _running.add(self)
        if idle:
            set_policy(self.process.pid, os.SCHED_IDLE)

    @property
    def pid(self):
        return self.process.pid

    @property
    def seconds(self):
        return time.monotonic() - self.began

    def poll(self):
        """Returns whether the process has ended."""
        with self._waiting:
            if self.status is not None:
                return True
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid == 0:
                return False
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = usage.ru_utime + usage.ru_stime
        with _lock:
            _running.discard(self)
        self._signal(signal.SIGKILL)    # ends the rest of its group
        return True

    def wait(self, limit_s=None, every_s=0.02, meanwhile=None):
        """Returns the exit status, or None if the process had to be ended at its limit."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while not self.poll():
            if meanwhile:
                meanwhile()
            if deadline is not None and time.monotonic() > deadline:
                self.end()
                return None
            time.sleep(every_s)
        return self.status

    def end(self, grace_s=5):
        """Ends the process and its group: SIGTERM, then SIGKILL."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._signal(signal.SIGKILL)
        while not self.poll():
            time.sleep(0.02)

    def _signal(self, number):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


def end_all():
    with _lock:
        children = list(_running)
    for child in children:
        child.end(grace_s=1)


def descendants(pid):
    """Returns the ids of a process and of all its descendants."""
    children = {}
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(status.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found = [pid]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def set_policy(pid, policy):
    """Gives a process and its descendants a scheduling policy; later children inherit it. Failures are ignored: it is an optimization."""
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(each, policy, os.sched_param(0))


def stacks(pid, limit_s=30):
    """Returns where the threads of a process and its descendants are: by gdb where it is installed, else the system calls."""
    lines = []
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            command = pathlib.Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(f"process {each}: {command[:200]}")
            if shutil.which("gdb") and "python" not in command.split(" ")[0]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    lines += subprocess.run(["gdb", "-p", str(each), "-batch", "-nx", "-ex", "thread apply all bt"], capture_output=True,
                                            text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=limit_s).stdout.splitlines()[-80:]
                continue
            for task in sorted(pathlib.Path(f"/proc/{each}/task").iterdir()):
                lines.append(f"    {(task / 'comm').read_text().strip()}: {(task / 'wchan').read_text().strip()}")
    return "\n".join(lines)
