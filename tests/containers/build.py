#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a Containerfile without a builder: each stage is a folder that begins as a copy of BASE, RUN is a shell in a chroot there, COPY is cp.

    build.py CONTAINERFILE CONTEXT BASE FOLDER

Makes FOLDER/root, which is what the last stage leaves, and FOLDER/image.json: user, environment, entry point, ports. It knows the
instructions that the Containerfile has, and refuses others. Needs root. Exit 1: an instruction failed; its output is shown.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys


def instructions(text):
    """Yields (word, rest) of each line. A backslash at the end joins lines, and comments are skipped."""
    joined = ""
    for line in text.splitlines():
        if not joined and (not line.strip() or line.lstrip().startswith("#")):
            continue
        joined += line.rstrip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        word, _, rest = joined.strip().partition(" ")
        yield word, rest.strip()
        joined = ""


def run(command, **how):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace", **how)
    if result.returncode != 0:
        sys.exit(f"{result.stdout[-6000:]}\nbuild.py: {command[-1]}: exit status {result.returncode}")


def run_in(root, shell, environment):
    """Runs a shell in its own namespaces, so that its mounts and processes end with it."""
    run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
         'mount --make-rprivate / && mount -t proc proc "$0/proc" && exec chroot "$0" /bin/sh -c "$1"', str(root), shell],
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **environment})


def copy(sources, source_root, to, root):
    """Copies as COPY does: a folder's content, or several files by name; root owns everything."""
    target = root / to.lstrip("/")
    for source in sources:
        path = source_root / source.lstrip("/")
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            run(["cp", "-a", "--no-preserve=ownership", f"{path}/.", str(target)])
        else:
            into = target / path.name if to.endswith("/") or len(sources) > 1 else target
            into.parent.mkdir(parents=True, exist_ok=True)
            run(["cp", "-a", "--no-preserve=ownership", str(path), str(into)])


def main():
    containerfile, context, base, folder = map(pathlib.Path, sys.argv[1:5])
    stages, root, image = {}, None, {}
    for number, (word, rest) in enumerate(instructions(containerfile.read_text())):
        print(f"{word} {rest[:100]}", flush=True)
        if word == "FROM":
            name = rest.split(" AS ")[1] if " AS " in rest else "root"
            if rest.split()[0] != "debian:bookworm-slim":
                sys.exit(f"build.py: FROM {rest}: the tests have debian:bookworm-slim alone")
            root = folder / name
            shutil.rmtree(root, ignore_errors=True)
            run(["cp", "-a", "--reflink=auto", str(base), str(root)])
            stages[name], image = root, {"environment": {}}
        elif word == "RUN":
            run_in(root, rest, image["environment"])
        elif word == "COPY":
            *sources, to = rest.split()
            origin = context
            if sources[0].startswith("--from="):
                origin = stages[sources.pop(0).split("=")[1]]
            copy(sources, origin, to, root)
        elif word == "ENV":
            key, _, value = rest.partition("=")
            image["environment"][key] = value
        elif word in ("USER", "EXPOSE"):
            image[word.lower()] = rest
        elif word == "ENTRYPOINT":
            image["entrypoint"] = json.loads(rest)
        else:
            sys.exit(f"build.py: {word} is not known here")
    if root != folder / "root":
        sys.exit("build.py: the last stage has a name")
    (folder / "image.json").write_text(json.dumps(image, indent=1))
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
