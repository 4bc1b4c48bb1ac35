# SPDX-License-Identifier: Apache-2.0
"""Back ends of the shared tier for tests, with direct access to each: tests list, read and overwrite its objects.

All engines are on this host. The directory is one local path that both daemons use, not a file system that is mounted twice.
"""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import harness

CEPH_SH = pathlib.Path(__file__).resolve().parent / "ceph.sh"
NEEDED = ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "rados", "radosgw", "radosgw-admin", "curl")
ROOM = 12 << 30  # for the data of one run; the disks are sparse
FIGURES = []  # lines for the end of the run

_numbers = itertools.count(1)


def figure(text):
    FIGURES.append(text)
    print(text)


def why_no_ceph():
    missing = [program for program in NEEDED if not shutil.which(program)]
    if missing:
        return f"{missing[0]} is not installed"
    if os.geteuid() != 0:
        return "only root sets up a Ceph here"
    folder = os.environ.get("KVCACHE_FLEET_DIR") or "/var/tmp"
    os.makedirs(folder, exist_ok=True)
    if shutil.disk_usage(folder).free < ROOM:
        return f"{folder} has less than {ROOM >> 30} GiB free"
    return None


def command(*arguments, check=True, timeout=150, input=None):
    result = subprocess.run([str(a) for a in arguments], capture_output=True, timeout=timeout, input=input,
                            stdin=subprocess.DEVNULL if input is None else None)
    assert not check or result.returncode == 0, f"{arguments}: {result.returncode}: {result.stderr.decode()[-2000:]}"
    return result.stdout


class Cluster:
    def __init__(self, folder):
        self.folder, self.conf, self._gateway = folder, f"{folder}/ceph.conf", None

    def run(self, action, *arguments, **how):
        # Daemons of Ceph inherit these descriptors, so a pipe would never reach its end.
        with tempfile.TemporaryFile() as out:
            status = subprocess.run(["sh", str(CEPH_SH), action, self.folder, *arguments], stdin=subprocess.DEVNULL, stdout=out,
                                    stderr=out, timeout=how.get("timeout", 150)).returncode
            out.seek(0)
            text = out.read().decode()
        assert status == 0 or not how.get("check", True), f"{action} {arguments}: {text[-2000:]}"
        return text

    def start(self):
        self.run("start")

    def gateway(self):
        if not self._gateway:
            self._gateway = self.run("gateway").strip().splitlines()[-1]
        return self._gateway

    def rados(self, *arguments, **how):
        return command("timeout", "120", "rados", "--conf", self.conf, "-p", "kvcache", *arguments, **how)

    def lose(self, percent):
        """Drops a share of the packets from and to the cluster, or skips the test. Returns how many were dropped since the last call."""
        with tempfile.TemporaryFile() as out:
            status = subprocess.run(["sh", str(CEPH_SH), "lose", self.folder, str(percent)], stdin=subprocess.DEVNULL, stdout=out,
                                    stderr=out, timeout=60).returncode
            out.seek(0)
            text = out.read().decode()
        if status == 77:
            pytest.skip(text.strip())
        assert status == 0, text
        return sum(map(int, text.strip().split("+"))) if text.strip() else 0

    def set_quota(self, max_bytes):
        self.run("ceph", "osd", "pool", "set-quota", "kvcache", "max_bytes", str(max_bytes))


class Engine:
    """A directory as an engine. names() has all files; chunks() has only those whose name ends with a key."""

    def __init__(self, directory, cluster):
        self.cluster, self.prefix = cluster, f"fleet-{os.getpid()}-{next(_numbers)}"
        self.directory = directory

    def chunks(self):
        """Returns {key in hex: name}."""
        return {name.rsplit("/", 1)[-1]: name for name in self.names() if re.search(r"/[0-9a-f]{64}$", name)}

    def is_in_memory(self):
        return harness.filesystem_of(self.cluster.folder if self.cluster else self.path) == "tmpfs"

    def check_arguments(self):
        """Returns the arguments of backend-check."""
        return [self.name] + [f"{k}={v}" for k, v in self.parameters().items()] + [f"prefix={self.prefix}"]

    def bench_arguments(self):
        """Returns the arguments for kvcache-bench remote."""
        return [self.name] + [f"--{'ceph-conf' if k == 'conf' else k}={v}" for k, v in self.parameters().items()]


class Directory(Engine):
    name = "directory"

    def __init__(self, directory, cluster):
        super().__init__(directory, cluster)
        self.path = directory / "shared"
        self.path.mkdir(exist_ok=True)

    def settings(self):
        return {"remote.backend": "directory", "remote.path": self.path, "remote.prefix": self.prefix}

    def parameters(self):
        return {"path": self.path}

    def names(self):
        return [str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file()]

    def read(self, name):
        return (self.path / name).read_bytes()

    def write(self, name, data):
        (self.path / name).write_bytes(data)


class Rados(Engine):
    name = "rados"

    def settings(self):
        return {"remote.backend": "rados", "remote.pool": "kvcache", "remote.ceph_conf": self.cluster.conf,
                "remote.prefix": self.prefix}

    def parameters(self):
        return {"pool": "kvcache", "conf": self.cluster.conf}

    def names(self):
        return self.cluster.rados("-N", self.prefix, "ls").decode().split()

    def read(self, name):
        path = self.directory / "object"
        self.cluster.rados("-N", self.prefix, "get", name, path)
        return path.read_bytes()

    def write(self, name, data):
        path = self.directory / "object"
        path.write_bytes(data)
        self.cluster.rados("-N", self.prefix, "put", name, path)


class S3(Engine):
    name = "s3"

    def __init__(self, directory, cluster):
        super().__init__(directory, cluster)
        self.endpoint = cluster.gateway()

    def settings(self):
        return {"remote.backend": "s3", "remote.endpoint": self.endpoint, "remote.bucket": "kvcache",
                "remote.credentials": f"{self.cluster.folder}/credentials", "remote.prefix": self.prefix}

    def parameters(self):
        return {"endpoint": self.endpoint, "bucket": "kvcache", "credentials": f"{self.cluster.folder}/credentials"}

    def names(self):
        text = self.cluster.run("radosgw-admin", "bucket", "list", "--bucket", "kvcache", "--max-entries", "100000")
        return [e["name"] for e in json.loads(text[text.index("["):]) if e["name"].startswith(self.prefix + "/")]

    def curl(self, *arguments, **how):
        keys = dict(line.split(" = ") for line in pathlib.Path(f"{self.cluster.folder}/credentials").read_text().splitlines()[1:])
        return command("curl", "-sf", "-m", "60", "--aws-sigv4", "aws:amz:us-east-1:s3", "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD",
                       "--user", f"{keys['aws_access_key_id']}:{keys['aws_secret_access_key']}", *arguments, **how)

    def read(self, name):
        return self.curl(f"{self.endpoint}/kvcache/{name}")

    def write(self, name, data):
        path = self.directory / "object"
        path.write_bytes(data)
        self.curl("-T", path, f"{self.endpoint}/kvcache/{name}")


ENGINES = {e.name: e for e in (Directory, Rados, S3)}
