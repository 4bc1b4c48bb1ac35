# SPDX-License-Identifier: Apache-2.0
"""Drop-ins of the configuration, kvcache.yaml.d/*.yaml: a daemon reads them at startup and at a reload, says what it read, and refuses
what it cannot trust."""

import json
import os
import subprocess

import pytest

import harness
import kvwire
from harness import ctl
from test_gds import STRANGER
from test_start import CONFIG, OK, check_config, ends_with, run
from users import client_as

PERMISSION = 77


@pytest.fixture
def configured(directory):
    """The configuration file, and the directory of its drop-ins."""
    path = directory / "kvcache.yaml"
    path.write_text("limits:\n  leases: 40\n")
    drop_ins = directory / "kvcache.yaml.d"
    drop_ins.mkdir(mode=0o755)
    return path, drop_ins


def config_of(daemon):
    with daemon.client() as c:
        return [line.strip() for line in c.report(kvwire.Report.CONFIG).splitlines()]


def test_drop_ins_are_read_and_shown(make_daemon, configured):
    path, drop_ins = configured
    (drop_ins / "50-limits.yaml").write_text("limits:\n  leases: 50\n  wait: 7s\n")
    (drop_ins / "60-limits.yaml").write_text("limits.leases: 60\n")
    (drop_ins / "70-limits.yml").write_text("limits.leases: 70\n")
    daemon = make_daemon(config=path, env={"KVCACHE_LIMITS_HANDSHAKE": "8s"})
    daemon.settings["listen.http"] = f"unix:{daemon.http_socket}"
    daemon.start()
    lines = config_of(daemon)
    assert "leases: 60  # 60-limits.yaml:1" in lines and "wait: 7s  # 50-limits.yaml:3" in lines and "handshake: 8s" in lines
    assert f"the configuration is read from {path} and 2 drop-ins" in daemon.log()
    assert f'{drop_ins}: "70-limits.yml" is not read: the names of drop-ins end with .yaml' in daemon.log()
    said = daemon.status()["configuration"]
    assert said["files"] == [str(path), str(drop_ins / "50-limits.yaml"), str(drop_ins / "60-limits.yaml")]
    assert f"{path} and 2 drop-ins" in ctl("status", daemon=daemon, check=0).stdout
    assert "configuration" not in json.loads(daemon.http("/status")[2])


def test_a_reload_reads_drop_ins_again(make_daemon, configured):
    path, drop_ins = configured
    daemon = make_daemon(config=path).start()
    (drop_ins / "a.yaml").write_text("limits:\n  leases: 50\n")
    assert ctl("reload", daemon=daemon, check=0).stdout == (
        "read the file and 1 drop-in\napplied:\n  limits.leases: 40 is now 50\n1 setting changed\n")
    assert "leases: 50  # a.yaml:2" in config_of(daemon)
    (drop_ins / "b.yaml").write_text("io:\n  depth: 7\n")
    said = json.loads(ctl("--json", "reload", daemon=daemon, check=0).stdout)
    assert said["files"] == [str(path), str(drop_ins / "a.yaml"), str(drop_ins / "b.yaml")] == daemon.status()["configuration"]["files"]
    assert said["restart"] == ["io.depth: 32 becomes 7 only after a restart"]
    (drop_ins / "a.yaml").unlink()
    (drop_ins / "b.yaml").unlink()
    assert ctl("reload", daemon=daemon, check=0).stdout == "applied:\n  limits.leases: 50 is now 40\n1 setting changed\n"
    assert "leases: 40" in config_of(daemon) and daemon.status()["configuration"]["files"] == [str(path)]


def test_a_wrong_drop_in_changes_nothing(make_daemon, configured):
    path, drop_ins = configured
    daemon = make_daemon(config=path).start()
    path.write_text("limits:\n  leases: many\n")
    (drop_ins / "a.yaml").write_text("limits:\n  wait: 9s\n\nstore:\n  limt: 1GiB\n")
    said = ctl("reload", daemon=daemon, check=4).stderr
    assert f"{path}:2:11: limits.leases" in said and f"{drop_ins}/a.yaml:5:3: " in said and "2 errors, so nothing was changed" in said
    assert "leases: 40" in config_of(daemon) and "wait: 5s  # default" in config_of(daemon)
    path.write_text("")
    ends_with(make_daemon(config=path), CONFIG, f'{drop_ins}/a.yaml:5:3: unknown key "store.limt"')


def huge(path):
    path.write_text("#" * (1 << 20) + "\n")


def for_all(path):
    path.write_text("io.depth: 7\n")
    path.chmod(0o666)


HOSTILE = {"a directory": (lambda path: path.mkdir(), CONFIG, "is a directory, not a file"),
           "a FIFO": (lambda path: os.mkfifo(path), CONFIG, "is not a regular file"),
           "a device": (lambda path: path.symlink_to("/dev/zero"), CONFIG, "is not a regular file"),
           "a broken link": (lambda path: path.symlink_to("nowhere"), CONFIG, "is a link to a file that does not exist"),
           "writable by others": (for_all, PERMISSION, "mode 0666 lets every user change the configuration"),
           "huge": (huge, CONFIG, "the drop-ins are larger than 1024 KiB together")}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_drop_in_that_cannot_be_trusted_is_refused(make_daemon, configured, what):
    """By a startup, by a check, and by a reload, which leaves the daemon as it is."""
    path, drop_ins = configured
    make, status, said = HOSTILE[what]
    daemon = make_daemon(config=path).start()
    bad = drop_ins / "bad.yaml"
    make(bad)
    assert f"{bad}: {said}" in ctl("reload", daemon=daemon, check=4).stderr
    assert "leases: 40" in config_of(daemon) and daemon.metric("kvcache_config_reloads_refused_total") == 1
    result, lines = check_config(path)
    assert result.returncode == CONFIG and any(line.startswith(f"{bad}: {said}") for line in lines)
    ends_with(make_daemon(config=path), status, f"{bad}: {said}")
    if bad.is_dir():
        bad.rmdir()
    else:
        bad.unlink()
    assert ctl("reload", daemon=daemon, check=0).stdout == "nothing has changed\n"


def test_a_directory_that_others_may_write_is_refused(make_daemon, configured):
    path, drop_ins = configured
    drop_ins.chmod(0o777)
    ends_with(make_daemon(config=path), PERMISSION, f"{drop_ins}: mode 0777 lets every user change the configuration")


def test_the_mode_of_a_read_only_mount_does_not_matter(directory, configured):
    """Kubernetes mounts a ConfigMap so: mode 0777, read-only, and links to the files."""
    path, drop_ins = configured
    (drop_ins / "..v1").mkdir()
    (drop_ins / "..v1/a.yaml").write_text("io.depth: 7\n")
    (drop_ins / "a.yaml").symlink_to("..v1/a.yaml")
    drop_ins.chmod(0o777)
    mounted = ["unshare", "--mount", "sh", "-c", f"mount --bind {drop_ins} {drop_ins} && mount -o remount,bind,ro {drop_ins} && exec \"$@\"", "sh"]
    if subprocess.run([*mounted, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount can be made read-only here")
    result = subprocess.run([*mounted, str(harness.DAEMON), "--config", str(path), "--set", f"store.path={directory / 'store'}", "--print-config"],
                            capture_output=True, text=True, timeout=30 * harness.slow())
    assert result.returncode == OK and "depth: 7  # a.yaml:1" in result.stdout, result.stderr
    assert check_config(path)[0].returncode == CONFIG


def test_drop_ins_of_another_user_are_refused(make_daemon, configured):
    path, drop_ins = configured
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file to another user")
    drop_in = drop_ins / "a.yaml"
    drop_in.write_text("limits.leases: 50\n")
    daemon = make_daemon(config=path, unprivileged=True)
    os.chmod(daemon.directory, 0o755)
    daemon.start()  # root's
    assert "leases: 50  # a.yaml:1" in config_of(daemon)
    os.chown(drop_in, 4711, -1)
    ends_with(make_daemon(config=path), PERMISSION, f"{drop_in}: belongs to user 4711, who could change the configuration")


def test_a_check_lists_the_files(directory, configured):
    path, drop_ins = configured
    sets = ["--set", f"store.path={directory / 'store'}", "--set", f"listen.socket={directory / 's'}", "--set", "listen.http=off"]
    assert check_config(path, *sets)[0].stdout == "configuration ok\n"
    (drop_ins / "a.yaml").write_text("io.depth: 7\n")
    result, lines = check_config(path, *sets)
    assert (result.returncode, lines, result.stdout) == (OK, [], f"configuration ok\n  {path}\n  {drop_ins}/a.yaml\n")
    assert "depth: 7  # a.yaml:1" in run("--config", str(path), *sets, "--print-config").stdout


def doctor(daemon, name):
    return [c for c in json.loads(ctl("--json", "doctor", daemon=daemon, check=None).stdout)["checks"] if c["name"] == name]


def test_doctor_finds_files_that_were_changed_since(make_daemon, configured):
    path, drop_ins = configured
    drop_in = drop_ins / "a.yaml"
    drop_in.write_text("limits.leases: 50\n")
    daemon = make_daemon(config=path).start()
    past, future = daemon.status()["configuration"]["read_unix_ms"] / 1e3 - 60, daemon.status()["configuration"]["read_unix_ms"] / 1e3 + 3600
    for file in (path, drop_in, drop_ins):
        os.utime(file, (past, past))
    check, = doctor(daemon, "configuration")
    assert check["level"] == "ok" and "1 drop-in" in check["found"]
    for file, name in ((path, "kvcache.yaml"), (drop_in, "a.yaml"), (drop_ins, "the directory of drop-ins")):
        os.utime(file, (future, future))
        check, = doctor(daemon, "configuration")
        assert check["level"] == "warning" and check["found"] == f"{name} changed after the daemon read the configuration"
        assert "kvcachectl reload" in check["remedy"]
        os.utime(file, (past, past))


def test_only_admins_see_the_files(make_daemon, configured):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    path, drop_ins = configured
    daemon = make_daemon(config=path).start()
    os.chmod(daemon.directory, 0o755)
    os.chmod(daemon.socket, 0o666)
    with client_as(daemon, STRANGER) as stranger:
        assert "configuration" not in json.loads(stranger.report(kvwire.Report.STATUS))
