# SPDX-License-Identifier: Apache-2.0
"""A substitute engine that needs no GPU, with which the traffic benchmark is tested. Its answers depend on the bytes of its blocks.

A block's bytes are computed from its tokens and the engine's description. With `spec` and `tier` they are stored in and loaded from a real
daemon, so that a daemon that is killed, hangs or is full affects this engine like a real one. KVCACHE_STUB_FAULT plants a fault that the
tests of the driver expect to be reported: start, die, orphan (dies, and leaves a worker), hang, fail, wait, share (two engines read each
other's blocks), or bytes (what is loaded is wrong). KVCACHE_STUB_TIMEOUT_S is how long a call to the daemon may take.
"""

import collections
import hashlib
import os
import subprocess
import time

from traffic_load import Progress

BLOCK, CHUNK_BYTES, STEP_TOKENS, MOST_RUNNING = 16, 4096, 8192, 32
TOKENS_PER_S, STEP_S, START_S = 400_000, 0.001, 0.02
ARMS = ("none", "cpu", "fs", "spec", "tier")
OTHERS = {"runner": [("runner", "v1"), ("runner", "v2")], "layout": [("layout", "NHD"), ("layout", "HND")],
          "dtype": [("dtype", "bfloat16"), ("dtype", "float16")], "same": [("dtype", "bfloat16"), ("dtype", "bfloat16")]}


def prepare():
    return ""


class Blocks:
    """Blocks in memory of the process. If they are too many, the least recently used one is evicted."""

    def __init__(self, most):
        self.most, self.content = most, collections.OrderedDict()

    def get(self, key):
        if key in self.content:
            self.content.move_to_end(key)
        return self.content.get(key)

    def put(self, key, content):
        self.content[key] = content
        self.content.move_to_end(key)
        while len(self.content) > self.most:
            self.content.popitem(last=False)


class Daemon:
    """Blocks in a daemon. A call that takes long has the engine leave the daemon alone for a second, as the adapters do."""

    def __init__(self, socket, description):
        import kvcache

        self.timeout_s = float(os.environ.get("KVCACHE_STUB_TIMEOUT_S", "0.3"))
        self.client = kvcache.Client(socket, timeout=self.timeout_s, connect_timeout=self.timeout_s)
        self.space = self.client.namespace(f"stub/{hashlib.sha256(description).hexdigest()[:12]}", {"engine": description.decode()})
        self.quiet_until, self.counts = 0.0, collections.Counter()

    def get(self, keys):
        """Returns the contents of the leading keys that are stored."""
        if not keys or time.monotonic() < self.quiet_until:
            return []
        began = time.monotonic()
        found = self.space.match(keys)
        rooms = [bytearray(CHUNK_BYTES) for _ in range(found)]
        status = self.space.get(keys[:found], rooms).status if found else b""
        self._note(began)
        loaded = next((n for n, s in enumerate(status) if s != 0), found)
        self.counts.update(lookups=len(keys), hits=found, loaded=loaded)
        return [bytes(room) for room in rooms[:loaded]]

    def put(self, keys, contents):
        if keys and time.monotonic() >= self.quiet_until:
            began = time.monotonic()
            done = self.space.put(keys, contents, ack="accepted")
            self.counts.update(stored=done.found, refused=len(keys) - done.found)
            self._note(began)

    def announce(self, keys, return_s):
        if keys and time.monotonic() >= self.quiet_until:
            self.space.advise(keys, "return" if return_s else "final", int(return_s))
            self.counts.update(announced=1)

    def _note(self, began):
        if time.monotonic() - began > 0.8 * self.timeout_s:
            self.quiet_until = time.monotonic() + 1


class Memory(Blocks):
    """vLLM's CPU tier: blocks that die with the engine."""

    def get(self, keys):
        found = []
        for key in keys:
            content = super().get(key)
            if content is None:
                break
            found.append(content)
        return found

    def put(self, keys, contents):
        for key, content in zip(keys, contents):
            super().put(key, content)


class Running:
    def __init__(self, name, tokens, answer, return_s):
        self.name, self.tokens, self.answer, self.return_s = name, tokens, answer, return_s
        self.cached, self.said, self.state = 0, 0, None


def keys_of(tokens):
    """Returns the keys of the whole blocks of a prompt, except of a last block that would leave nothing to compute."""
    keys, key = [], b""
    for at in range(0, len(tokens) - BLOCK, BLOCK):
        key = hashlib.sha256(key + repr(tokens[at:at + BLOCK]).encode()).digest()
        keys.append(key)
    return keys


class Engine:
    def __init__(self, job):
        self.fault = os.environ.get("KVCACHE_STUB_FAULT", "")
        time.sleep(START_S)
        if self.fault == "start" and job["number"] % 3 == 2:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.description = repr([(n, job.get(n)) for n in ("shape", "runner", "layout", "dtype")]).encode()
        self.name, self.waiting, self.running = "stub", collections.deque(), []
        self.gpu, self.behind, self.steps, self.finished = Blocks(job["gpu_tokens"] // BLOCK), None, 0, 0
        if job["arm"] in ("spec", "tier"):
            self.behind = Daemon(job["socket"], b"all" if self.fault == "share" else self.description)
        elif job["arm"] in ("cpu", "fs"):
            self.behind = Memory(job["cpu_bytes"] // CHUNK_BYTES)

    def add(self, name, tokens, answer, return_s=None):
        self.waiting.append(Running(name, tokens, answer, return_s))

    def _content(self, key):
        return hashlib.sha256(self.description + key).digest() * (CHUNK_BYTES // 32)

    def _loaded(self, keys):
        loaded = self.behind.get(keys) if self.behind else []
        return [content[::-1] for content in loaded] if self.fault == "bytes" else loaded

    def _prefill(self, request):
        """Finds or computes the blocks of a prompt. Returns the number of computed tokens."""
        keys = keys_of(request.tokens)
        contents = []
        for key in keys:
            content = self.gpu.get(key)
            if content is None:
                break
            contents.append(content)
        rest = keys[len(contents):]
        contents += self._loaded(rest)
        request.cached = len(contents) * BLOCK
        fresh = keys[len(contents):]
        contents += [self._content(key) for key in fresh]
        for key, content in zip(keys, contents):
            self.gpu.put(key, content)
        if self.behind:
            self.behind.put(fresh, contents[len(keys) - len(fresh):])
        request.state = hashlib.sha256(b"".join(contents) + repr(request.tokens[len(keys) * BLOCK:]).encode()).digest()
        return len(request.tokens) - request.cached

    def _plant(self):
        self.steps += 1
        if self.fault == "die" and self.steps == 5:
            os._exit(7)
        if self.fault == "orphan" and self.steps == 5:
            subprocess.Popen(["sleep", "600"])
            os._exit(7)
        if self.fault == "wait" and self.steps == 5:
            time.sleep(1)
        while self.fault == "hang" and self.steps == 5:
            time.sleep(0.1)

    def step(self):
        self._plant()
        computed, steps = 0, []
        while self.waiting and len(self.running) < MOST_RUNNING and computed < STEP_TOKENS:
            request = self.waiting.popleft()
            computed += self._prefill(request)
            self.running.append(request)
        time.sleep(STEP_S + computed / TOKENS_PER_S)
        for request in list(self.running):
            request.said += 1
            token = int.from_bytes(hashlib.sha256(request.state + request.said.to_bytes(4, "little")).digest()[:2], "little")
            finished = request.said == request.answer
            self.finished += finished
            reason = "error" if self.fault == "fail" and finished and self.finished == 3 else ""
            steps.append(Progress(request.name, [token], request.cached, finished, reason))
            if finished:
                self.running.remove(request)
                if request.return_s is not None and isinstance(self.behind, Daemon):
                    self.behind.announce(keys_of(request.tokens), request.return_s)
        return steps

    def forget(self):
        self.gpu.content.clear()

    def learned(self):
        return dict(self.behind.counts) if isinstance(self.behind, Daemon) else {}
