# SPDX-License-Identifier: Apache-2.0
"""LMCache for the arms of the traffic benchmark that use it: starts LMCache's server beside vLLM, and configures vLLM's connector to the server.

The arms are: lmcache, with the server's memory (L1) only; lmcache-gds, with a file instead of this memory, through GPUDirect Storage; lmcache-fs,
with memory and LMCache's adapter for files; lmcache-tier, with memory and kvcache's adapter. Engine and server are killed together, so a run
with --kill-at only finds the chunks that the second level (L2) has stored.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

CONNECTOR = "LMCacheMPConnector"
START_S = 90
PROGRAM = "from lmcache.cli.main import main; main()"  # a pack has no scripts, and 0.5.0 no module that runs as one


def adapter_of(job):
    """Returns the description of the second level (L2) of an arm, or None."""
    if job["arm"] == "lmcache-fs":
        return dict(type="fs", base_path=job["files"], **job.get("extra", {}))
    if job["arm"] == "lmcache-tier":
        options = dict(adapter="none", socket=job["socket"], weights="random", **job.get("extra", {}))
        return dict(type="plugin", module_path="kvcache.lmcache.adapter", class_name="KvcacheL2Adapter", adapter_params=options)
    return None


def command_of(job, port, http_port):
    """Returns the command that starts the server. Its memory is a file in /dev/shm, which our adapter registers with the daemon."""
    command = [sys.executable, "-c", PROGRAM, "server", "--host", "127.0.0.1", "--port", str(port), "--http-host", "127.0.0.1",
               "--http-port", str(http_port), "--l1-size-gb", f"{job['cpu_bytes'] / (1 << 30):g}", "--eviction-policy", "LRU", "--disable-metrics"]
    if job["arm"] == "lmcache-gds":
        return [*command, "--gds-l1-path", job["files"]]
    command += ["--no-l1-use-lazy", "--shm-name", f"traffic_{os.getpid()}"]
    adapter = adapter_of(job)
    return command + (["--l2-adapter", json.dumps(adapter)] if adapter else [])


def free_ports(count):
    """Returns ports of this host that nothing uses."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Server:
    """The server of an arm. `options` are the connector's kv_connector_extra_config."""

    def __init__(self, job):
        port, self.http_port = free_ports(2)
        environment = dict(os.environ, LMCACHE_TRACK_USAGE="false", PYTHONHASHSEED="0")
        # The process stays in the engine's group, which the driver kills.
        self.process = subprocess.Popen(command_of(job, port, self.http_port), env=environment)
        self.options = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
        self._wait()

    def _wait(self):
        """Waits until the server's HTTP interface answers, which is after its memory is made and its port is open."""
        began = time.monotonic()
        while time.monotonic() < began + START_S and self.process.poll() is None:
            try:
                self._ask("healthcheck")
                return
            except OSError:
                time.sleep(0.1)
        self.process.kill()
        status = self.process.wait()
        raise RuntimeError(f"LMCache's server did not start: status {status} after {time.monotonic() - began:.0f} s; the log says why")

    def _ask(self, what):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/{what}", timeout=2) as answer:
            return json.load(answer)

    def figures(self):
        """Returns how much the server's memory holds, and what the adapter of its second level reports."""
        known = self._ask("status")["storage_manager"]
        memory = known.get("l1_manager", {})
        return dict(l1_objects=memory.get("total_object_count"), l1_bytes=memory.get("memory_used_bytes"), l2=known.get("l2_adapters"))
