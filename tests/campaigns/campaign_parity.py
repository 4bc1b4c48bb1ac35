# SPDX-License-Identifier: Apache-2.0
"""parity: performs the same job with every I/O method, which must give the same answers (rule R5).

The legs are those of the daemon tests, and io_uring without restrictions, also without DEFER_TASKRUN and SINGLE_ISSUER: strace makes the
first calls of io_uring_setup() in each thread fail for that. A leg that is not available on this host is named with the reason and does not
count. One run is one seed on all legs. Afterwards, a client of another tenant must find none of the job's bytes in any memory that it can
see (marks.py)."""

import shutil

import harness
import marks
from job import SETTINGS, Job, differences
from oracle import Finding

# Features that the ring must not have, and number of failing calls.
FEWER = {harness.Leg("unrestricted ring", settings={"io.backend": "io_uring"}): ("RESTRICTED", 1),
         harness.Leg("plain ring", settings={"io.backend": "io_uring"}): ("DEFER_TASKRUN", 2)}


def plain_ring_why_not():
    return "there is no strace" if not shutil.which("strace") else None if harness.has_io_uring() else "no io_uring here"


class Campaign:
    LIFE = 1
    told = False

    def __init__(self, directory, life, facts):
        self.directory, self.seed, self.facts, self.number, self.daemon = directory, life, facts, 0, None

    def on(self, leg):
        own = self.directory / leg.name.replace(" ", "-")
        own.mkdir(mode=0o755)
        config = marks.onlooker_config(own)
        self.daemon = daemon = harness.Daemon(own, leg, dict(SETTINGS, **{"listen.mode": "0666"}), config=config)
        if leg in FEWER:
            daemon.prefix = ["strace", "-D", "-f", "-qq", "-o", "/dev/null", "-e", "trace=io_uring_setup", "-e",
                             f"inject=io_uring_setup:error=EINVAL:when=1..{FEWER[leg][1]}"]
            # LeakSanitizer does not work in a traced process.
            daemon.env["ASAN_OPTIONS"] = "exitcode=99:detect_leaks=0"
        daemon.start()
        io = daemon.populated_status()["io"]
        if leg in FEWER and FEWER[leg][0] in io["ring_flags"]:
            raise Finding("wrong", f"{leg.name}: the ring has {io['ring_flags']}")
        leg.check(io)
        job = Job(self.seed, durable=not leg.base)
        seen = job.run(daemon)
        if config:
            marks.look_on(daemon, ["job"], job.keys(), leg.name, self.facts)
        daemon.clean_up()
        self.daemon = None
        if job.bad:
            raise Finding("wrong", f"{leg.name}: {job.bad[0]}")
        self.facts.add(f"on {leg.name}")
        return seen

    def run(self, rng, left):
        first = None
        for leg in harness.LEGS + list(FEWER):
            reason = plain_ring_why_not() if leg in FEWER else leg.why_not()
            if reason:
                if not Campaign.told:
                    print(f"skipped: {leg.name}: {reason}", flush=True)
                continue
            seen = self.on(leg)
            if first is None:
                first = leg.name, seen
            elif differences(first[1], seen):
                raise Finding("wrong", f"{first[0]} and {leg.name} differ: {differences(first[1], seen)}")
        Campaign.told = True
        return 1

    def end(self):
        pass

    def stop(self):
        if self.daemon is not None:
            try:
                self.daemon.clean_up()
            except AssertionError as e:
                print(e)
