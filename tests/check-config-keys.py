#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every key of the configuration is read: check-config-keys.py ROOT, or --self-test.

A row of daemon/config/config.def whose member nothing but the code that parses and prints settings (daemon/config/) reads is
a setting that does nothing, and fails.
"""

import pathlib
import re
import sys

ROW = re.compile(r"^ROW\(\w+, (\w+), (\w+), (\w+),", re.M)


def unread(rows, text):
    """The keys whose `section.member` is in no expression of the text."""
    missing = []
    for section, key, member in rows:
        # config->store.limit, c.store.limit, &config->io.workers: but not a struct of another name.
        if not re.search(rf"(->|\.)\s*{section}\s*\.\s*{member}\b(?!\s*=[^=])", text):
            missing.append(f"{section}.{key}")
    return missing


def strip_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def main():
    if sys.argv[1:] == ["--self-test"]:
        rows = [("store", "limit", "limit"), ("io", "hang", "hang_ms"), ("log", "level", "level")]
        assert unread(rows, "f(config->store.limit); x = c.io.hang_ms; log_set_level(c->log.level);") == []
        assert unread(rows, "f(config->store.limit); c->io.hang_ms = 3; level.log(c->log.levels);") == \
            ["io.hang", "log.level"]
        assert strip_comments("a /* c->store.limit\n */ b") == "a   b"
        return 0
    daemon = pathlib.Path(sys.argv[1]) / "daemon"
    rows = ROW.findall((daemon / "config/config.def").read_text())
    files = [p for p in sorted(daemon.rglob("*.[ch]")) if p.parent.name != "config"]
    missing = unread(rows, strip_comments("\n".join(p.read_text() for p in files)))
    for key in missing:
        print(f"{key} is in daemon/config/config.def, and nothing outside daemon/config/ reads it")
    print(f"{len(rows)} keys, {len(missing)} of them unread, in {len(files)} files")
    return 1 if missing or len(rows) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
