# SPDX-License-Identifier: Apache-2.0
"""A C compiler that runs another one, and that keeps the output for later commands with the same sources and flags.

    compile_once.py FOLDER COMPILER ARGUMENT...

Several tests build the package's library from the tree and from copies of it. ccache does not keep the output of a command that compiles
several files and links them. The key is the bytes of all C files, of all headers in their folders and in those of -I, and of the version
script, with the other arguments. Only names of folders may differ. A copy of the tree that lacks a file is therefore compiled."""

import hashlib
import os
import shutil
import subprocess
import sys


def headers(folder):
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".h")]


def key_of(arguments):
    key, folders = hashlib.sha256(), []

    def add(path):
        with open(path, "rb") as file:
            key.update(f"{os.path.basename(path)} {hashlib.sha256(file.read()).hexdigest()}\n".encode())

    rest = iter(arguments)
    for argument in rest:
        if argument == "-I":
            folders.append(next(rest))
        elif argument == "-o":
            next(rest)
        elif argument.startswith("-Wl,--version-script="):
            add(argument.partition("=")[2])
        elif argument.endswith(".c"):
            add(argument)
            folders.append(os.path.dirname(argument))
        else:
            key.update(argument.encode() + b"\n")
    for folder in dict.fromkeys(folders):
        for header in headers(folder):
            add(header)
    return key.hexdigest()


def main(kept, *command):
    arguments = command[1:]
    output = arguments[arguments.index("-o") + 1]
    found = os.path.join(kept, key_of(arguments))
    if not os.path.exists(found):
        status = subprocess.run(command).returncode
        if status != 0:
            return status
        shutil.copy(output, found)
    shutil.copy(found, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
