# SPDX-License-Identifier: Apache-2.0
"""Runs the test programs of a build: what `meson test` runs, with processor times, measured limits and a record of each.

meson lists the programs with their arguments, environments and limits. A program runs in a process group of its own and passes
with exit status 0 or is skipped with 77. Long programs (priority 1) start first, so that none is left for the end."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading

import children
import results

MOST_AGAIN_S = 300    # wall time of a second try, unless the first one had more

@dataclasses.dataclass
class Program:
    name: str
    command: list
    env: dict
    suites: list
    limit_s: float
    cwd: object = None           # meson's: the build folder
    priority: int = 0
    on_failure: object = None    # () -> text: what to print besides the output

    def run(self, factor, *, env=None, times=1.0):
        """Runs the program once. KVCACHE_TEST_SLOW is the measured factor times `times`; so is its limit, within MOST_AGAIN_S."""
        environment = dict(os.environ, **{**self.env, **(env or {})})
        environment["KVCACHE_TEST_SLOW"] = str(factor * times)
        with tempfile.NamedTemporaryFile(prefix="kvcache-test-output-") as output:
            child = children.Child(self.command, output.name, env=environment, cwd=self.cwd)
            limit = self.limit_s * factor
            if times > 1:    # a second try that hangs must not cost half an hour
                limit = min(limit * times, max(limit, MOST_AGAIN_S))
            late = []

            def look():
                if child.seconds > limit - 1 and not late:
                    late.append(children.stacks(child.pid))

            status = child.wait(limit, meanwhile=look)
            text = pathlib.Path(output.name).read_text(errors="replace")
        if status is None:
            text += f"\nno end after {limit:.0f} s\n" + "".join(late)
        if status != 0 and status != 77 and self.on_failure:
            text += "\n" + self.on_failure()
        return results.of_program(self.name, status, text, seconds=child.seconds, cpu_s=child.cpu_s, final="tree" in self.suites)


def of_build(build):
    """Returns all programs of a build folder."""
    listed = json.loads(subprocess.check_output(["meson", "introspect", "--tests", build]))
    return [Program(test["name"], test["cmd"], test["env"], [suite.partition(":")[2] for suite in test["suite"]], test["timeout"],
                    test["workdir"] or build, test["priority"]) for test in listed]


def targets_of(build, programs):
    """Returns the ninja targets that these programs need."""
    files = {target["id"]: [os.path.relpath(name, build) for name in target["filename"]]
             for target in json.loads(subprocess.check_output(["meson", "introspect", "--targets", build]))}
    names = {program.name for program in programs}
    wanted = []
    for test in json.loads(subprocess.check_output(["meson", "introspect", "--tests", build])):
        if test["name"] in names:
            wanted += [name for target in test["depends"] for name in files[target]]
    return list(dict.fromkeys(wanted))


def has_threads(program):
    """Returns whether the program can begin a thread, by the symbols that it takes from the C library. The program must be built."""
    symbols = subprocess.run(["nm", "-D", "-u", program.command[0]], capture_output=True, text=True).stdout
    return bool(re.search(r"\b(pthread_create|thrd_create)\b", symbols))


def with_share_of_seeds(program, share):
    """Returns the program with that share of its campaign's runs."""
    command = list(program.command)
    for i, word in enumerate(command[:-1]):
        if word == "--count":
            command[i + 1] = str(max(int(int(command[i + 1]) * share), 1))
    return dataclasses.replace(program, command=command)


def run_all(programs, at_once, factor, done, env=None):
    """Runs programs, `at_once` at a time; done(result) is called as each ends, by one thread at a time."""
    waiting = sorted(programs, key=lambda p: -p.priority)
    lock = threading.Lock()
    problems = []

    def work():
        while True:
            with lock:
                if not waiting or problems:
                    return
                program = waiting.pop(0)
            try:
                result = program.run(factor, env=env)
                result.again = lambda times, program=program: program.run(factor, env=env, times=times)
                with lock:
                    done(result)
            except BaseException as problem:    # a fault of the suite itself: raised by the caller's thread
                problems.append(problem)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # with a timeout, so that Ctrl-C is noticed
            thread.join(0.2)
    if problems:
        raise problems[0]
