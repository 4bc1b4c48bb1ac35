#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a text file as a C string: embed.py FROM TO NAME."""

import pathlib
import sys

source, target, name = sys.argv[1:]
lines = pathlib.Path(source).read_text().splitlines()
quoted = (line.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") for line in lines)
pathlib.Path(target).write_text(f"static const char {name}[] =\n" + "\n".join(f'        "{line}\\n"' for line in quoted) + ";\n")
