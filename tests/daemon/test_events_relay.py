# SPDX-License-Identifier: Apache-2.0
"""kvcache-events: a subscriber by vLLM's wire form alone has the index that the daemon lists, after losses, sleeps, kills and restarts."""

import contextlib
import random
import select
import signal
import socket
import subprocess
import threading

import pytest

import harness
import kvwire
from follower import History, SMALL_STORE, listed
from harness import BUILD, KIB, items, put_all, wait_until
from kvwire import Ack, Op, Tier
from test_events import RING, SMALL_RING, running  # noqa: F401 - running is a fixture
from zmtp import Subscriber

PROGRAM = BUILD / "client" / "events" / "kvcache-events"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="kvcache-events is not built: there is no libzmq")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Relay:
    """The program, over a daemon."""

    def __init__(self, daemon, *options):
        self.ports = free_port(), free_port()
        self.command = [str(PROGRAM), "-s", str(daemon.socket), "-e", f"tcp://127.0.0.1:{self.ports[0]}",
                        "-r", f"tcp://127.0.0.1:{self.ports[1]}", *map(str, options)]
        self.process = None
        self.start()

    def start(self):
        self.process = harness.spawn(self.command, stderr=subprocess.PIPE, text=True)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        errors = self.process.stderr.read()
        self.process.wait(30 * harness.slow())
        self.process.stderr.close()
        assert exc[0] or (self.process.returncode == 0 and not harness.SANITIZER_REPORT.search(errors)), errors

    def subscriber(self):
        def connected():
            assert self.process.poll() is None
            try:
                return Subscriber(*self.ports)
            except ConnectionRefusedError:
                return None
        return contextlib.closing(wait_until(connected, "the program listens"))


def agrees(subscriber, daemon):
    """Reads until the index is that of the daemon, which is at rest."""
    def same():
        subscriber.read(0.05)
        return subscriber.by_name() == {name: {k: int(t & Tier.ALL) for k, t in chunks.items()} for name, chunks in listed(daemon).items()}
    wait_until(same, "the subscriber's index is the list", 20)


def test_a_subscriber_has_the_daemons_list(running):  # noqa: F811
    daemon = running()
    with daemon.client() as c, Relay(daemon) as relay:
        ns = c.namespace("n")
        put_all(c, ns, items("before", 5, 1000), ack=Ack.WRITTEN)
        with relay.subscriber() as s:
            agrees(s, daemon)
            assert s.cleared >= 1
            put_all(c, ns, items("after", 5, 1000), ack=Ack.WRITTEN)
            agrees(s, daemon)
            assert len(s.by_name()["n"]) == 10
            c.evict(ns, [k for k, _ in items("after", 3, 1000)])
            agrees(s, daemon)
            # a connection that is lost
            s.sub.close()
            c.purge(ns)
            put_all(c, c.namespace("m"), items("m", 3, 1000), ack=Ack.WRITTEN)
            s.reconnect()
            agrees(s, daemon)
            assert set(s.by_name()) == {"m"} and s.replays >= 2
            # a late one
            with relay.subscriber() as late:
                agrees(late, daemon)
            # the daemon, and then the program, end and return
            daemon.restart(kill=True)
            agrees(s, daemon)
            relay.kill()
            with daemon.client() as again:
                put_all(again, again.namespace("o"), items("o", 3, 1000), ack=Ack.WRITTEN)
            relay.start()
            def reconnected():
                try:
                    s.reconnect()
                    return True
                except ConnectionRefusedError:
                    return False
            wait_until(reconnected, "the program listens again")
            agrees(s, daemon)
            assert set(s.by_name()) == {"m", "o"}


class Proxy:
    """Passes the messages between clients and a daemon on, but ends the connection at the next `to_break` requests for a snapshot."""

    def __init__(self, path, target):
        self.socket, self.target, self.to_break = path, target, 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(0.1)
        self.ended = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ended:
            with contextlib.suppress(TimeoutError), self.listener.accept()[0] as client:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
                    daemon.connect(str(self.target))
                    while not self.ended and self.pass_on(client, daemon):
                        pass

    def pass_on(self, client, daemon):
        for source, to in ((client, daemon), (daemon, client)):
            if source not in select.select([client, daemon], [], [], 0.1)[0]:
                continue
            data, fds, _, _ = socket.recv_fds(source, kvwire.MAX_MESSAGE, kvwire.MAX_FDS)
            is_snapshot = source is client and len(data) == 40 and int.from_bytes(data[4:6], "little") == Op.EVENTS and data[38] == 1
            try:
                if not data or (is_snapshot and self.to_break > 0):
                    self.to_break -= is_snapshot
                    return False
                socket.send_fds(to, [data], fds)
            finally:
                kvwire.close_all(fds)
        return True

    def close(self):
        self.ended = True
        self.thread.join()
        self.listener.close()


def test_a_snapshot_that_was_interrupted_is_published_again(running, directory):  # noqa: F811
    """The daemon has the same epoch after the connection is lost, so that its events report no gap."""
    daemon = running()
    with daemon.client() as c, contextlib.closing(Proxy(directory / "proxy", daemon.socket)) as proxy, Relay(proxy) as relay:
        put_all(c, c.namespace("n"), items("n", 5, 1000), ack=Ack.WRITTEN)
        put_all(c, c.namespace("gone"), items("gone", 5, 1000), ack=Ack.WRITTEN)
        with relay.subscriber() as s:
            agrees(s, daemon)
            proxy.to_break = 1
            c.namespace_remove("gone", purge=True)
            wait_until(lambda: proxy.to_break == 0, "the relay asks for a snapshot")
            agrees(s, daemon)
            assert len(s.by_name()["n"]) == 5


def test_a_namespace_that_is_removed_leaves_nothing(running):  # noqa: F811
    daemon = running()
    with daemon.client() as c, Relay(daemon) as relay, relay.subscriber() as s:
        put_all(c, c.namespace("n"), items("gone", 3, 1000), ack=Ack.WRITTEN)
        agrees(s, daemon)
        c.namespace_remove("n", purge=True)
        wait_until(lambda: (s.read(0.05), s.cleared)[1] >= 2, "all chunks are published again")
        assert not any(s.held.values())


@pytest.mark.parametrize("buffer", [4, 1000])
def test_the_index_equals_the_list_after_random_histories(running, buffer):  # noqa: F811
    """With a ring and a buffer that are too small for what happens while the subscriber sleeps."""
    daemon = running({"events.ring": SMALL_RING * 4, **SMALL_STORE})
    rng = random.Random(buffer)
    with Relay(daemon, "--buffer", buffer) as relay, relay.subscriber() as s:
        class Reader:
            def step(self):
                s.read(0.002)

            def catch_up(self):
                s.read(0.02)

            def close(self):
                s.reconnect()

        for _ in range(2):
            history = History(daemon, rng, Reader())
            for _ in range(40):
                history.step()
            history.client.close()
            agrees(s, daemon)


def test_the_lag_is_short(running):  # noqa: F811
    daemon = running({"events.ring": RING * 16})
    with daemon.client() as c, Relay(daemon) as relay, relay.subscriber() as s:
        ns = c.namespace("n")
        agrees(s, daemon)
        s.lags_ms.clear()
        for i in range(100):
            put_all(c, ns, items(f"lag-{i}", 16, 4 * KIB), ack=Ack.ACCEPTED)
            s.read(0.004)
        agrees(s, daemon)
        lags = sorted(s.lags_ms)
        assert len(lags) > 20 and lags[len(lags) // 2] < 50 * harness.slow(), lags[-10:]


def test_wrong_requests_for_earlier_batches_are_ignored(running):  # noqa: F811
    from zmtp import Peer
    daemon = running()
    with daemon.client() as c, Relay(daemon) as relay, relay.subscriber() as s:
        put_all(c, c.namespace("n"), items("wrong", 3, 1000), ack=Ack.WRITTEN)
        for body in (b"", b"1", bytes(9), bytes(10000)):
            peer = Peer(relay.ports[1], "REQ")
            peer.request(body)
            peer.close()
        peer = Peer(relay.ports[1], "DEALER")
        for flags, body in ((0, b"x"), (1, b"x"), (1, b""), (1, bytes(8)), (0, bytes(8)), (0, b"")):
            peer._send_frame(flags, body)
        peer.close()
        s.replay()
        agrees(s, daemon)


@pytest.mark.parametrize("words, status", [
    (["--help"], 0), (["--version"], 0), (["operand"], 2), (["--buffer", "0"], 2), (["--buffer", "1x"], 2), (["--block-size", "-1"], 2),
    (["--nothing"], 2), (["-e", "nonsense"], 6), (["-e", "tcp://127.0.0.1"], 6)])
def test_options_are_checked(words, status):
    done = subprocess.run([str(PROGRAM), *words], capture_output=True, text=True, timeout=30 * harness.slow())
    assert done.returncode == status and bool(done.stdout) == (status == 0) and bool(done.stderr) == (status != 0)


def test_a_daemon_without_events_is_reported(make_daemon):
    daemon = make_daemon().start()
    done = subprocess.run([str(PROGRAM), "-s", daemon.socket, "-e", f"tcp://127.0.0.1:{free_port()}", "-r", "off"], capture_output=True, text=True,
                          timeout=30 * harness.slow())
    assert done.returncode == 4 and "events.ring" in done.stderr


def test_vllms_decoders_read_the_batches(running):  # noqa: F811
    """The classes of vllm/distributed/kv_events.py (0.33), as far as they decode."""
    msgspec = pytest.importorskip("msgspec")

    class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
        pass

    class BlockStored(KVCacheEvent):
        block_hashes: list[bytes | int]
        parent_block_hash: bytes | int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list | None = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None
        locality: str | None = None
        ownership: str | None = None
        session_id: str | None = None

    class BlockRemoved(KVCacheEvent):
        block_hashes: list[bytes | int]
        medium: str | None
        group_idx: int | None = None
        locality: str | None = None
        ownership: str | None = None

    class AllBlocksCleared(KVCacheEvent):
        pass

    class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
        ts: float
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]
        data_parallel_rank: int | None = None

    decoder, seen = msgspec.msgpack.Decoder(KVEventBatch), set()

    def decode(payload):
        batch = decoder.decode(payload)
        seen.update(type(e).__name__ for e in batch.events)
        return batch.ts, [{"type": type(e).__name__, **{f: getattr(e, f) for f in e.__struct_fields__}} for e in batch.events]

    daemon = running()
    with daemon.client() as c, Relay(daemon, "--block-size", "16") as relay, relay.subscriber() as s:
        s.decode = decode
        ns = c.namespace("n")
        put_all(c, ns, items("vllm", 5, 1000), ack=Ack.WRITTEN)
        agrees(s, daemon)
        c.evict(ns, [items("vllm", 1, 1000)[0][0]])
        agrees(s, daemon)
        s.last = 0
        s.replay()
        agrees(s, daemon)
        assert seen == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
