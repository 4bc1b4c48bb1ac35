#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Campaigns against the daemon as a process: the daemon, or its clients, are killed repeatedly.

    daemon_campaigns.py NAME [--count N] [--seed S] [--build DIR]

kill         kill -9 of the daemon at any moment under mixed load, sometimes again during recovery; an oracle outside of it (oracle.py)
records
             its answers. No wrong byte, nothing lost, no purged key back, ready in 2 s.
admin        purges, evicts, puts and gets while volumes are suspended and resumed, files fail, the store is full, and the daemon is stopped
             or killed: dropped keys stay dropped, written ones are there, bytes are right.
clientkill   clients killed at any moment with leases, staging areas and requests in flight: all of it is free within 100 ms.
settled      the daemon killed, or stopped and then killed, during gets into staging areas: once the lock of the liveness file is free,
client
             memory no longer changes.
parity       the same job with every I/O method gives the same answers.
filesystems  the same job on stores on several file systems, on loop devices.
hostile      clients that attack in every way that the protocol and shared memory offer: no foreign byte, nothing ends.
flood        as many connections as runs, some of them busy: only quotas refuse, and a polite client waits little longer.
fairness     each operation at full rate, by sixteen sessions of one user: another user's hits and puts hardly notice.
slow         clients that trickle or never read, on the socket and over HTTP: a good client hardly notices.
overload     ten times the pool's capacity, for a second per run: bounded memory, every request answered, busy ones counted.
cost         each operation at volume, unread, idle, half closed and killed: charges cover the resources used.
environment  the world around the store changes while a client puts (directory moved, file cut, disk full, clock set): each loss is reported.
restart      a store of five million entries is ready two seconds after kill -9.
events       a subscriber's index is what the daemon lists, after requests, kills, lost connections and sleeps.

The last line is "campaign NAME: N runs, N wrong, N lost, N hung"; the exit status is 0 if nothing was found. The first finding ends a
campaign: the finding and the seed are printed, and the daemon's folder is kept. Moments are times, so a seed reproduces the requests and
the kind of moment, but not the microsecond.

Several runs share a store, a *life*: the findings of a run depend on what the earlier ones left. Life n of a campaign has the seed S + n,
and the command that repeats a life with a finding is printed."""

import argparse

import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "daemon"))

NAMES = {name: f"campaign_{name}" for name in ("kill", "admin", "clientkill", "settled", "parity", "filesystems", "restart",
                                               "hostile", "flood", "fairness", "slow", "overload", "cost", "environment", "events")}


class Facts(dict):
    """Numbers to print at the end: counts are summed, for `most_` the maximum is kept."""

    def add(self, name, value=1):
        self[name] = max(self.get(name, 0), value) if name.startswith("most_") else self.get(name, 0) + value

    def merge(self, other):
        for name, value in other.items():
            self.add(name, value)

    def __str__(self):
        return ", ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in sorted(self.items()))


def main():
    parser = argparse.ArgumentParser(prog="daemon_campaigns.py")
    parser.add_argument("name", choices=sorted(NAMES))
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", help="the build folder (default: $KVCACHE_BUILD, build-test)")
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error("--count: at least 1")
    if arguments.build:
        os.environ["KVCACHE_BUILD"] = os.path.abspath(arguments.build)

    import harness
    from oracle import Finding
    if not harness.DAEMON.exists():
        parser.error(f"{harness.DAEMON} is missing: --build must name a build folder")
    campaign = __import__(NAMES[arguments.name]).Campaign

    facts, found, runs = Facts(), {"wrong": 0, "lost": 0, "hung": 0}, 0
    base = pathlib.Path(tempfile.mkdtemp(prefix="kvcache-test-", dir=os.environ.get("KVCACHE_TEST_DIR", "/var/tmp")))
    os.chmod(base, 0o755)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up as after an interrupt
    began = reported = time.monotonic()
    life, made = arguments.seed, None
    try:
        while runs < arguments.count:
            directory = base / f"life{life}"
            directory.mkdir(mode=0o755)
            made = campaign(directory, life, facts)
            try:
                for number in range(campaign.LIFE):
                    if runs >= arguments.count:
                        break
                    made.number = number
                    runs += made.run(random.Random(f"{life}:{number}"), arguments.count - runs)
                    if time.monotonic() - reported > 10:
                        reported = time.monotonic()
                        print(f"{runs} runs in {reported - began:.0f} s: {facts}", flush=True)
                made.end()
            finally:
                made.stop()
            shutil.rmtree(directory)
            life += 1
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(base, ignore_errors=True)
        raise
    except Finding as finding:
        found[finding.kind] += 1
        print(f"FOUND seed {life}:{made.number}: {finding}")
    except Exception:
        found["wrong"] += 1
        traceback.print_exc(file=sys.stdout)
        print(f"FOUND seed {life}:{made.number if made else 0}")
    clean = not any(found.values())
    if clean:
        shutil.rmtree(base, ignore_errors=True)
    else:
        runs += 1
        print(f"again: daemon_campaigns.py {arguments.name} --seed {life} --count {campaign.LIFE}; kept: {base}")
    print(f"facts: {facts}; {time.monotonic() - began:.1f} s")
    print(f"campaign {arguments.name}: {runs} runs, {found['wrong']} wrong, {found['lost']} lost, {found['hung']} hung")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
