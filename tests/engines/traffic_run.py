# SPDX-License-Identifier: Apache-2.0
"""Runs one arm of the traffic benchmark: makes its daemon and engine, watches the run, and injects faults in the middle of the traffic."""

import contextlib
import pathlib
import shutil
import signal
import time

import traffic_host
import traffic_report

DAEMON_ARMS = ("spec", "tier", "lmcache-tier")
TIERED_ARMS = ("tier", "lmcache-tier")  # the engine's side has memory of its own, too


class Place:
    """The part of the host that an arm uses: a daemon or a folder of files, and a memory cgroup. close() removes it."""

    def __init__(self, host, options, arm, name):
        self.host, self.daemon, self.limit = host, None, None
        self.files = host.scratch / f"{name}-files"
        self.files.mkdir()
        try:
            if options.cgroup:
                self.limit = traffic_host.MemoryLimit(options.cgroup, f"{host.scratch.name[-8:]}-{name}")
            self.cgroup = self.limit.procs if self.limit else ""
            if options.has_daemon(arm):
                self.daemon = traffic_host.Daemon(host, name, options.pool_of(arm), options.store,
                                                  options.cpu_of(arm) + (8 << 30) * (options.fleet or options.tp), options.settings_of(arm), self.cgroup)
                self.daemon.start()
        except BaseException:
            self.close()
            raise
        self.count_from_now()

    def count_from_now(self):
        self.disk = traffic_host.disk_counters(self.host.scratch)

    def figures(self):
        """Returns the daemon's report, what the disk has counted since count_from_now(), and what the memory cgroup has since it was made."""
        read, written = (after - before for before, after in zip(self.disk, traffic_host.disk_counters(self.host.scratch)))
        known = dict(disk_read_mb=read / 1e6, disk_written_mb=written / 1e6)
        if self.limit:
            memory = self.limit.figures()
            known.update(memory=memory, memory_mb=memory["highest_bytes"] / 1e6 if memory.get("highest_bytes") else None)
        if self.daemon:
            known.update(status=self.daemon.status_text(), status_json=self.daemon.status(), daemon_log=traffic_host.tail(self.daemon.log, 3))
        return known

    def close(self):
        if self.daemon:
            self.daemon.close()
        shutil.rmtree(self.files, ignore_errors=True)
        if self.limit:
            self.limit.close()


class Seen:
    """The events of a run, of all engines that it had."""

    def __init__(self):
        self.starts, self.began, self.asked, self.answers = [], [], [], []
        self.ended, self.failed, self.engine, self.last_at = None, "", "", time.monotonic()

    def take(self, event):
        self.last_at = time.monotonic()
        kind = event.pop("event")
        if kind == "started":
            self.starts.append(event["seconds"])
            self.engine = event["engine"]
        elif kind == "began":
            self.began.append(event["at"])
        elif kind == "asked":
            self.asked.append(event["name"])
        elif kind == "answered":
            self.answers.append(event)
        elif kind == "ended":
            self.ended = event
        elif kind == "failed":
            self.failed = event["reason"]

    def turns(self):
        """Returns how many turns of each session were answered."""
        turns = {}
        for answer in self.answers:
            turns[answer["session"]] = max(turns.get(answer["session"], 0), answer["turn"] + 1)
        return turns

    def seconds(self):
        return self.ended["at"] - self.began[0] if self.ended else None


class Run:
    """Runs the engine of a job until its load ends, a limit is reached, or it dies. A meddler is called again and again meanwhile."""

    def __init__(self, host, options, job, limit_s, meddler=None):
        self.host, self.options, self.job, self.meddler = host, options, job, meddler
        self.deadline = time.monotonic() + limit_s
        self.seen, self.process, self.down_s = Seen(), None, None

    def start(self, **load):
        self.process = self.host.engine(dict(self.job, load=dict(self.job["load"], **load)))
        self.seen.last_at = time.monotonic()

    def restart(self):
        """Kills the engine and starts another one, which continues the sessions. Requests that were in flight are sent again."""
        self.end()
        self.host.remove_regions()
        self.start(answered=self.seen.turns())

    def _take(self):
        for event in self.process.events():
            self.seen.take(event)

    def is_over(self):
        return self.process.ended()

    def look(self):
        """Returns the outcome once the run is over: ok, or what went wrong; None before that."""
        over = self.is_over()  # asked before the events are read: none can follow
        self._take()
        if over:
            return self._outcome()
        if self.meddler:
            self.meddler.look(self)
        self._watch()
        if time.monotonic() > self.deadline:
            self._stack()
            return f"not finished: time limit, {len(self.seen.answers)} of {len(self.seen.asked)} requests answered"
        return None

    def end(self):
        if self.process:
            self.process.kill()
            self._take()

    def go(self):
        """Runs to the end. Returns the outcome."""
        self.start()
        try:
            while (outcome := self.look()) is None:
                time.sleep(0.01)
            return outcome
        finally:
            self.end()

    def _watch(self):
        silent_s = time.monotonic() - self.seen.last_at
        if self.seen.began and silent_s > self.options.silence and not self.process.stacked:
            print(f"  {self.job['label']}: silent for {silent_s:.0f} s, stacks of all threads are in the log", flush=True)
            self.process.stacks()

    def _stack(self):
        """Asks for the stacks, and gives the process a second to print them."""
        self.process.stacks()
        until = time.monotonic() + 1
        while time.monotonic() < until and not self.process.ended():
            time.sleep(0.05)

    def _outcome(self):
        if self.seen.ended:
            return "ok"
        kind = "not finished" if self.seen.began else "did not start"
        return f"{kind}: {self.seen.failed or f'the engine ended with {self.process.status}'}"

    def figures(self):
        seen = self.seen
        figures = traffic_report.figures_of(seen.answers, self.options.longest_wait)
        ended = seen.ended or {}
        return dict(figures, engine=self.job["engine"], version=seen.engine, start_s=seen.starts[0] if seen.starts else None,
                    starts_s=seen.starts, seconds=seen.seconds(), down_s=self.down_s, asked_again=len(seen.asked) - len(set(seen.asked)),
                    unanswered=len(set(seen.asked)) - len(seen.answers), longest_step_ms=ended.get("longest_step_ms"),
                    learned=ended.get("learned"))


# --- meddlers: kills and faults in the middle of the traffic ---


class Kill:
    """Kills the engine `at` seconds after its traffic began, and starts it again."""

    def __init__(self, at):
        self.at, self.killed_at, self.remark = at, None, "the traffic ended before the engine was killed"

    def look(self, run):
        began = run.seen.began
        if self.killed_at is None and began and time.monotonic() > began[0] + self.at and not run.seen.ended:
            self.killed_at = time.monotonic()
            run.restart()
        if self.killed_at and len(began) > 1 and run.down_s is None:
            run.down_s, self.remark = began[1] - self.killed_at, ""

    def finish(self):
        """Does nothing, because a kill of the engine needs no cleanup."""

    def figures(self, run):
        return {}


class Fault:
    """Kills, stops or fills the daemon in the middle of the traffic, for some seconds."""

    def __init__(self, kind, place, options):
        self.kind, self.place, self.options = kind, place, options
        self.began_at = self.ended_at = self.filler = None
        self.remark, self.notes = "the traffic ended before the daemon's fault", {}

    def _is_time(self, run):
        if not run.seen.began:
            return False
        if self.options.fault_at is not None:
            return time.monotonic() > run.seen.began[0] + self.options.fault_at
        return len(run.seen.answers) >= self.options.requests() // 2

    def look(self, run):
        if self.began_at is None and self._is_time(run) and self.begin():
            self.began_at, self.remark = time.monotonic(), ""
        elif self.began_at and self.ended_at is None and time.monotonic() > self.began_at + self.options.fault_seconds:
            self.finish()

    def begin(self):
        """Begins the fault. Returns whether the daemon has it, which takes a while to fill it."""
        daemon = self.place.daemon
        if self.kind == "kill":
            daemon.kill()
        elif self.kind == "hang":
            daemon.signal(signal.SIGSTOP)
        elif self.kind == "full":
            self.filler = self.filler or self.place.host.beside(self.log().stem, "fill", daemon.socket)
            return "\nfull: " in f"\n{self.log().read_text()}"
        return True

    def log(self):
        return self.place.host.logs / f"{self.place.daemon.folder.name}-filler.log"

    def finish(self):
        """Ends the fault, also where the traffic ended first."""
        daemon = self.place.daemon
        if self.began_at is None:
            self.place.host.end(self.filler)
        if self.began_at is None or self.ended_at is not None:
            return
        self.ended_at = time.monotonic()
        if self.kind == "kill":
            daemon.start()
            self.ended_at = time.monotonic()  # until it serves again
        elif self.kind == "hang":
            daemon.signal(signal.SIGCONT)
        elif self.kind == "full":
            self.notes["full"] = traffic_host.tail(self.log(), 1)
            self.notes["full_status"] = (daemon.status() or {}).get("pool")
            self.place.host.end(self.filler)

    def figures(self, run):
        """Returns the waits of the requests that were under way while the fault lasted."""
        self.finish()
        if self.began_at is None:
            return {}

        there = [a for a in run.seen.answers if a["ended_at"] > self.began_at and a["asked_at"] < self.ended_at]
        return dict(self.notes, fault_s=self.ended_at - self.began_at, fault_requests=len(there),
                    fault_longest_ms=max((a["longest_ms"] for a in there), default=None))


def compact(answer):
    """Returns what the report keeps of a request: its waits, without each token."""
    rounded = {key: None if answer[key] is None else round(answer[key], 1) for key in ("first_ms", "longest_ms")}
    return dict(rounded, answer=len(answer["tokens"]), **{key: answer[key] for key in ("session", "turn", "prompt", "cached", "ok", "reason")})


def run_one(host, options, arm, number, limit_s, *, name, place=None, meddler_of=None, job=None, load=None, variant="", standing=None):
    """Runs an arm once, in a new engine or in one that stays. Returns its row and the answers. Without a place the arm gets one of its own."""
    began, meddler, run = time.monotonic(), None, None
    place = standing.place if standing else place
    own = place is None
    row = dict(arm=arm, round=number, variant=variant, outcome="", engine=options.engine)
    try:
        place = place or Place(host, options, arm, name)
        place.count_from_now()
        meddler = meddler_of(place) if meddler_of else None
        full = dict(options.job(arm, number, place), label=name, **(job or {}))
        full["load"] = dict(full["load"], **(load or {}))
        limit_s -= time.monotonic() - began
        run = standing.run(full, limit_s, meddler) if standing else Run(host, options, full, limit_s, meddler)
        row["outcome"] = run.go()
        row.update(run.figures(), answers=[compact(answer) for answer in run.seen.answers])
        if meddler:
            row.update(meddler.figures(run))
            if meddler.remark and row["outcome"] == "ok":
                row["outcome"] = f"not measured: {meddler.remark}"
        row.update(place.figures())
    except (OSError, RuntimeError) as problem:
        row["outcome"] = f"not run: {problem}"
    finally:
        if meddler:
            meddler.finish()
        host.remove_regions()
        if own and place is not None:
            place.close()
        if not standing:
            keep_logs(host, options, ended=f"{name}-" if own else None)
    row["took_s"] = time.monotonic() - began
    return row, run.seen.answers if run else []


def keep_logs(host, options, ended=None):
    """Appends the ends of the logs to one file in the output folder, which stays small enough to be copied. Removes logs of engines, whose names
    begin with a number, and those of a place that has `ended`."""
    kept = pathlib.Path(options.out) / "logs.txt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with open(kept, "ab") as out:
        for log in sorted(host.logs.glob("*.log")):
            with contextlib.suppress(OSError), open(log, "rb") as file:
                size = log.stat().st_size
                if size and out.tell() < options.log_bytes:
                    file.seek(max(0, size - options.log_bytes // 16))
                    out.write(f"\n##### {log.name}, {size} bytes\n".encode() + file.read())
                if log.name[0].isdigit() or (ended and log.name.startswith(ended)):
                    log.unlink()
