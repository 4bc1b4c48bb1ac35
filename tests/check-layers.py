#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom, as a test: includes point right or down, never up or sideways.

    main                                    knows everybody; nobody knows it
      server -> status                      the composition root, and what it looks like from outside
        session -> dispatch -> admin, opening   one conversation
          chain, donation, disposal, client what one connection holds
            cache                           the two tiers as one
          config listener http notify       parts: strangers to each other
          tenant census transfers stats lookup tally
            memory  store -> io evict slab  memory and store, strangers, use slab, evict and io
              base  proto                   used by all, use nothing above

Of the folders of the daemon only the named headers are shown (store.h, io.h, slab.h, evict.h; all of memory/ and base/).
The store sees of proto/ the key and the two helpers, not the wire. The client library sees proto/ alone, kvcachectl
also the three headers of its offline commands; it and kvcache-bench share common/. Tests may include anything; nothing includes tests.

A file that stands nowhere in the table is an error: a new part takes its place here first. Usage:

    check-layers.py [ROOT]       exit 1 and a line for each wrong include
    check-layers.py --self-test  is every kind of wrong include found, and none of the right ones?
"""

import os
import re
import sys
import tempfile

HELPERS = {"proto/cleanup.h", "proto/checked.h", "proto/prefetch.h"}
PARTS = {"config", "listener", "http", "lookup", "census", "notify", "tally", "tenant", "transfers", "stats"}
LOW = {"memory", "store", "io", "evict", "slab"}
BOTTOM = {"base", "proto"}
CONNECTION = {"disposal", "client", "chain", "donation", "cache"} | PARTS | LOW | BOTTOM

# part: parts that it may include, besides itself
MAY = {
    "proto": set(),
    "base": set(),  # and the helpers of proto
    "slab": BOTTOM,
    "evict": BOTTOM,
    "io": BOTTOM,
    "store": {"io", "evict", "slab"} | BOTTOM,
    "memory": {"io", "evict", "slab"} | BOTTOM,
    "cache": LOW | BOTTOM,
    **{part: LOW | BOTTOM for part in PARTS},
    "client": {"chain", "donation", "cache"} | PARTS | LOW | BOTTOM,
    "chain": {"client", "cache"} | BOTTOM,
    "donation": {"client", "cache"} | PARTS | LOW | BOTTOM,
    "disposal": LOW | BOTTOM,
    "admin": {"client", "cache"} | PARTS | LOW | BOTTOM,  # messages of one kind each, for dispatch
    "opening": {"client", "cache"} | PARTS | LOW | BOTTOM,
    "dispatch": {"admin", "opening"} | CONNECTION,
    "session": {"dispatch"} | CONNECTION,
    "status": {"session", "dispatch"} | CONNECTION,
    "server": {"status", "session", "dispatch"} | CONNECTION,
    "main": {"server", "status", "session", "dispatch"} | CONNECTION,
    "api": set(),
    "lib": {"api", "proto"},
    "gpu": {"api", "proto", "lib"},
    "common": {"api", "proto"},
    "ctl": {"common", "api", "proto", "store", "io", "evict"},
    "bench": {"common", "api", "proto"},
    "example": {"api"},
    "tests": None,  # anything
}

# What a folder shows to the others. Folders that are not named show every header.
SHOWN = {
    "store": {"daemon/store/store.h"},
    "io": {"daemon/io/io.h"},
    "slab": {"daemon/slab/slab.h"},
    "evict": {"daemon/evict/evict.h"},
    "lib": set(),
    "gpu": {"client/gpu/gpu.h"},
}

# Exceptions to MAY: what of a part is seen by whom.
ONLY = {
    ("store", "proto"): HELPERS | {"proto/key.h"},
    ("base", "proto"): HELPERS,
}

GENERATED = {"build-config.h"}  # in the build folder
SOURCE = re.compile(r"\.(c|h|def)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def part_of(path):
    """The part that a file, named from the root, belongs to; None if the table does not know it."""
    steps = path.split("/")
    if steps[0] in ("proto", "tests"):
        return steps[0]
    if steps[0] == "client":
        if len(steps) > 2:
            if steps[1] == "examples":
                return "example"
            return steps[1] if steps[1] in ("lib", "common", "ctl", "bench", "gpu") else None
        return "api" if steps[1] in ("kvcache.h", "kvcache-admin.h") else "example" if SOURCE.search(steps[1]) else None
    if steps[0] == "daemon":
        if len(steps) > 2:
            return steps[1] if steps[1] in LOW | {"base"} else None
        name = SOURCE.sub("", steps[1])
        for known in MAY:  # "config" and its pieces: config-file.c, config-internal.h
            if name == known or name.startswith(known + "-"):
                return known if known not in LOW | BOTTOM | {"api", "lib", "common", "ctl", "bench", "gpu", "example", "tests"} else None
    return None


def sources(root):
    for top in ("proto", "daemon", "client", "tests"):
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "build")))
            for name in sorted(files):
                if SOURCE.search(name):
                    yield os.path.relpath(os.path.join(folder, name), root)


def resolve(root, path, name):
    """What an include of `name` in `path` means, named from the root: as the compiler looks for it."""
    tools = ("client/ctl", "client/bench", "client/common")  # of a tool, the top and the shared headers are seen
    own = [t for t in tools if path.startswith(t + "/")]
    own += ["client/common"] if own else []
    for folder in (os.path.dirname(path), "", "daemon", "proto", "client", *own, "tests/lib"):
        candidate = os.path.normpath(os.path.join(folder, name))
        if not candidate.startswith("..") and os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def check(root):
    wrong = []
    checked = 0
    for path in sources(root):
        part = part_of(path)
        if part is None:
            wrong.append(f"{path}: stands nowhere in the table of check-layers.py")
            continue
        if part == "tests":
            continue
        with open(os.path.join(root, path), encoding="utf-8") as f:
            text = f.read()
        for match in INCLUDE.finditer(text):
            form, name = match.groups()
            where = f"{path}:{text.count(chr(10), 0, match.start(2)) + 1}"
            target = resolve(root, path, name)
            if target is None:
                if form == '"' and name not in GENERATED:
                    wrong.append(f"{where}: \"{name}\" is not in the tree")
                continue
            checked += 1
            other = part_of(target)
            if other == part:
                continue
            if target.endswith(".c"):
                wrong.append(f"{where}: includes the source {target}")
            elif other is None:
                wrong.append(f"{where}: {target} stands nowhere in the table of check-layers.py")
            elif (part, other) in ONLY:
                if target not in ONLY[part, other]:
                    wrong.append(f"{where}: {part} may not see {target}, only {', '.join(sorted(ONLY[part, other]))}")
            elif other not in MAY[part]:
                wrong.append(f"{where}: {part} may not include {other} ({target})")
            elif other in SHOWN and target not in SHOWN[other]:
                wrong.append(f"{where}: {target} is private to {other}")
    return wrong, checked


def self_test():
    """Each case: a file, what it includes, and whether that is wrong."""
    tree = [
        "proto/key.h", "proto/wire.h", "proto/checked.h", "proto/cleanup.h",
        "daemon/base/list.h", "daemon/base/log.h", "daemon/slab/slab.h", "daemon/slab/bitmap.h", "daemon/evict/evict.h",
        "daemon/evict/policy.h", "daemon/io/io.h", "daemon/io/backend.h", "daemon/store/store.h", "daemon/store/format.h",
        "daemon/memory/pool.h", "daemon/cache.h", "daemon/config.h", "daemon/config-internal.h", "daemon/http.h",
        "daemon/stats.h", "daemon/stats.def", "daemon/tenant.h", "daemon/client.h", "daemon/opening.h", "daemon/chain.h", "daemon/dispatch.h", "daemon/admin.h", "daemon/session.h",
        "daemon/status.h", "daemon/server.h", "client/kvcache.h", "client/kvcache-admin.h", "client/lib/abi.h", "client/lib/handle.h", "client/common/human.h",
        "client/ctl/keys.h", "client/bench/trace.h",
        "tests/lib/harness.h",
    ]
    right = [
        ("daemon/main.c", "server.h"), ("daemon/server.c", "session.h"), ("daemon/server.c", "memory/pool.h"),
        ("daemon/server.c", "status.h"), ("daemon/status.c", "session.h"), ("daemon/session.c", "dispatch.h"),
        ("daemon/dispatch.c", "admin.h"), ("daemon/admin.h", "client.h"), ("daemon/dispatch.c", "opening.h"), ("daemon/client.c", "chain.h"), ("daemon/dispatch.c", "cache.h"),
        ("daemon/dispatch.c", "wire.h"), ("daemon/cache.c", "store/store.h"), ("daemon/cache.c", "memory/pool.h"),
        ("daemon/config-file.c", "config-internal.h"), ("daemon/stats.c", "stats.def"), ("daemon/stats.c", "wire.h"),
        ("daemon/http.c", "base/list.h"), ("daemon/store/store.c", "io/io.h"), ("daemon/store/store.c", "format.h"),
        ("daemon/store/store.c", "key.h"), ("daemon/store/store.c", "checked.h"), ("daemon/memory/pool.c", "slab/slab.h"),
        ("daemon/io/uring.c", "backend.h"), ("daemon/io/uring.c", "base/list.h"), ("daemon/base/log.c", "checked.h"),
        ("daemon/base/log.c", "build-config.h"), ("client/lib/handle.c", "wire.h"), ("client/lib/handle.c", "kvcache.h"), ("client/lib/abi.h", "kvcache-admin.h"),
        ("client/ctl/fsck.c", "human.h"), ("client/bench/kvbench/plan.c", "human.h"),
        ("client/common/human.c", "human.h"), ("client/bench/kvbench/plan.c", "trace.h"),
        ("client/ctl/fsck.c", "store/store.h"), ("client/ctl/fsck.c", "proto/key.h"),
        ("client/example.c", "kvcache.h"), ("tests/unit/test-io.c", "io/backend.h"), ("proto/wire.c", "key.h"),
    ]
    wrong = [
        ("daemon/server.c", "daemon/main.h"),         # is not there
        ("daemon/session.c", "server.h"),             # up
        ("daemon/session.c", "status.h"),
        ("daemon/dispatch.c", "session.h"),           # left
        ("daemon/cache.c", "dispatch.h"),
        ("daemon/cache.c", "config.h"),               # sideways
        ("daemon/http.c", "stats.h"),
        ("daemon/http.c", "cache.h"),
        ("daemon/tenant.c", "config.h"),
        ("daemon/stats.c", "server.h"),
        ("daemon/memory/pool.c", "store/store.h"),
        ("daemon/store/store.c", "memory/pool.h"),
        ("daemon/store/store.c", "wire.h"),           # the disk knows no wire
        ("daemon/store/store.c", "../../proto/wire.h"),
        ("daemon/store/store.c", "io/backend.h"),     # private
        ("daemon/store/store.c", "evict/policy.h"),
        ("daemon/cache.c", "store/format.h"),
        ("daemon/memory/pool.c", "slab/bitmap.h"),
        ("daemon/io/uring.c", "evict/evict.h"),
        ("daemon/io/uring.c", "store/store.h"),
        ("daemon/slab/slab.c", "io/io.h"),
        ("daemon/base/log.c", "config.h"),
        ("daemon/base/log.c", "wire.h"),
        ("daemon/base/log.c", "io/io.h"),
        ("proto/wire.c", "base/list.h"),
        ("proto/wire.c", "kvcache.h"),
        ("client/lib/handle.c", "base/list.h"),
        ("client/lib/handle.c", "store/store.h"),
        ("client/lib/handle.c", "common/human.h"),
        ("client/common/human.c", "ctl/keys.h"),
        ("client/common/human.c", "bench/trace.h"),
        ("client/ctl/fsck.c", "bench/trace.h"),
        ("client/bench/replay.c", "ctl/keys.h"),
        ("client/bench/replay.c", "store/store.h"),
        ("client/ctl/fsck.c", "store/format.h"),
        ("client/ctl/fsck.c", "memory/pool.h"),
        ("client/ctl/fsck.c", "lib/handle.h"),
        ("client/bench/kvbench/plan.c", "lib/handle.h"),
        ("client/lib/handle.c", "human.h"),
        ("client/example.c", "wire.h"),
        ("daemon/http.c", "harness.h"),               # of the tests
        ("daemon/http.c", "<stats.h>"),               # however it is written
        ("daemon/server.c", "listener.c"),            # a source
        ("daemon/newpart.c", "base/list.h"),          # not in the table
        ("daemon/newfolder/x.c", "base/list.h"),
        ("client/newfolder/x.c", "wire.h"),
    ]
    failures = 0

    for expected, cases in ((False, right), (True, wrong)):
        for path, name in cases:
            with tempfile.TemporaryDirectory() as root:
                for existing in tree + ["daemon/listener.c", path]:
                    os.makedirs(os.path.dirname(os.path.join(root, existing)), exist_ok=True)
                    open(os.path.join(root, existing), "w").close()
                with open(os.path.join(root, path), "w") as f:
                    f.write("/* comment */\n#include <stdio.h>\n # include " + (name if name[0] == "<" else f'"{name}"') + "\n")
                found, _ = check(root)
                if (len(found) > 0) != expected or any(not line.startswith(path) for line in found):
                    print(f"self-test: {path} with {name}: " + ("not noticed" if expected and not found else f"{found}"))
                    failures += 1
    print(f"self-test: {len(right)} right and {len(wrong)} wrong includes, {failures} judged wrongly")
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    wrong, checked = check(root)
    for line in wrong:
        print(line)
    print(f"{checked} includes between files of this tree, {len(wrong)} wrong")
    return 1 if wrong or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
