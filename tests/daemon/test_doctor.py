# SPDX-License-Identifier: Apache-2.0
"""`kvcachectl doctor` and `kvcachectl report` at a daemon: every member of the status that they read exists."""

import io
import json
import os
import subprocess
import tarfile

import pytest

from harness import CTL, ctl
from test_gds import STRANGER, needs_users

CHECKS = {"version", "ready", "health", "reload", "io_uring", "registered memory", "volume", "errors", "files", "room", "O_DIRECT", "limits", "socket",
          "file system", "space", "configuration", "locked memory", "memory", "cgroup", "clock"}
# These checks depend on the machine that runs the tests, and not on the daemon.
MACHINE = {"clock", "file system", "space", "cgroup", "memory", "locked memory", "io_uring", "registered memory", "O_DIRECT"}


def diagnose(daemon):
    return json.loads(ctl("--json", "doctor", daemon=daemon, check=None).stdout)["checks"]


@pytest.mark.smoke
def test_a_healthy_daemon_passes_each_check(make_daemon):
    daemon = make_daemon().start()
    checks = diagnose(daemon)
    # A machine without io_uring has no registered memory.
    assert {c["name"] for c in checks} | {"registered memory"} == CHECKS
    for check in checks:
        assert check["name"] in MACHINE or check["level"] == "ok", check
        assert (check["remedy"] == "") == (check["level"] == "ok"), check
    assert "mode 0660" in next(c["found"] for c in checks if c["name"] == "socket")


def test_a_suspended_volume_is_found(make_daemon):
    daemon = make_daemon().start()
    ctl("device", "suspend", "0", daemon=daemon, check=0)
    found = [c for c in diagnose(daemon) if c["name"] == "volume"]
    assert [c["level"] for c in found] == ["warning"] and "suspended" in found[0]["found"]


def test_a_change_that_waits_for_a_restart_is_found_by_its_key(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("io:\n  depth: 32\n")
    daemon = make_daemon(config=path).start()
    path.write_text("io:\n  depth: 7\n")
    ctl("reload", daemon=daemon, check=0)
    found = [c for c in diagnose(daemon) if c["name"] == "reload"]
    assert [c["level"] for c in found] == ["warning"] and found[0]["found"].endswith("waits for a restart: io.depth")
    daemon.restart()
    assert [c["level"] for c in diagnose(daemon) if c["name"] == "reload"] == ["ok"]


def test_a_report_has_all_parts_and_no_names(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("tenants:\n  - name: verysecrettenant\n    users: [4711]\n    pool: 16MiB\n")
    daemon = make_daemon(config=path, settings={"memory.pool": "64MiB"}).start()
    with daemon.client() as c:
        c.namespace("verysecretname", chunk_bytes=4096)
    # Changes that wait for a restart, of which the daemon tells an admin the old and the new value.
    path.write_text("tenants:\n  - name: verysecrettenant\n    users: [4712]\n    pool: 16MiB\n"
                    "remote:\n  path: /verysecretpath\naccess:\n  admin_users: [4713]\n")
    ctl("reload", daemon=daemon, check=0)
    pending = "\n".join(daemon.status()["reload_pending"])
    assert all(part in pending for part in ("tenant verysecrettenant: users: [4711] becomes [4712]", "/verysecretpath", "4713")), pending
    done = subprocess.run([CTL, "--socket", daemon.socket, "report", "-o", "-"], capture_output=True, check=True)
    assert b"verysecret" not in done.stdout and done.stderr == b""
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        names = archive.getnames()
        texts = {name: archive.extractfile(name).read().decode() for name in names}
    assert names == ["README.txt", "versions.txt", "doctor.json", "status.json", "metrics.txt", "config.yaml"]
    assert "kvcache_build_info" in texts["metrics.txt"] and "store:" in texts["config.yaml"]
    status = json.loads(texts["status.json"])
    assert sorted(status["reload_pending"]) == ["access.admin_users", "remote.path", "users"]
    assert status["ready"] is True and "namespaces" not in status
    assert [t["name"] for t in status["tenants"]] == ["tenant 1", "tenant 2"]
    for name, text in texts.items():
        assert "tenant=\"" not in text and "tenants:" not in text, name


@needs_users
def test_a_report_of_a_stranger_lacks_what_is_for_admins(make_daemon, directory):
    daemon = make_daemon(settings={"listen.mode": "0666"}).start()
    os.chmod(directory, 0o755)
    done = subprocess.run([CTL, "--socket", daemon.socket, "report", "-o", "-"], capture_output=True, user=STRANGER, group=STRANGER,
                          extra_groups=[])
    assert done.returncode == 0 and b"no config.yaml: it is for admins" in done.stderr
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert "config.yaml" not in archive.getnames() and "status.json" in archive.getnames()
