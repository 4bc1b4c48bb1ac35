#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a golden store: make.py NAME, with KVCACHE_BUILD a build of the version whose format it is to keep.

    NAME.tar.xz   the store's directory as that version's daemon left it: closed properly (`clean`), and the same killed
                  amid nothing (`killed`)
    NAME.json     what is in it, so that no later change to the tests' own code changes what is expected: namespaces
                  with their fingerprints, and of each key that was put what became of it, length and SHA-256

A golden store is made once, when the format changes, and never again: every later version opens it.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "daemon"))

import harness  # noqa: E402
import kvwire  # noqa: E402
from harness import key_of, value_of  # noqa: E402
from kvwire import Ack, Tier  # noqa: E402

SIZES = [1, 100, 4095, 4096, 4097, 9000]
SETTINGS = {"store.limit": "16MiB", "store.segment": "1MiB", "store.prewrite": "off", "memory.pool": "16MiB"}
NAMESPACES = {"plain": {}, "model/a": {"dtype": "fp8", "model": "golden"}, "purged": {"dtype": "bf16"}}


def fill(daemon):
    keys = {}
    with daemon.client(name="golden") as c:
        for name, fields in NAMESPACES.items():
            ns = c.namespace(name, kvwire.fingerprint(**fields) if fields else b"")
            pairs = [(key_of("golden", name, i), SIZES[i % len(SIZES)]) for i in range(12)]
            c.put(ns, [(k, value_of(k, n)) for k, n in pairs[:6]], ack=Ack.DURABLE)
            c.put_chain(ns, [(k, value_of(k, n)) for k, n in pairs[6:]], ack=Ack.WRITTEN)
            for k, n in pairs:
                keys[k.hex()] = {"namespace": name, "length": n, "there": True,
                                 "sha256": hashlib.sha256(value_of(k, n)).hexdigest()}
            dropped = pairs[3][0]
            c.evict(ns, [dropped], Tier.ALL)
            keys[dropped.hex()]["there"] = False
            if name == "purged":
                c.purge(ns)
                for k, _ in pairs:
                    keys[k.hex()]["there"] = False
                again = pairs[0][0]
                c.put(ns, [(again, value_of(again, pairs[0][1]))], ack=Ack.DURABLE)
                keys[again.hex()]["there"] = True
    return keys


def main():
    name = sys.argv[1]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        directory = pathlib.Path(directory)
        for kind in ("clean", "killed"):
            own = directory / f"daemon-{kind}"
            own.mkdir()
            daemon = harness.Daemon(own, settings=SETTINGS, store=directory / kind).start()
            keys = fill(daemon)
            if kind == "clean":
                daemon.stop()
            else:
                daemon.kill()
        subprocess.run(["tar", "--sparse", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-cJf",
                        HERE / f"{name}.tar.xz", "-C", directory, "clean", "killed"], check=True)
    manifest = {"namespaces": {n: kvwire.fingerprint(**f).decode() if f else "" for n, f in NAMESPACES.items()},
                "settings": SETTINGS, "keys": keys}
    (HERE / f"{name}.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
