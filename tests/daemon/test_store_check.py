# SPDX-License-Identifier: Apache-2.0
"""`kvcachectl store check` reports, before an upgrade or downgrade, what this version would do with a store, and the daemon does that."""

import json
import os
import re
import struct
import subprocess

import pytest

import harness
import kvwire
from harness import SOURCE, ctl
from test_golden import COMPAT, GOLDEN, INCOMPAT, PAGE, RO_COMPAT, VERSION, change_superblocks, refusal, settings_of, unpack

OPENS, REFUSED, USAGE, NO_DAEMON, BAD_INPUT = 0, 1, 2, 3, 5
BUILD_VERSION = re.search(r"version : '([^']+)'", (SOURCE / "meson.build").read_text())[1]


@pytest.fixture
def store(directory):
    return unpack(GOLDEN[0], directory, "clean")


def contents(store):
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in store.iterdir()}


def checked(*arguments, check, **how):
    return json.loads(ctl("store", "check", "--json", *arguments, check=check, **how).stdout)


@pytest.mark.parametrize("kind", ["clean", "killed"])
@pytest.mark.parametrize("manifest", GOLDEN, ids=lambda m: m.stem)
def test_check_reports_that_an_old_store_opens_and_keeps_its_format(directory, make_daemon, manifest, kind):
    store = unpack(manifest, directory, kind)
    before = contents(store)
    text = ctl("store", "check", store, check=OPENS).stdout
    assert f"{store}: format version 1, features: none\n" in text
    assert f"version {BUILD_VERSION} opens it and keeps its format\n" in text
    assert "another version opens it as it is now if it knows format version 1\n" in text
    answer = checked(store, check=OPENS)
    assert answer["version"] == BUILD_VERSION and answer["format_version"] == 1 and answer["known_flags"]["incompat"] == "0x1"
    assert answer["volumes"] == [{"volume": str(store), "format_version": 1, "features": "", "opens": True,
                                  "flags": {"compat": "0", "ro_compat": "0", "incompat": "0"}}]
    assert contents(store) == before, "it changed the store"
    # The answer agrees with the daemon.
    daemon = make_daemon(settings=settings_of(manifest), store=store).start()
    daemon.stop()
    assert checked(store, check=OPENS) == answer


@pytest.mark.parametrize("place, form, change, features, word", [
    (INCOMPAT, "<Q", lambda f: f | 1 << 40, "incompat 0x10000000000", "incompat 0x10000000000"),
    (RO_COMPAT, "<Q", lambda f: f | 4, "ro_compat 0x4", "ro_compat 0x4"),
    (VERSION, "<I", lambda v: v + 1, "none", "format version 2, but this kvcache-daemon knows only version 1; start the kvcache-daemon that wrote it"),
    (VERSION, "<I", lambda v: 0, "none", "format version 0, but this kvcache-daemon knows only version 1; start the kvcache-daemon that wrote it"),
    (VERSION, "<I", lambda v: 2**32 - 1, "none", "format version 4294967295"),
    (88, "<H", lambda v: 40000, "none", "damaged"),
])
def test_check_reports_stores_that_the_daemon_would_refuse(store, make_daemon, place, form, change, features, word):
    change_superblocks(store, place, form, change)
    before = contents(store)
    text = ctl("store", "check", store, check=REFUSED).stdout
    assert f"features: {features}\n" in text and word in text
    assert f"version {BUILD_VERSION} refuses it, and does not change it: " in text and "another version opens" not in text
    volume, = checked(store, check=REFUSED)["volumes"]
    assert not volume["opens"] and word in volume["reason"]
    # The daemon refuses it in the same words.
    assert volume["reason"] in refusal(make_daemon(settings=settings_of(GOLDEN[0]), store=store))
    assert contents(store) == before


def test_all_64_bits_of_the_flags_are_shown(store):
    for place in (COMPAT, RO_COMPAT, INCOMPAT):
        change_superblocks(store, place, "<Q", lambda _: 2**64 - 1)
    volume, = checked(store, check=REFUSED)["volumes"]
    assert volume["flags"] == dict.fromkeys(("compat", "ro_compat", "incompat"), "0xffffffffffffffff")
    assert volume["features"] == "void-pages, incompat 0xfffffffffffffffe, ro_compat 0xffffffffffffffff"


def test_an_unknown_compat_flag_is_no_obstacle(store):
    change_superblocks(store, COMPAT, "<Q", lambda flags: flags | 1 << 40)
    assert "features: none" in ctl("store", "check", store, check=OPENS).stdout
    assert checked(store, check=OPENS)["volumes"][0]["flags"]["compat"] == "0x10000000000"


def test_void_pages_keep_a_version_off_that_does_not_know_them_until_the_next_startup(store, make_daemon):
    change_superblocks(store, INCOMPAT, "<Q", lambda flags: flags | 1)
    change_superblocks(store, 132, "<I", lambda _: 0)  # void_position, void_pages
    change_superblocks(store, 136, "<I", lambda _: 1)
    text = ctl("store", "check", store, check=OPENS).stdout
    assert "features: void-pages\n" in text and "knows format version 1 and void-pages\n" in text
    assert "the next startup of the daemon clears void-pages" in text
    make_daemon(settings=settings_of(GOLDEN[0]), store=store).start().stop()
    assert "features: none" in ctl("store", "check", store, check=OPENS).stdout


def test_the_volumes_of_a_running_daemon(make_daemon, directory):
    stores = [directory / "one", directory / "two"]
    daemon = make_daemon(settings={"store.limit": "64MiB"}, store=",".join(map(str, stores))).start()
    assert [v["volume"] for v in checked(daemon=daemon, check=OPENS)["volumes"]] == [str(s) for s in stores]
    text = ctl("store", "check", daemon=daemon, check=OPENS).stdout
    assert all(f"{s}: format version 1" in text for s in stores)
    # If one of several stores would be refused, the exit status is 1, and the others are checked nevertheless.
    daemon.stop()
    change_superblocks(stores[0], VERSION, "<I", lambda v: v + 1)
    assert [v["opens"] for v in checked(*stores, check=REFUSED)["volumes"]] == [False, True]


def test_without_a_daemon_nothing_is_called_good(directory):
    result = ctl("store", "check", check=NO_DAEMON, env={"KVCACHE_SOCKET": str(directory / "none")})
    assert result.stdout == ""


def test_directories_without_a_store_are_reported(store, directory):
    empty, file, foreign, fifo, link = (directory / n for n in ("empty", "file", "foreign", "fifo", "link"))
    for folder in (empty, foreign, fifo, link):
        folder.mkdir()
    file.write_text("x")
    (foreign / "superblock").write_bytes(os.urandom(4 * PAGE))
    os.mkfifo(fifo / "superblock")
    (link / "superblock").symlink_to(store / "superblock")
    short = directory / "short"
    short.mkdir()
    (short / "superblock").write_bytes((store / "superblock").read_bytes()[:60])
    cases = [(directory / "missing", "No such file"), (empty, "not a kvcache store"), (file, "Not a directory"),
             (foreign, "none of its four copies is intact"), (fifo, "not a regular file"), (link, "superblock: cannot read"),
             (short, "none of its four copies is intact"), ("", "No such file"), ("x" * 5000, "the path is too long")]
    for path, word in cases:
        result = ctl("store", "check", path, check=BAD_INPUT)
        assert word in result.stderr and result.stdout == "", result.stderr
    assert list(empty.iterdir()) == []
    result = ctl("store", "check", empty, store, check=BAD_INPUT)
    assert f"{store}: format version 1" in result.stdout
    # One whole copy is enough, for the daemon as well.
    data = bytearray((store / "superblock").read_bytes())
    for copy in range(3):
        data[copy * PAGE + 60] ^= 1
    (store / "superblock").write_bytes(data)
    assert checked(store, check=OPENS)["volumes"][0]["opens"]


def test_the_copy_of_the_highest_generation_counts(store):
    """Half of an upgrade: two copies are of the newer format already."""
    path = store / "superblock"
    data = bytearray(path.read_bytes())
    for copy in range(2):
        page = bytearray(data[copy * PAGE:(copy + 1) * PAGE])
        struct.pack_into("<I", page, VERSION, 2)
        struct.pack_into("<Q", page, 56, struct.unpack_from("<Q", page, 56)[0] + 1)
        struct.pack_into("<I", page, 8, kvwire.crc32c(bytes(page[12:])))
        data[copy * PAGE:(copy + 1) * PAGE] = page
    path.write_bytes(data)
    assert not checked(store, check=REFUSED)["volumes"][0]["opens"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
def test_check_reports_missing_permission(store, directory):
    os.chmod(directory, 0o755)
    os.chmod(store, 0o700)
    result = subprocess.run([harness.CTL, "store", "check", store], capture_output=True, text=True,
                            preexec_fn=harness.become_stranger, timeout=60 * harness.slow())
    assert result.returncode == BAD_INPUT and "only root and the daemon's user may read it" in result.stderr, result.stderr


def test_wrong_usage():
    assert "needs an action" in ctl("store", check=USAGE).stderr
    assert "chekc" in ctl("store", "chekc", check=USAGE).stderr
