# SPDX-License-Identifier: Apache-2.0
"""The mode --fleet of the traffic benchmark: several engines on one host, and a router that sends each turn of a session to a random engine.

The engines of an arm with a daemon share it. Those of other arms have an equal part of the memory each, so that all arms have the same bytes.
Engines take turns on the GPUs of the host. One of them may be killed in the middle: its requests go to the others, and it starts again.
"""

import json
import os
import random
import time

import traffic_report
import traffic_run


class Member(traffic_run.Run):
    """One engine of the fleet, which gets its requests through a named pipe."""

    def __init__(self, fleet, number, place):
        host, options = fleet.host, fleet.options
        name = f"{fleet.arm}-{fleet.number}-engine{number}"
        self.place, self.inside, self.taken, self.is_killed = place, {}, 0, False
        self.path = host.scratch / f"{name}-requests"
        os.mkfifo(self.path)
        self.pipe = os.open(self.path, os.O_RDWR)  # opened so, it waits for no reader
        job = options.job(fleet.arm, fleet.number, place)
        sharers = -(-options.fleet // options.gpus)
        job.update(label=name, env=dict(CUDA_VISIBLE_DEVICES=str(number % options.gpus)), gpu_share=options.gpu_share / sharers,
                   kv_bytes=options.kv_bytes(), load=dict(job["load"], kind="routed", requests=str(self.path)))
        if not options.has_daemon(fleet.arm) or options.kind_of(fleet.arm) == "tier":
            job["cpu_bytes"] //= options.fleet
        super().__init__(host, options, job, fleet.limit_s)

    def has_started(self):
        return len(self.seen.began) > self.is_killed

    def send(self, session, turn):
        self.inside[session] = turn
        os.write(self.pipe, json.dumps([session, turn]).encode() + b"\n")

    def finish(self):
        os.write(self.pipe, b"null\n")

    def answers(self):
        """Returns the answers since the last call."""
        new, self.taken = self.seen.answers[self.taken:], len(self.seen.answers)
        for answer in new:
            self.inside.pop(answer["session"], None)
        return new

    def kill(self):
        """Kills the engine, and returns the requests that it had."""
        self.end()
        lost, self.inside = dict(self.inside), {}
        self.is_killed = True
        os.close(self.pipe)
        self.path.unlink()
        os.mkfifo(self.path)
        self.pipe = os.open(self.path, os.O_RDWR)
        return lost

    def close(self):
        self.end()
        os.close(self.pipe)


class Fleet:
    """The engines of one run of an arm. run() returns its row."""

    def __init__(self, host, options, arm, number, limit_s):
        self.host, self.options, self.arm, self.number, self.limit_s = host, options, arm, number, limit_s
        self.deadline, self.places, self.members = time.monotonic() + limit_s, [], []
        self.random, self.waiting, self.turns = random.Random(options.seed + number), [], {}
        self.fresh = iter(range(options.sessions))
        self.killed_at = self.back_at = None

    def _start(self):
        for number in range(self.options.fleet):
            if not self.places or not self.options.has_daemon(self.arm):
                self.places.append(traffic_run.Place(self.host, self.options, self.arm, f"{self.arm}-{self.number}-place{number}"))
            self.members.append(Member(self, number, self.places[-1]))
        for member in self.members:
            member.start()
        while not all(member.has_started() for member in self.members):
            self._look()

    def _look(self):
        """Reads the events of each engine. Raises RuntimeError if an engine has ended too early."""
        for member in self.members:
            outcome = member.look()
            if outcome is not None:
                raise RuntimeError(f"{member.job['label']} {outcome}")
        time.sleep(0.005)

    def _next(self):
        """Appends the next session to the queue, if there is one."""
        session = next(self.fresh, None)
        if session is not None:
            self.turns[session] = 0
            self.waiting.append((0.0, session))

    def _send(self):
        now, ready = time.monotonic(), [m for m in self.members if m.has_started()]
        for entry in [w for w in self.waiting if w[0] <= now and ready]:
            self.waiting.remove(entry)
            self.random.choice(ready).send(entry[1], self.turns[entry[1]])

    def _take(self):
        for member in self.members:
            for answer in member.answers():
                session = answer["session"]
                self.turns[session] += 1
                if self.turns[session] < self.options.turns:
                    self.waiting.append((time.monotonic() + self.options.think, session))
                else:
                    self._next()

    def _maybe_kill(self, began_at):
        options, victim = self.options, self.members[-1]
        if options.kill_at is None:
            return
        if self.killed_at is None and time.monotonic() > began_at + options.kill_at:
            self.killed_at = time.monotonic()
            self.waiting += [(0.0, session) for session in victim.kill()]
            victim.start()
        elif self.killed_at and self.back_at is None and victim.has_started():
            self.back_at = time.monotonic()

    def _traffic(self):
        began_at = time.monotonic()
        for _ in range(self.options.concurrency):
            self._next()
        while self.waiting or any(member.inside for member in self.members):
            self._maybe_kill(began_at)
            self._send()
            self._look()
            self._take()
        seconds = time.monotonic() - began_at
        while self.killed_at and self.back_at is None:
            self._maybe_kill(began_at)
            self._look()
        for member in self.members:
            member.finish()
        while not all(member.seen.ended for member in self.members):
            for member in self.members:
                member.look()
            if time.monotonic() > self.deadline:
                raise RuntimeError("the engines did not end")
            time.sleep(0.01)
        return seconds

    def run(self):
        began = time.monotonic()
        row = dict(arm=self.arm, round=self.number, variant=f"{self.options.fleet} engines", outcome="", engine=self.options.engine)
        try:
            self._start()
            row.update(seconds=self._traffic())
            row.update(self._figures(), outcome="ok" if self.killed_at or self.options.kill_at is None else
                       "not measured: the traffic ended before the engine was killed")
        except (OSError, RuntimeError) as problem:
            row["outcome"] = f"not finished: {problem}"
        finally:
            for member in self.members:
                member.close()
            self.host.remove_regions()
            for place in self.places:
                place.close()
            traffic_run.keep_logs(self.host, self.options, ended=f"{self.arm}-{self.number}-")
        return dict(row, took_s=time.monotonic() - began)

    def _figures(self):
        answers = [answer for member in self.members for answer in member.seen.answers]
        row = traffic_report.figures_of(answers, self.options.longest_wait)
        asked = sum(len(set(member.seen.asked)) for member in self.members)
        row.update(version=self.members[0].seen.engine, start_s=max(member.seen.starts[0] for member in self.members),
                   unanswered=self.options.requests() - len(answers), asked_again=asked - len(answers),
                   answers=[traffic_run.compact(answer) for answer in answers],
                   learned={f"engine{n}": (member.seen.ended or {}).get("learned") for n, member in enumerate(self.members)})
        for place in self.places:
            row.update(place.figures())
        if self.killed_at:
            others = [a for member in self.members[:-1] for a in member.seen.answers]
            there = [a for a in others if a["ended_at"] > self.killed_at and a["asked_at"] < self.back_at]
            after = [a for a in self.members[-1].seen.answers if a["asked_at"] > self.back_at]
            row.update(down_s=self.back_at - self.killed_at, fault_requests=len(there), others_failed=sum(not a["ok"] for a in others),
                       fault_longest_ms=max((a["longest_ms"] for a in there), default=None),
                       after_kill=dict(requests=len(after), cached_tokens=sum(a["cached"] for a in after), prompt_tokens=sum(a["prompt"] for a in after)))
        return row


def run(driver):
    """Runs the rounds of all arms, which take turns, within the driver's budget."""
    options = driver.options
    for number in range(options.rounds):
        first = number % len(options.arms)
        for arm in options.arms[first:] + options.arms[:first]:
            label = f"{arm}-fleet-{number + 1}"
            if not driver.has_time(arm, label):
                continue
            driver.say(f"{label} ...")
            row = Fleet(driver.host, options, arm, number + 1, driver.limit()).run()
            driver.add(row, label)
            if "after_kill" in row:
                warm = row["after_kill"]
                driver.remark(f"{label}: one engine was killed, and back after {row['down_s']:.1f} s; of the requests of the others {row['others_failed']}"
                              f" failed, and the longest wait was {row['fault_longest_ms'] or 0:.0f} ms; the engine that started again found"
                              f" {warm['cached_tokens']:,} of the {warm['prompt_tokens']:,} tokens of its {warm['requests']} requests",
                              wrong=row["others_failed"] > 0)


def add_options(group):
    group.add_argument("--fleet", type=int, metavar="N", help="N engines at once, over which a router spreads the turns of sessions at random")
    group.add_argument("--gpus", type=int, default=1, metavar="G", help="GPUs over which the engines of --fleet take turns (1)")
