#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which room includes which. daemon/README.md describes the rooms; their order is defined here.

Rooms are folders; the top of daemon/ is a room of its own. A room may include itself and the rooms that MAY lists for it,
and only their headers in SHOWN. MAY must be acyclic.

Within daemon/, proto/ and client/ the order is checked file by file, too. A module is a source with the header of its name; an
internal header belongs to the module it is named for (x-internal.h to x, internal.h to the one with the name of its room).
There must be no circle of modules; a circle is printed in its order.

Tests may include anything; nothing includes tests. A file in no room is an error: enter a new room here first. Usage:

    check-layers.py [ROOT]       exit 1 and a line for each wrong include, and for each circle
    check-layers.py --self-test  is every kind of wrong include found, and none of the right ones?
"""

import os
import re
import sys
import tempfile

BELOW_IO = {"base", "proto"}
BELOW_STORE = {"io", "slab", "evict", "fair"} | BELOW_IO
BELOW_CACHE = {"store", "remote"} | BELOW_STORE
BELOW_REQUEST = {"benchmark", "events", "lookup", "tenant", "cache"} | BELOW_CACHE
BELOW_SESSION = {"request"} | BELOW_REQUEST

# The rooms that each room may include, in addition to itself.
MAY = {
    "proto": set(),
    "base": {"proto"},
    "slab": BELOW_IO,
    "evict": BELOW_IO,
    "fair": BELOW_IO,
    "io": BELOW_IO,
    "store/volume": BELOW_STORE,
    "store/volume/recovery": {"store/volume"} | BELOW_STORE,  # volume/internal.h requires it
    "store": {"store/volume", "io", "evict", "fair"} | BELOW_IO,
    "remote": {"fair"} | BELOW_IO,
    "cache": BELOW_CACHE,
    "lookup": {"cache"} | BELOW_CACHE,
    "events": {"cache"} | BELOW_CACHE,
    "tenant": {"events", "lookup", "cache"} | BELOW_CACHE,
    "benchmark": {"store", "io"} | BELOW_IO,
    "learned": BELOW_CACHE | {"cache"},
    "keep": BELOW_CACHE | {"cache"},
    "config": BELOW_IO,
    "request": BELOW_REQUEST,
    "session": BELOW_SESSION,
    "report": {"session", "config", "learned", "keep"} | BELOW_SESSION,
    "daemon": {"report", "session", "config", "learned", "keep"} | BELOW_SESSION,  # main, server, notify
    "api": set(),  # the installed headers: client/*.h
    "lib": {"api", "proto"},
    "gpu": {"api", "proto", "lib"},
    "common": {"api", "proto"},  # code shared by the two tools
    "bench": {"common", "api", "proto", "evict", "remote"},  # simulate: the daemon's policies; remote: its engines
    "ctl": {"common", "api", "proto", "store", "io", "evict"},  # the last three serve its offline commands
    "relay": {"api", "proto"},  # client/events
    "examples": {"api"},
    "python": set(),  # loads the library, and is compiled against nothing
    "tests": None,  # anything
}

# Headers that a room shows to others. Rooms that are not listed show all.
SHOWN = {
    "store": {"daemon/store/store.h"},
    "io": {"daemon/io/io.h", "daemon/io/liveness.h"},
    "slab": {"daemon/slab/slab.h"},
    "evict": {"daemon/evict/evict.h", "daemon/evict/admission.h", "daemon/evict/announced.h"},
    "remote": {f"daemon/remote/{name}.h" for name in ("remote", "breaker", "backend", "completions", "object")},
    "lib": {"client/lib/parts.h", "client/lib/abi.h", "client/lib/layout.h"},  # to gpu
    "gpu": {"client/gpu/gpu.h"},
}

# Parts of proto: the daemon's lower rooms know keys and helpers, but not the wire.
HELPERS = {"proto/copy.h", "proto/cleanup.h", "proto/checked.h", "proto/spin.h", "proto/text.h", "proto/warm.h"}
OF_PROTO = {
    **{room: HELPERS for room in ("base", "slab", "evict", "fair")},
    "remote": HELPERS | {"proto/key.h"},
    "io": HELPERS | {"proto/transfer.h", "proto/transfer-counts.h"},  # counters of transfers
    **{room: HELPERS | {"proto/key.h"} for room in ("remote", "store", "store/volume", "store/volume/recovery")},
}

GENERATED = {"build-config.h", "copy-ptx.h"}  # in the build folder
SOURCE = re.compile(r"\.(c|h|def)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
WHOLE = ("daemon/", "proto/", "client/")  # where there is no circle of modules


def room_of(path):
    """Returns the room of a file, whose name begins at the root, or None if there is none."""
    folder = os.path.dirname(path)
    top, _, rest = folder.partition("/")
    if top in ("proto", "tests"):
        return top
    if top == "client":
        room = rest.split("/")[0] if rest else "api" if path.endswith(".h") else None
        return room if room in ("api", "lib", "common", "ctl", "bench", "gpu", "examples", "python") else "relay" if room == "events" else None
    if top == "daemon":
        return rest if rest in MAY else "daemon" if not rest and re.match(r"daemon/(main|server|notify)\b", path) else None
    return None


def module_of(path):
    folder, name = os.path.split(SOURCE.sub("", path))
    if name == "internal":
        name = os.path.basename(folder)
    return f"{folder}/{name.removesuffix('-internal')}"


def sources(root):
    for top in ("proto", "daemon", "client", "tests"):
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "build")))
            for name in sorted(files):
                if SOURCE.search(name):
                    yield os.path.relpath(os.path.join(folder, name), root)


def resolve(root, path, name):
    """Returns the file that an include of `name` in `path` refers to, relative to the root, with the compiler's search order."""
    tools = ("client/ctl", "client/bench", "client/common")  # a tool sees its own folder, the top and the shared headers
    own = [t for t in tools if path.startswith(t + "/")]
    own += ["client/common"] if own else []
    for folder in (os.path.dirname(path), "", "daemon", "proto", "client", *own, "tests/lib"):
        candidate = os.path.normpath(os.path.join(folder, name))
        if not candidate.startswith("..") and os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def circles(edges):
    """Returns a shortest circle through each node that is in one, each circle once, from {node: {node: why}}."""
    found = []
    for start in sorted(edges):
        before, queue = {}, [start]
        while queue and start not in before:
            here = queue.pop(0)
            for there in sorted(edges.get(here, {})):
                if there not in before:
                    before[there] = here
                    queue.append(there)
        if start in before:
            circle = [start]
            while circle[-1] != start or len(circle) == 1:
                circle.append(before[circle[-1]])
            circle.reverse()
            if not any(set(circle) == set(other) for other in found):
                found.append(circle)
    return found


def judge(path, room, target):
    """Returns the fault of an include of `target`, or None."""
    other = room_of(target)
    if other == room:
        return None
    if target.endswith(".c"):
        return f"includes the source {target}"
    if other is None:
        return f"{target} stands in no room of check-layers.py"
    if other == "proto" and room in OF_PROTO:
        return None if target in OF_PROTO[room] else f"{room} may not see {target}"
    if other not in MAY[room]:
        return f"{room} may not include {other} ({target})"
    if target.endswith("internal.h") and not other.startswith(("store/volume", room)):
        return f"{target} is internal to {other}"
    if other in SHOWN and target not in SHOWN[other]:
        return f"{target} is private to {other}"
    return None


def check(root):
    wrong, checked, edges = [], 0, {}
    for path in sources(root):
        room = room_of(path)
        if room is None:
            wrong.append(f"{path}: stands in no room of check-layers.py")
            continue
        if room == "tests":
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
            complaint = judge(path, room, target)
            if complaint:
                wrong.append(f"{where}: {complaint}")
            elif path.startswith(WHOLE) and target.startswith(WHOLE) and module_of(path) != module_of(target):
                edges.setdefault(module_of(path), {}).setdefault(module_of(target), path)
    wrong += [f"{circle[0]}: a circle of modules: " +
              " -> ".join(f"{b} (by {edges[a][b]})" if a else b for a, b in zip([None] + circle, circle))
              for circle in circles(edges)]
    return wrong, checked


def self_test():
    """Checks the cases: a file, an include, and whether that is wrong."""
    tree = [
        "proto/key.h", "proto/wire.h", "proto/checked.h", "daemon/base/list.h", "daemon/slab/slab.h",
        "daemon/slab/bitmap.h", "daemon/evict/evict.h", "daemon/evict/policy.h", "daemon/io/io.h", "daemon/io/backend.h",
        "daemon/io/liveness.h", "daemon/store/store.h", "daemon/store/internal.h", "daemon/store/volume/types.h",
        "daemon/store/volume/volume.h", "daemon/store/volume/internal.h", "daemon/store/volume/recovery/internal.h",
        "daemon/cache/cache.h", "daemon/cache/pool.h", "daemon/fair/turns.h", "daemon/remote/remote.h", "daemon/lookup/index.h", "daemon/tenant/quota.h",
        "daemon/config/config.h", "daemon/config/config.def", "daemon/config/internal.h", "daemon/request/request.h",
        "daemon/request/internal.h", "daemon/session/session.h", "daemon/report/status.h", "daemon/server.h",
        "client/kvcache.h", "client/lib/handle.h", "client/common/human.h", "client/ctl/keys.h",
        "client/bench/trace.h", "tests/lib/harness.h",
    ]
    right = [
        ("daemon/main.c", "server.h"), ("daemon/server.c", "session/session.h"), ("daemon/server.c", "cache/pool.h"),
        ("daemon/server-start.c", "report/status.h"), ("daemon/server.c", "io/liveness.h"),
        ("daemon/report/status.c", "session/session.h"), ("daemon/report/status.c", "config/config.h"),
        ("daemon/session/session.c", "request/request.h"), ("daemon/request/request.c", "request/internal.h"),
        ("daemon/request/batch.c", "lookup/index.h"), ("daemon/request/batch.c", "wire.h"),
        ("daemon/lookup/table.c", "cache/pool.h"), ("daemon/tenant/ids.c", "store/store.h"),
        ("daemon/config/yaml.c", "config/internal.h"), ("daemon/config/config.c", "config/config.def"),
        ("daemon/cache/get.c", "store/store.h"), ("daemon/cache/pool.c", "slab/slab.h"),
        ("daemon/store/store.c", "store/internal.h"), ("daemon/store/fan-out.c", "store/volume/volume.h"),
        ("daemon/store/store.h", "store/volume/types.h"), ("daemon/store/volume/put.c", "key.h"),
        ("daemon/store/volume/put.c", "slab/slab.h"),
        ("daemon/store/volume/recovery/scan.c", "store/volume/internal.h"),
        ("daemon/cache/get.c", "remote/remote.h"), ("daemon/server.c", "remote/remote.h"), ("daemon/remote/gets.c", "key.h"),
        ("daemon/io/uring.c", "io/backend.h"), ("daemon/io/uring.c", "base/list.h"), ("daemon/base/log.c", "checked.h"),
        ("daemon/store/volume/put.c", "fair/turns.h"), ("daemon/fair/turns.c", "base/list.h"), ("daemon/remote/gets.c", "fair/turns.h"),
        ("daemon/base/log.c", "build-config.h"), ("client/lib/handle.c", "wire.h"), ("client/lib/handle.c", "lib/handle.h"),
        ("client/ctl/fsck.c", "human.h"), ("client/bench/kvbench/plan.c", "human.h"), ("client/ctl/fsck.c", "store/store.h"),
        ("client/common/human.c", "human.h"), ("client/bench/kvbench/plan.c", "trace.h"),
        ("client/examples/blocking.c", "kvcache.h"), ("tests/unit/test-io.c", "io/backend.h"), ("proto/wire.c", "key.h"),
    ]
    wrong = [
        ("daemon/server.c", "daemon/main.h"),                    # is not there
        ("daemon/session/session.c", "server.h"),                # up
        ("daemon/session/session.c", "report/status.h"),
        ("daemon/session/session.c", "config/config.h"),
        ("daemon/request/request.c", "session/session.h"),
        ("daemon/request/request.c", "config/config.h"),
        ("daemon/cache/get.c", "request/request.h"),
        ("daemon/cache/get.c", "lookup/index.h"),
        ("daemon/lookup/index.c", "tenant/quota.h"),             # sideways
        ("daemon/tenant/quota.c", "config/config.h"),
        ("daemon/store/store.c", "cache/pool.h"),
        ("daemon/store/store.c", "wire.h"),                      # the disk knows no wire
        ("daemon/store/store.c", "../../proto/wire.h"),
        ("daemon/store/volume/put.c", "store/store.h"),          # up, within the store
        ("daemon/store/volume/put.c", "store/internal.h"),
        ("daemon/store/volume/put.c", "store/volume/recovery/internal.h"),
        ("daemon/store/store.c", "store/volume/recovery/internal.h"),
        ("daemon/store/store.c", "io/backend.h"),                # private
        ("daemon/store/store.c", "evict/policy.h"),
        ("daemon/cache/get.c", "store/internal.h"),
        ("daemon/session/session.c", "request/internal.h"),
        ("daemon/cache/get.c", "store/volume/types.h"),
        ("daemon/cache/pool.c", "slab/bitmap.h"),
        ("daemon/io/uring.c", "evict/evict.h"),
        ("daemon/io/uring.c", "fair/turns.h"),
        ("daemon/fair/turns.c", "cache/cache.h"),
        ("daemon/io/uring.c", "wire.h"),
        ("daemon/slab/slab.c", "io/io.h"),
        ("daemon/remote/gets.c", "io/io.h"),
        ("daemon/remote/gets.c", "wire.h"),
        ("daemon/store/store.c", "remote/remote.h"),
        ("daemon/base/log.c", "io/io.h"),
        ("daemon/base/log.c", "wire.h"),
        ("proto/wire.c", "base/list.h"),
        ("client/lib/handle.c", "base/list.h"),
        ("client/lib/handle.c", "common/human.h"),
        ("client/common/human.c", "ctl/keys.h"),
        ("client/common/human.c", "bench/trace.h"),
        ("client/bench/replay.c", "ctl/keys.h"),
        ("client/ctl/fsck.c", "bench/trace.h"),
        ("client/bench/replay.c", "store/store.h"),
        ("client/ctl/fsck.c", "store/volume/types.h"),
        ("client/ctl/fsck.c", "cache/pool.h"),
        ("client/bench/kvbench/plan.c", "lib/handle.h"),
        ("client/examples/blocking.c", "wire.h"),
        ("daemon/report/http.c", "harness.h"),                   # a header of the tests
        ("daemon/report/http.c", "<server.h>"),                  # in angle brackets, too
        ("daemon/server.c", "session/listener.c"),               # a source
        ("daemon/newpart.c", "base/list.h"),                     # in no room
        ("daemon/newroom/x.c", "base/list.h"),
        ("client/newroom/x.c", "wire.h"),
        ("client/example.c", "kvcache.h"),
    ]
    rings = [  # files and what they include; is there a circle?
        (False, {"daemon/io/io.h": "", "daemon/io/io.c": "io/worker.h", "daemon/io/worker.h": "", "daemon/io/worker.c": "io/worker.h"}),
        (True, {"daemon/io/io.h": "", "daemon/io/io.c": "io/worker.h", "daemon/io/worker.h": "io/io.h"}),
        (True, {"daemon/io/a.c": "io/b.h", "daemon/io/a.h": "", "daemon/io/b.c": "io/c.h", "daemon/io/b.h": "",
                "daemon/io/c.c": "io/a.h", "daemon/io/c.h": ""}),
        (True, {"daemon/io/internal.h": "io/io.h", "daemon/io/io.h": "", "daemon/io/io.c": "io/part.h", "daemon/io/part.h": "",
                "daemon/io/part.c": "io/internal.h"}),
        (False, {"daemon/io/internal.h": "io/io.h", "daemon/io/io.h": "", "daemon/io/io.c": "io/internal.h",
                 "daemon/io/part.c": "io/internal.h"}),
        (True, {"client/ctl/a.c": "b.h", "client/ctl/a.h": "", "client/ctl/b.c": "a.h", "client/ctl/b.h": ""}),
        (True, {"client/lib/a.h": "lib/b.h", "client/lib/b.c": "lib/a.h", "client/lib/b.h": ""}),
        (False, {"client/lib/a.h": "lib/b.h", "client/lib/a.c": "lib/b.h", "client/lib/b.h": "", "client/common/a.h": ""}),
    ]
    failures = 0

    def lay(root, path, name):
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), "w") as f:
            if name:
                f.write("/* comment */\n#include <stdio.h>\n # include " + (name if name[0] == "<" else f'"{name}"') + "\n")

    for expected, cases in ((False, right), (True, wrong)):
        for path, name in cases:
            with tempfile.TemporaryDirectory() as root:
                for existing in tree + ["daemon/session/listener.c"]:
                    lay(root, existing, "")
                lay(root, path, name)
                found, _ = check(root)
                if (len(found) > 0) != expected or any(not line.startswith(path) for line in found):
                    print(f"self-test: {path} with {name}: " + ("not noticed" if expected and not found else f"{found}"))
                    failures += 1
    for expected, files in rings:
        with tempfile.TemporaryDirectory() as root:
            for path, name in files.items():
                lay(root, path, name)
            found, _ = check(root)
            if (len(found) > 0) != expected:
                print(f"self-test: {files}: {found}")
                failures += 1
    if circles({room: {other: 1 for other in may or ()} for room, may in MAY.items()}):
        print("self-test: MAY has a circle")
        failures += 1
    print(f"self-test: {len(right)} right and {len(wrong)} wrong includes, {len(rings)} rings, {failures} judged wrongly")
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
