# SPDX-License-Identifier: Apache-2.0
"""The fuzzers as test programs: each reads its corpus, then tries inputs of its own for some seconds."""

import base64
import dataclasses
import pathlib

ARTIFACT_BYTES = 3000    # bytes of a failing input that are printed


def of_programs(all_programs, seconds, work):
    """Returns the fuzzers among a build's programs, to run for that long. `work` is an empty folder for what they find."""
    found = []
    for program in all_programs:
        if "fuzz" not in program.suites:
            continue
        folder = pathlib.Path(work) / program.name
        folder.mkdir(parents=True, exist_ok=True)
        corpus = program.command[-1]
        command = [program.command[0], f"-max_total_time={seconds}", "-entropic=0", "-timeout=20", "-rss_limit_mb=2048", "-verbosity=0",
                   f"-artifact_prefix={folder}.found-", str(folder), corpus]
        found.append(dataclasses.replace(program, command=command, limit_s=program.limit_s + 2 * seconds,
                                         on_failure=lambda folder=folder: inputs(folder)))
    return found


def inputs(folder):
    """Returns the inputs that a fuzzer fails on, in base64."""
    said = []
    for path in sorted(folder.parent.glob(folder.name + ".found-*")):
        data = path.read_bytes()
        said.append(f"{folder.name} fails on, in base64: {base64.b64encode(data[:ARTIFACT_BYTES]).decode()}" +
                    (f" and {len(data) - ARTIFACT_BYTES} bytes more" if len(data) > ARTIFACT_BYTES else ""))
    return "\n".join(said)
