# SPDX-License-Identifier: Apache-2.0
"""events: after any history, the index that a subscriber builds from events and snapshots must be what the daemon lists.

A history is up to 120 steps: puts, gets, evicts, purges, namespaces removed and made again, restarts, kill -9, and reads of the subscriber,
which may lose its connection. In a tenth of the histories it sleeps through all of it. The store is so small that chunks are evicted, and the
ring so small that there are gaps. Where kvcache-events is built, a second subscriber follows it by vLLM's wire form alone."""

import subprocess

import harness
from follower import Follower, History, SMALL_STORE, listed, same
from harness import BUILD, wait_until
from kvwire import Tier
from oracle import Finding
from zmtp import Subscriber

LEG = harness.Leg("campaign", deprive=[harness.die_with_parent])
RINGS = (1024, 4096, 16384, 1 << 20)  # bytes: 16 events to more than a history has
PROGRAM = BUILD / "client" / "events" / "kvcache-events"
PORTS = 25570


class Sleeper:
    """A subscriber that does not read before the end."""

    def step(self):
        pass

    catch_up = close = step


class Campaign:
    LIFE = 20

    def __init__(self, directory, life, facts):
        self.facts = facts
        self.daemon = harness.Daemon(directory, LEG, {"events.ring": RINGS[life % len(RINGS)], "log.level": "info", **SMALL_STORE})
        self.daemon.start()
        self.relay = self.subscriber = None
        if PROGRAM.exists():
            # each process of campaigns has ports of its own
            self.ports = tuple(PORTS + 2 * (self.daemon.pid % 3500) + i for i in (0, 1))
            self.relay = subprocess.Popen([str(PROGRAM), "-s", self.daemon.socket, "--buffer", "50", "-e", f"tcp://127.0.0.1:{self.ports[0]}",
                                           "-r", f"tcp://127.0.0.1:{self.ports[1]}"], stderr=subprocess.DEVNULL, preexec_fn=harness.die_with_parent)
            wait_until(self.subscribe, "kvcache-events listens")

    def subscribe(self):
        try:
            self.subscriber = Subscriber(*self.ports)
        except ConnectionRefusedError:
            return False
        return True

    def agrees(self):
        def same_list():
            self.subscriber.read(0.03)
            return self.subscriber.by_name() == {name: {k: int(t & Tier.ALL) for k, t in chunks.items()}
                                                 for name, chunks in listed(self.daemon).items()}
        wait_until(same_list, "the index of the subscriber to kvcache-events is the list", 20)

    def run(self, rng, left):
        with Follower(self.daemon.client, count=rng.choice((1, 7, 64, 1024))) as follower:
            history = History(self.daemon, rng, Sleeper() if rng.random() < 0.1 else follower)
            for _ in range(rng.randrange(10, 120)):
                history.step()
                if self.subscriber and rng.random() < 0.2:
                    self.subscriber.read(0.001)
                if self.subscriber and rng.random() < 0.02:
                    self.subscriber.reconnect()
            history.follower = follower
            try:
                history.end()
                if self.subscriber:
                    self.agrees()
            except AssertionError as e:
                raise Finding("wrong", str(e)[:2000]) from e
            same(follower, self.daemon)
            self.facts.add("events", follower.events)
            self.facts.add("gaps", follower.gaps)
            if self.subscriber:
                self.facts["by kvcache-events"] = self.facts.get("by kvcache-events", 0) + 1
        return 1

    def end(self):
        self.stop_relay()
        self.daemon.clean_up()

    def stop_relay(self):
        if self.subscriber:
            self.subscriber.close()
        if self.relay:
            self.relay.kill()
            self.relay.wait()
        self.relay = self.subscriber = None

    def stop(self):
        self.stop_relay()
        self.daemon.discard()
