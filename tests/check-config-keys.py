#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every key of the configuration is read, and that every key named in a message exists: check-config-keys.py ROOT, or --self-test.

A row of daemon/config/config.def fails if only the code that parses and prints settings (daemon/config/) reads its member, because such a
setting does nothing. A text in daemon/ or client/ fails if it names a key that has no row, because its advice does not work.
"""

import pathlib
import re
import sys

ROW = re.compile(r"^ROW\(\w+, (\w+), (\w+), (\w+),", re.M)
TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# Texts with a dot that are not keys: a media type, files of cgroups, the beginning of several keys, and an entry of a list.
NO_KEYS = {"io.prometheus", "memory.limit_in_bytes", "memory.max", "limits.uid_", "tenants.default"}


def unread(rows, text):
    """Returns the keys whose `section.member` is in no expression of the text."""
    missing = []
    for section, key, member in rows:
        # Matches config->store.limit, c.store.limit and &config->io.workers, but not a struct of another name.
        if not re.search(rf"(->|\.)\s*{section}\s*\.\s*{member}\b(?!\s*=[^=])", text):
            missing.append(f"{section}.{key}")
    return missing


def unknown(keys, text):
    """Returns the names in texts of C code that look like keys and are none."""
    sections = "|".join(sorted({key.split(".")[0] for key in keys}))
    name = re.compile(rf"(?<![\w./-])(?:{sections})\.[a-z_]+(?![\w(/])")
    joined = re.sub(r'"\s*\n\s*"', "", re.sub(r"^#include.*$", "", text, flags=re.M))
    return sorted({one for part in TEXT.findall(joined) for one in name.findall(part)} - keys - NO_KEYS)


def strip_comments(text):
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def main():
    if sys.argv[1:] == ["--self-test"]:
        rows = [("store", "limit", "limit"), ("io", "hang", "hang_ms"), ("log", "level", "level")]
        assert unread(rows, "f(config->store.limit); x = c.io.hang_ms; log_set_level(c->log.level);") == []
        assert unread(rows, "f(config->store.limit); c->io.hang_ms = 3; level.log(c->log.levels);") == \
            ["io.hang", "log.level"]
        keys = {"listen.mode", "store.limit"}
        assert unknown(keys, '#include "store.h"\nf("set listen."\n  "group, or listen.mode");') == ["listen.group"]
        assert unknown(keys, 'f("see store.limit; restore.limt, a/store.c, store.get()"); store.limt = 1;') == []
        assert strip_comments("a /* c->store.limit\n */ b") == "a   b"
        return 0
    root = pathlib.Path(sys.argv[1])
    daemon = root / "daemon"
    rows = ROW.findall((daemon / "config/config.def").read_text())
    files = [p for p in sorted(daemon.rglob("*.[ch]")) if p.parent.name != "config"]
    missing = unread(rows, strip_comments("\n".join(p.read_text() for p in files)))
    for key in missing:
        print(f"{key} is in daemon/config/config.def, and nothing outside daemon/config/ reads it")
    keys = {f"{section}.{key}" for section, key, _ in rows + ROW.findall((daemon / "config/tenant.def").read_text())}
    wrong = [(path, key) for folder in (daemon, root / "client") for path in sorted(folder.rglob("*.[ch]"))
             for key in unknown(keys, strip_comments(path.read_text()))]
    for path, key in wrong:
        print(f"{path.relative_to(root)} names {key}, which is not a key of the configuration")
    print(f"{len(rows)} keys, {len(missing)} of them unread, in {len(files)} files; {len(wrong)} names of keys that do not exist")
    return 1 if missing or wrong or len(rows) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
