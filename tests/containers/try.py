#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what build.py has made as conf/kubernetes/ would have it run: under runc, as the DaemonSet's user, with a read-only root, without
capabilities, under its seccomp profile; and clients in containers of their own, as the engine's pod. Without runc: in a chroot.

    try.py FOLDER CONTEXT BASE

The last line is "N passed, N failed, N skipped". Needs root.
"""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import yaml

MOST_ADDED_MIB = 16
CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain: {what}")


class Pod:
    """The parts of a pod's container that count here, for runc: `spec` is the container's, `pod` the pod's."""

    def __init__(self, world, name, pod, spec, command, mounts, env=(), seccomp=None):
        self.world, self.id = world, f"kvcache-test-{os.getpid()}-{name}"
        security = {**pod.get("securityContext", {}), **spec.get("securityContext", {})}
        added = [f"CAP_{c}" for c in security.get("capabilities", {}).get("add", ())]
        groups = list(security.get("supplementalGroups", ())) + ([security["fsGroup"]] if "fsGroup" in security else [])
        self.bundle = world.directory / name
        self.bundle.mkdir()
        linux = {"namespaces": [{"type": t} for t in ("pid", "ipc", "uts", "mount")]}
        if security.get("seccompProfile", {}).get("type") == "Localhost":
            linux["seccomp"] = seccomp or world.seccomp()
        (self.bundle / "config.json").write_text(json.dumps({
            "ociVersion": "1.0.2", "hostname": name, "root": {"path": str(world.root), "readonly": True}, "linux": linux,
            "process": {"args": command, "cwd": "/", "user": {"uid": security["runAsUser"], "gid": security["runAsGroup"],
                                                              "additionalGids": groups},
                        "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", *(f"{k}={v}" for k, v in env)],
                        "noNewPrivileges": not security.get("allowPrivilegeEscalation", True),
                        "capabilities": {s: added for s in CAPABILITY_SETS}},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                       {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
                       *({"destination": to, "type": "none", "source": str(source), "options": ["rbind", "ro" if ro else "rw"]}
                         for source, to, ro in mounts)]}))

    def run(self, check=0):
        said = subprocess.run(["runc", "--root", self.world.state, "run", "--bundle", self.bundle, self.id], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        assert check is None or said.returncode == check, f"{self.id}: exit status {said.returncode}: {said.stdout[-2000:]}"
        return said.stdout

    @contextlib.contextmanager
    def running(self):
        with open(self.bundle / "log", "wb") as log:
            process = subprocess.Popen(["runc", "--root", self.world.state, "run", "--bundle", self.bundle, self.id],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield self
        except BaseException:
            print(self.log())
            raise
        finally:
            subprocess.run(["runc", "--root", self.world.state, "kill", self.id, "TERM"], stdin=subprocess.DEVNULL, capture_output=True)
            try:
                self.status = process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def log(self):
        return (self.bundle / "log").read_text()


class World:
    def __init__(self, folder, context, base):
        self.folder, self.context, self.base, self.root = folder, context, base, folder / "root"
        self.image = json.loads((folder / "image.json").read_text())
        self.kubernetes = {p.stem: yaml.safe_load(p.read_text()) for p in (context / "conf/kubernetes").glob("*.yaml")}
        self.pod = self.kubernetes["daemonset"]["spec"]["template"]["spec"]
        self.daemon = self.pod["containers"][0]
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcache-containers-", dir="/var/tmp"))
        self.state = str(self.directory / "runc")
        for name in ("run", "store", "config", "token", "input"):
            (self.directory / name).mkdir()
        self.n = 0

    def seccomp(self):
        return json.loads((self.context / "conf/kubernetes/seccomp.json").read_text())

    def in_chroot(self, *command, user=None):
        user = user or self.image["user"]
        return subprocess.run(["chroot", f"--userspec={user}", self.root, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self.image["environment"]})

    def client(self, *command, check=0, **changed):
        """Runs a command in a container like the engine's, whose namespaces differ from the daemon's."""
        self.n += 1
        engine = self.kubernetes["engine"]["spec"]
        container = engine["containers"][0]
        pod = {"securityContext": {**engine["securityContext"], **changed}}
        env = [(e["name"], e["value"]) for e in container["env"]]
        return Pod(self, f"client{self.n}", pod, container, list(command),
                   [(self.directory / "run", "/run/kvcache", True), (self.directory / "input", "/mnt", True)], env).run(check)


def the_image_is_small_and_has_no_compiler(world):
    def size(path):
        return int(subprocess.run(["du", "-sm", "--exclude=proc", path], capture_output=True, text=True, check=True).stdout.split()[0])

    added = size(world.root) - size(world.base)
    assert added <= MOST_ADDED_MIB, f"{added} MiB more than the base"
    print(f"    {added} MiB more than the base")
    for name in ("cc", "gcc", "meson", "ninja"):
        assert world.in_chroot("sh", "-c", f"command -v {name}").returncode != 0, name
    assert not list((world.root / "var/lib/apt/lists").iterdir())


def it_runs_as_a_user_of_its_own(world):
    uid, gid = world.image["user"].split(":")
    assert uid == gid == str(world.daemon["securityContext"]["runAsUser"]) != "0"
    said = world.in_chroot("id")
    assert f"uid={uid}(kvcache) gid={gid}(kvcache)" in said.stdout, said
    for path, mode in (("run/kvcache", 0o755), ("var/lib/kvcache", 0o700)):
        st = (world.root / path).stat()
        assert (st.st_uid, st.st_mode & 0o7777) == (int(uid), mode), path


def every_program_starts_and_has_its_libraries(world):
    for name in ("kvcache-daemon", "kvcachectl", "kvcache-bench"):
        said = world.in_chroot(f"/usr/bin/{name}", "--version")
        assert said.returncode == 0 and "0." in said.stdout, said
    assert world.in_chroot("/usr/bin/kvcache-bench", "plan", "--help").returncode == 0
    printed = world.in_chroot(*world.image["entrypoint"], "--print-config").stdout
    assert "/run/kvcache/kvcache.sock" in printed and "path: /var/lib/kvcache" in printed, printed


def pods_share_the_daemon(world):
    """The directories are prepared, the daemon answers, and clients of other containers put and get, as whom they are."""
    if not shutil.which("runc"):
        return "runc is not installed"
    run, store = world.directory / "run", world.directory / "store"
    mounts = [(run, "/run/kvcache", False), (store, "/var/lib/kvcache", False)]
    init = world.pod["initContainers"][0]
    Pod(world, "directories", world.pod, init, init["command"], mounts).run()
    assert (run.stat().st_uid, store.stat().st_uid, store.stat().st_mode & 0o777) == (9750, 9750, 0o700)
    Pod(world, "directories-again", world.pod, init, init["command"], mounts).run()  # by each restart of the pod

    token = world.directory / "token/token"
    token.write_text("a-token-for-this-test-alone")
    os.chown(token, 0, 9750)  # set by fsGroup and defaultMode
    token.chmod(0o440)
    config = yaml.safe_load(world.kubernetes["configmap"]["data"]["kvcache.yaml"])
    config["store"]["limit"], config["memory"]["pool"], config["listen"]["http"] = "256MiB", "32MiB", "0.0.0.0:0"
    config["log"] = {"level": "debug"}
    (world.directory / "config/kvcache.yaml").write_text(yaml.safe_dump(config))
    mounts += [(world.directory / "config", "/etc/kvcache", True), (world.directory / "token", "/etc/kvcache-http", True)]
    (world.directory / "input/bytes").write_bytes(os.urandom(300000))
    os.chmod(world.directory, 0o755)

    command = world.image["entrypoint"] + world.daemon["args"]
    env = world.image["environment"].items()
    daemon = Pod(world, "daemon", world.pod, world.daemon, command, mounts, env)
    with daemon.running():
        wait_until(lambda: "ready: socket" in daemon.log(), "the daemon is ready")
        status = json.loads(world.client("kvcachectl", "--json", "status"))
        print(f"    backend {status['io']['backend']}, pid {status['pid']}")
        disabled = pathlib.Path("/proc/sys/kernel/io_uring_disabled")
        if not disabled.exists() or disabled.read_text().strip() == "0":
            assert status["io"]["backend"] == "io_uring", status["io"]
        assert status["pid"] == 1
        for path, headers, code in (("/healthz", {}, 200), ("/readyz", {}, 200), ("/metrics", {}, 401),
                                    ("/metrics", {"Authorization": "Bearer a-token-for-this-test-alone"}, 200)):
            connection = http.client.HTTPConnection("127.0.0.1", int(status["http"].rsplit(":", 1)[1]), timeout=30)
            connection.request("GET", path, headers=headers)
            assert connection.getresponse().status == code, path
            connection.close()
        # The socket's directory is read-only to them, and each is a container with a user and process ids of its own.
        world.client("kvcachectl", "put", "-n", "n", "text:a", "/mnt/bytes")
        said = world.client("sh", "-c", "kvcachectl get -n n text:a | cmp - /mnt/bytes && echo the same")
        assert "the same" in said, said
        assert "pid 0, uid 1000" in daemon.log(), daemon.log()
        # A member of the group may not administer, root of a container may, and a user outside the group is refused.
        assert "admin" in world.client("kvcachectl", "reload", check=None)
        world.client("kvcachectl", "reload", runAsUser=0, runAsGroup=0)
        said = world.client("kvcachectl", "ping", check=None, runAsUser=1001, runAsGroup=1001, supplementalGroups=[])
        assert "ermission denied" in said, said
    assert daemon.status == 0 and "stopped" in daemon.log(), daemon.log()

    # The seccomp profile is in force: without io_uring's system calls the daemon uses another back end, and reports it.
    seccomp = world.seccomp()
    seccomp["syscalls"] = [rule for rule in seccomp["syscalls"] if not any(n.startswith("io_uring") for n in rule["names"])]
    lesser = Pod(world, "lesser", world.pod, world.daemon, command, mounts, env, seccomp)
    with lesser.running():
        wait_until(lambda: "ready: socket" in lesser.log(), "the daemon is ready")
        status = json.loads(world.client("kvcachectl", "--json", "status"))
        assert status["io"]["backend"] == "posix" and status["ready"], status["io"]
        assert [d["reason"] for d in status["degraded"] if d["reason"] == "io_fallback"], status["degraded"]
        said = world.client("sh", "-c", "kvcachectl get -n n text:a | cmp - /mnt/bytes && echo the same")
        assert "the same" in said, "what the daemon before it stored"
    return None


TRIALS = (the_image_is_small_and_has_no_compiler, it_runs_as_a_user_of_its_own, every_program_starts_and_has_its_libraries,
          pods_share_the_daemon)


def main():
    world = World(*(pathlib.Path(p).resolve() for p in sys.argv[1:4]))
    passed = failed = skipped = 0
    try:
        for trial in TRIALS:
            print(trial.__name__.replace("_", " "), flush=True)
            try:
                reason = trial(world)
            except Exception:  # the next one is tried all the same
                traceback.print_exc()
                failed += 1
                continue
            if reason:
                print(f"    skipped: {reason}")
                skipped += 1
            else:
                passed += 1
    finally:
        shutil.rmtree(world.directory, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
