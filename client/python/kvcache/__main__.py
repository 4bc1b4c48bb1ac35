# SPDX-License-Identifier: Apache-2.0
"""Implements the command `python -m kvcache serve`, which starts a daemon for the engines of this user (serve.py)."""

from __future__ import annotations

import argparse
import sys

from . import __version__, serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kvcache", description="kvcache-daemon from Python.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve.add_arguments(commands.add_parser("serve", help="start a daemon for the engines of this user, unless one serves already"))
    return serve.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
