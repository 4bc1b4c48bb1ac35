# SPDX-License-Identifier: Apache-2.0
"""Golden stores: this version opens stores of earlier versions and finds every chunk, byte for byte. A store of a future version is refused if
necessary, with a message that names the flag.

tests/golden/make.py made them; NAME.json describes the contents of NAME.tar.xz.
"""

import hashlib
import json
import struct
import subprocess

import pytest

import harness
import kvwire
from harness import SOURCE
from kvwire import Status

GOLDEN = sorted((SOURCE / "tests/golden").glob("*.json"))
PAGE, COPIES = 4096, 4
COMPAT, RO_COMPAT, INCOMPAT, VERSION = 16, 24, 32, 12  # places in a superblock


def unpack(manifest, directory, kind):
    subprocess.run(["tar", "-xJf", manifest.with_suffix(".tar.xz"), "-C", directory, "--no-same-owner", kind],
                   check=True, stdin=subprocess.DEVNULL)
    return directory / kind


def settings_of(manifest):
    return json.loads(manifest.read_text())["settings"]


def check(daemon, wanted):
    with daemon.client() as c:
        numbers = {}
        for name, fingerprint in wanted["namespaces"].items():
            numbers[name] = c.namespace(name, fingerprint.encode(), attach=True)
        for key, what in wanted["keys"].items():
            value = c.value(numbers[what["namespace"]], bytes.fromhex(key))
            if not what["there"]:
                assert value is None, f"{what['namespace']}: {key} was dropped and is back"
                continue
            assert value is not None, f"{what['namespace']}: {key} is lost"
            assert (len(value), hashlib.sha256(value).hexdigest()) == (what["length"], what["sha256"]), key
        for name, number in numbers.items():
            there = {k for k, what in wanted["keys"].items() if what["namespace"] == name and what["there"]}
            assert {e.key.hex() for e in c.list(number)} == there
        # The store accepts new chunks as well.
        key = harness.key_of("newer")
        result, = c.put(numbers["plain"], [(key, b"by this version")], ack=kvwire.Ack.WRITTEN)
        assert result.status == Status.OK
        assert c.value(numbers["plain"], key) == b"by this version"
        assert c.evict(numbers["plain"], [key]) == [Status.OK]


@pytest.mark.parametrize("kind", ["clean", "killed"])
@pytest.mark.parametrize("manifest", GOLDEN, ids=lambda m: m.stem)
def test_R16_an_old_store_opens_with_every_chunk_in_it(directory, make_daemon, manifest, kind):
    daemon = make_daemon(settings=settings_of(manifest), store=unpack(manifest, directory, kind)).start()
    wanted = json.loads(manifest.read_text())
    check(daemon, wanted)
    daemon.restart()
    check(daemon, wanted)


def change_superblocks(store, place, form, change):
    """Changes all copies of the superblock, with a corrected checksum."""
    path = store / "superblock"
    data = bytearray(path.read_bytes())
    for i in range(COPIES):
        page = bytearray(data[i * PAGE:(i + 1) * PAGE])
        struct.pack_into(form, page, place, change(struct.unpack_from(form, page, place)[0]))
        struct.pack_into("<I", page, 8, kvwire.crc32c(bytes(page[12:])))
        data[i * PAGE:(i + 1) * PAGE] = page
    path.write_bytes(data)


def refusal(daemon):
    daemon.spawn()
    assert daemon.wait_exit() != 0
    return daemon.log()


@pytest.mark.parametrize("place, name", [(INCOMPAT, "incompat"), (RO_COMPAT, "ro_compat")])
def test_R16_an_unknown_flag_is_refused_by_name_and_the_store_is_not_touched(directory, make_daemon, place, name):
    store = unpack(GOLDEN[0], directory, "clean")
    change_superblocks(store, place, "<Q", lambda flags: flags | 1 << 40)
    before = {p.name: p.read_bytes() for p in store.iterdir()}
    log = refusal(make_daemon(settings=settings_of(GOLDEN[0]), store=store))
    assert "a format feature that this kvcache-daemon does not know" in log
    assert f"{name} {1 << 40:#x}" in log and str(store) in log
    assert {p.name: p.read_bytes() for p in store.iterdir()} == before


def test_R16_an_unknown_compat_flag_is_ignored_and_kept(directory, make_daemon):
    store = unpack(GOLDEN[0], directory, "clean")
    change_superblocks(store, COMPAT, "<Q", lambda flags: flags | 1 << 40)
    daemon = make_daemon(settings=settings_of(GOLDEN[0]), store=store).start()
    check(daemon, json.loads(GOLDEN[0].read_text()))
    daemon.stop()
    flags, = struct.unpack_from("<Q", (store / "superblock").read_bytes(), COMPAT)
    assert flags >> 40 & 1


def test_R16_a_later_version_is_refused_by_number(directory, make_daemon):
    store = unpack(GOLDEN[0], directory, "clean")
    change_superblocks(store, VERSION, "<I", lambda version: version + 1)
    assert "has format version 2, but this kvcache-daemon knows only version 1" in refusal(
        make_daemon(settings=settings_of(GOLDEN[0]), store=store))


def test_a_damaged_table_page_costs_its_own_entries_and_is_counted(directory, make_daemon):
    store = unpack(GOLDEN[0], directory, "killed")
    table = bytearray((store / "table").read_bytes())
    table[200] ^= 1  # in the first page's first entry
    (store / "table").write_bytes(table)
    daemon = make_daemon(settings=settings_of(GOLDEN[0]), store=store).start()
    assert daemon.metric("kvcache_recovery_skipped_pages") == 1
    wanted = json.loads(GOLDEN[0].read_text())
    found = 0
    with daemon.client() as c:
        numbers = {n: c.namespace(n, f.encode(), attach=True) for n, f in wanted["namespaces"].items()}
        for key, what in wanted["keys"].items():
            value = c.value(numbers[what["namespace"]], bytes.fromhex(key))
            if value is not None:
                assert hashlib.sha256(value).hexdigest() == what["sha256"]
                assert what["namespace"] != "purged" or what["there"]
                found += 1
    assert 0 < found < len(wanted["keys"])
