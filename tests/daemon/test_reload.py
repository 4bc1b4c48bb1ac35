# SPDX-License-Identifier: Apache-2.0
"""kvcachectl reload: changes that it applies, changes that need a restart, and invalid changes, of which none is applied."""

import json
import os
import pathlib
import shlex
import subprocess

import pytest

import harness
import kvwire
from harness import ctl
from kvwire import Op, Status
from test_gds import STRANGER
from users import client_as

UNIT = pathlib.Path(__file__).resolve().parents[2] / "systemd" / "kvcache.service.in"


@pytest.fixture
def configured(make_daemon, directory):
    path = directory / "kvcache.yaml"
    path.write_text("limits:\n  leases: 40\n")
    daemon = make_daemon(config=path).start()
    return daemon, path


def leases_of(daemon):
    with daemon.client() as c:
        return next(line.split()[1] for line in c.report(kvwire.Report.CONFIG).splitlines() if line.strip().startswith("leases:"))


def test_reload_reports_changes_and_keys_that_need_a_restart(configured):
    daemon, path = configured
    assert ctl("reload", daemon=daemon, check=0).stdout == "nothing has changed\n"
    path.write_text("limits:\n  leases: 50\nio:\n  depth: 7\n")
    assert ctl("reload", daemon=daemon, check=0).stdout == (
        "applied:\n  limits.leases: 40 is now 50\n"
        "needs a restart:\n  io.depth: 32 becomes 7 only after a restart\n"
        "1 setting changed\n")
    assert leases_of(daemon) == "50" and daemon.metric("kvcache_config_reloads_total") == 2
    path.write_text("limits:\n  leases: 60\n")
    said = json.loads(ctl("--json", "reload", daemon=daemon, check=0).stdout)
    assert said == {"file": str(path), "applied": ["limits.leases: 50 is now 60"], "restart": [], "kept": [], "errors": [],
                    "files": [str(path)], "refused": False, "n_errors": 0}


def test_changes_that_need_a_restart_are_shown_until_it_happens(configured):
    daemon, path = configured
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.settings["access.users"] = "[root]"
    daemon.restart()
    assert "RESTART" not in ctl("status", daemon=daemon, check=0).stdout and daemon.status()["reload_pending"] == []
    path.write_text("limits:\n  leases: 40\nio:\n  depth: 7\nstore:\n  reserve: 2MiB\n")
    ctl("reload", daemon=daemon, check=0)
    pending = ["store.reserve: auto becomes 2097152 only after a restart", "io.depth: 32 becomes 7 only after a restart"]
    said = daemon.status()["reload_pending"]
    assert [text.partition(":")[0] for text in said] == ["store.reserve", "io.depth"] and said[1] == pending[1]
    for arguments in ((), ("--all",), ("memory",)):
        shown = ctl("status", *arguments, daemon=daemon, check=0).stdout
        assert shown.count("RESTART") == 2 and pending[1] in shown
    assert daemon.metric("kvcache_reload_pending") == 2
    assert json.loads(daemon.http("/status")[2])["reload_pending"] == ["store.reserve", "io.depth"], "no values"
    assert "a restart is pending for store.reserve, io.depth" in daemon.http("/")[2].decode()

    path.write_text("limits:\n  leases: 40\n  wait: soon\n")
    ctl("reload", daemon=daemon, check=4)
    assert daemon.metric("kvcache_reload_pending") == 2, "a refused reload says nothing of the file before"
    path.write_text("limits:\n  leases: 40\nio:\n  depth: 7\n")
    ctl("reload", daemon=daemon, check=0)
    assert daemon.status()["reload_pending"] == [pending[1]]
    daemon.restart()
    assert daemon.status()["reload_pending"] == [] and daemon.metric("kvcache_reload_pending") == 0


def test_a_wrong_configuration_changes_nothing_and_each_error_is_named(configured):
    daemon, path = configured
    path.write_text("limits:\n  leases: 50\n  wait: soon\nstore:\n  limt: 1GiB\n")
    said = ctl("reload", daemon=daemon, check=4)
    assert said.stdout == "" and f"{path}:3:9: limits.wait: " in said.stderr
    assert f'{path}:5:3: ' in said.stderr and 'did you mean "store.limit"' in said.stderr
    assert "has 2 errors, so nothing was changed" in said.stderr
    assert leases_of(daemon) == "40" and "40 is now 50" not in daemon.log() and f"{path}:5:3: " in daemon.log()
    assert daemon.metric("kvcache_config_reloads_total") == 0 and daemon.metric("kvcache_config_reloads_refused_total") == 1
    said = json.loads(ctl("--json", "reload", daemon=daemon, check=4).stdout)
    assert said["refused"] and said["n_errors"] == len(said["errors"]) == 2 and said["applied"] == []
    path.unlink()
    assert f"{path}: " in ctl("reload", daemon=daemon, check=4).stderr
    path.write_text("limits: {leased_bytes: 15TiB, leases: 50}\n")
    assert "1:24: limits.leased_bytes: 15TiB is more than memory.pool" in ctl("reload", daemon=daemon, check=4).stderr
    assert leases_of(daemon) == "40"


def test_many_errors_are_counted_and_the_answer_is_bounded(configured):
    daemon, path = configured
    path.write_text("store:\n" + "".join(f"  nokey{i}: 1\n" for i in range(5000)))
    said = json.loads(ctl("--json", "reload", daemon=daemon, check=4).stdout)
    assert len(said["errors"]) == 100 and said["n_errors"] >= 5000
    ctl("ping", daemon=daemon, check=0)


def test_only_admins_reload(daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    os.chmod(daemon.directory, 0o755)
    os.chmod(daemon.socket, 0o666)
    with client_as(daemon, STRANGER) as stranger:
        assert stranger.call(Op.RELOAD, b"", check=False).status == Status.DENIED
    assert daemon.metric("kvcache_config_reloads_total") == 0


def test_a_malformed_reload_ends_the_session(daemon):
    with daemon.client() as c:
        assert c.features & kvwire.FEATURE_RELOAD
        with pytest.raises(kvwire.SessionEnded):
            c.call(Op.RELOAD, b"\0" * 8, n_fds=1)
    with daemon.client() as c:
        reply = c.call(Op.RELOAD, b"", n_fds=1)
        assert reply.status == Status.OK
        os.close(reply.fds[0])


def test_the_commands_of_the_unit_reload_a_daemon_and_fail_if_they_must(configured):
    daemon, path = configured
    lines = [shlex.split(line.split("=", 1)[1]) for line in UNIT.read_text().splitlines() if line.startswith("ExecReload=")]
    programs = {"@bindir@/kvcache-daemon": [str(harness.DAEMON), "--config", str(path), "--set", f"store.path={daemon.store}",
                                            "--set", f"listen.socket={daemon.socket}"],
                "@bindir@/kvcachectl": [str(harness.CTL)]}

    def reload():
        """Runs the commands as systemd does, up to the first that fails."""
        for words in lines:
            done = subprocess.run(programs[words[0]] + words[1:], env={**os.environ, "KVCACHE_SOCKET": daemon.socket}, capture_output=True, text=True)
            if done.returncode:
                return done
        return done

    path.write_text("limits:\n  leases: 70\n")
    assert reload().returncode == 0, reload().stderr
    assert leases_of(daemon) == "70"
    path.write_text("limits:\n  leases: no\n")
    assert reload().returncode == 78 and leases_of(daemon) == "70"
    daemon.stop()
    path.write_text("limits:\n  leases: 80\n")
    assert reload().returncode == 3
