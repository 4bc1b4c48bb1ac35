#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The traffic benchmark: runs an engine with many concurrent sessions and CUDA graphs, with each of several ways to offload, and prints a table.

    traffic.py --pack PACK --site SITE [--arms cpu,spec,tier] [--rounds 3]        rounds of all arms, which take turns
    traffic.py ... --standing                                                     the same with engines that start once, side by side on one GPU
    traffic.py ... --standing --again                                             and once more after kill -9 of all engines, over what they left
    traffic.py ... --kill-at SECONDS                                              the engine is killed in the middle and started again
    traffic.py ... --starts N [--at-once K]                                       N starts beside a process that stores; counts those that serve
    traffic.py ... --sequential N                                                 N requests, one after the other
    traffic.py ... --daemon-fault none,kill,hang,full                             the daemon fails in the middle; measures each request's waits
    traffic.py ... --identity runner|layout|dtype|same                            two engines on one daemon answer as each does without a cache
    traffic.py ... --states --shape linear                                        tokens computed, from the GPU, memory, and disk after kill -9
    traffic.py ... --fleet N [--gpus G] [--kill-at SECONDS]                       N engines share a host; sessions are routed at random

An arm is one way to offload. Arms of vLLM: none; cpu, vLLM's CPU tier; fs, vLLM's tiering with its tier of files; tier, the same with kvcache's
tier; spec, kvcache's offloading spec; lmcache, an LMCache server with memory only; lmcache-gds, with GPUDirect Storage; lmcache-fs, with
LMCache's adapter for files; lmcache-tier, with kvcache's adapter. Arms of SGLang (--engine sglang): none; cpu, HiCache; fs, HiCache with its
file backend; tier, HiCache with kvcache's backend.

PACK is a build folder, or the folder or archive that tests/gpu/pack.sh made of one; it contains the package's wheel and client/ctl/kvcachectl.
SITE is the unpacked engine, as a folder or an archive. The results are in the folder --out: table.md and figures.json, rewritten after each run,
and logs.txt. tests/README.md has the details.

The exit status is 0 if all runs succeeded, 1 if one failed, 2 for a wrong option, an unusable folder or packages that cannot be imported, and 3
if arms were skipped because the budget was spent.
"""

import argparse
import contextlib
import faulthandler
import importlib
import json
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import traffic_fleet  # noqa: E402
import traffic_host  # noqa: E402
import traffic_report  # noqa: E402
import traffic_run  # noqa: E402
import traffic_standing  # noqa: E402
import traffic_states  # noqa: E402
from traffic_shapes import SHAPES  # noqa: E402

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
FAULTS = ("none", "kill", "hang", "full")
DAEMON_SETTING = "set"  # the key of an arm's option that is a setting of its daemon


def size(text):
    """Returns the bytes of a text such as 12GiB."""
    with contextlib.suppress(ValueError):
        return int(float(text[:-3]) * UNITS[text[-3:]]) if text[-3:] in UNITS else int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a size; use a number and KiB, MiB or GiB")


def one_of(*known):
    def listed(text):
        names = text.split(",")
        if wrong := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)} is not known; use {', '.join(known)}")
        return names
    return listed


def setting(text):
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text} is not KEY=VALUE")
    return text


class Options(argparse.Namespace):
    """The options, and what follows from them for an arm."""

    def kind_of(self, arm):
        """Returns the arm of the engine; several may be of one kind, with other options."""
        return self.own.get(arm, (arm, []))[0]

    def has_daemon(self, arm):
        return self.kind_of(arm) in traffic_run.DAEMON_ARMS

    def cpu_of(self, arm):
        return self.tier_memory[0] if self.kind_of(arm) in traffic_run.TIERED_ARMS and self.tier_memory else self.memory

    def pool_of(self, arm):
        return self.tier_memory[1] if self.kind_of(arm) in traffic_run.TIERED_ARMS and self.tier_memory else self.memory

    def requests(self):
        return self.sequential or self.sessions * self.turns

    def load(self, number):
        """Returns the load of a round. Each round has a seed of its own, which is equal in all arms."""
        load = dict(kind="sessions", sessions=self.sessions, concurrency=self.concurrency, turns=self.turns, first=self.first, add=self.add,
                    answer=self.answer, think=self.think, spread=self.think_spread, announce=self.announce,
                    seed=self.seed + number)
        if self.sequential:
            load.update(kind="sequence", requests=self.sequential, sessions=-(-self.sequential // self.turns), trace=self.trace)
        return load

    def job(self, arm, number, place):
        daemon = place.daemon
        return dict(engine=self.engine, arm=self.kind_of(arm), shape=self.shape, models=str(place.host.scratch), policy=self.policy, tp=self.tp,
                    eager=self.eager, gpu_tokens=self.gpu_tokens, gpu_share=self.gpu_share, cpu_bytes=self.cpu_of(arm),
                    socket=daemon.socket if daemon else None, files=str(place.files), cgroup=place.cgroup, extra=self.extra_options(arm),
                    load=self.load(number))

    def _own_options(self, arm):
        return self.own.get(arm, (arm, []))[1]

    def settings_of(self, arm):
        """Returns the settings of an arm's daemon, KEY=VALUE each."""
        return [*self.set, *(text.removeprefix(DAEMON_SETTING + "=") for text in self._own_options(arm) if text.startswith(DAEMON_SETTING + "="))]

    def extra_options(self, arm):
        """Returns the further options of the offloading; values are JSON, or texts where they are not."""
        known = {}
        for key, _, value in (text.partition("=") for text in (*self.extra, *self._own_options(arm))):
            if key == DAEMON_SETTING:
                continue
            try:
                known[key] = json.loads(value)
            except ValueError:
                known[key] = value
        return known

    def kv_bytes(self):
        """Returns the bytes of the cache of one GPU, with room for one more block."""
        return SHAPES[self.shape].cache_bytes(self.gpu_tokens, self.tp)

    def title(self):
        return (f"{self.engine}, {self.shape}: {self.sessions} sessions of {self.turns} turns, {self.concurrency} at a time,"
                f" {self.first} + {self.add} tokens, GPU cache {self.gpu_tokens:,} tokens, memory {traffic_host.mib(self.memory)}" +
                (f", TP {self.tp}" if self.tp > 1 else "") +
                (f", cgroup {traffic_host.mib(self.cgroup)}" if self.cgroup else "") + (", eager" if self.eager else ", CUDA graphs"))


def parser():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    programs = p.add_argument_group("programs and results")
    programs.add_argument("--pack", required=True, help="folder or archive with the daemon, kvcachectl, the library and the wheel")
    programs.add_argument("--site", action="append", default=[],
                          help="folder or archive with the engine's packages; may be repeated (site.tar.xz in the pack, else the Python that runs this)")
    programs.add_argument("--engine", choices=("vllm", "sglang", "stub"), default="vllm", help="stub: an engine without a GPU, for rehearsals")
    programs.add_argument("--out", default="traffic-out", help="folder of the results, created if missing (traffic-out)")
    programs.add_argument("--scratch", help="folder for stores, files and logs while it runs, on the disk to be measured; created if missing")
    programs.add_argument("--no-fork", action="store_true", help="import the engine's packages again for each engine")
    programs.add_argument("--log-bytes", type=size, default=12 << 20, help="largest size of logs.txt (12MiB)")
    what = p.add_argument_group("what is run")
    what.add_argument("--arms", type=lambda text: text.split(","), help="arms of the engine, in their order (cpu,spec,tier);"
                      " NAME=ARM+KEY=VALUE is an arm with options of its own, as those of --extra, or with a setting of its daemon, as set=KEY=VALUE")
    what.add_argument("--rounds", type=int, default=1, help="rounds of all arms; each begins with the next arm (1)")
    what.add_argument("--standing", action="store_true",
                      help="start the engines of all arms side by side, and let them take turns; --daemon-fault then follows the rounds")
    what.add_argument("--again", action="store_true",
                      help="with --standing: kill all engines after the rounds, start others over the same daemons and files, and run the rounds again")
    what.add_argument("--reference", default="cpu", help="the arm that ratios refer to (cpu)")
    what.add_argument("--kill-at", type=float, metavar="SECONDS", 
                      help="run each arm undisturbed, and again with its engine killed so long after its traffic began")
    what.add_argument("--starts", type=int, metavar="N", help="start N engines, which answer two requests each")
    what.add_argument("--at-once", type=int, default=1, metavar="K", help="starts at a time on one GPU (1)")
    what.add_argument("--beside", type=size, default=512 << 20, metavar="SIZE", help="bytes a second that are stored beside the starts (512MiB)")
    what.add_argument("--sequential", type=int, metavar="N", help="N requests, one after the other")
    what.add_argument("--trace", help="a trace whose hash_ids make the prompts of --sequential, such as the conversation trace of Mooncake")
    what.add_argument("--daemon-fault", type=one_of(*FAULTS), metavar="LIST", help="none,kill,hang,full: runs in which the daemon fails")
    what.add_argument("--fault-at", type=float, metavar="SECONDS", help="when the daemon fails; by default when half of the requests are answered")
    what.add_argument("--fault-seconds", type=float, default=8, help="how long the daemon fails (8)")
    what.add_argument("--longest-wait", type=float, default=3, metavar="SECONDS", help="no request may wait longer in a fault (3)")
    what.add_argument("--identity", choices=("runner", "layout", "dtype", "same"),
                      help="how two engines on one daemon differ; same: they do not")
    what.add_argument("--states", action="store_const", const=True, help="compare the tokens of a shape in each state of the cache")
    traffic_fleet.add_options(what)
    load = p.add_argument_group("the load")
    load.add_argument("--shape", default="8b", help=", ".join(SHAPES))
    for name, default in (("sessions", 48), ("concurrency", 16), ("turns", 4), ("first", 4096), ("add", 1024), ("answer", 64), ("seed", 1)):
        load.add_argument(f"--{name}", type=int, default=default, help=f"({default})")
    load.add_argument("--think", type=float, default=0.5, help="seconds between an answer and the next turn (0.5)")
    load.add_argument("--think-spread", type=float, default=0, metavar="SHARE",
                      help="the seconds of --think vary by up to this share, equally in all arms (0)")
    load.add_argument("--announce", action="store_true", help="each request announces when its session returns (vLLM): after its pause of --think, or never")
    host = p.add_argument_group("memory, daemon and engine")
    host.add_argument("--gpu-tokens", type=int, default=65536, help="GPU cache, in tokens (65536)")
    host.add_argument("--memory", type=size, default=40 << 30, help="of the engine's CPU tier, or of the daemon's pool (40GiB)")
    host.add_argument("--tier-memory", metavar="CPU+POOL", help="of the engine's CPU tier and of the daemon in the arm tier (each as --memory)")
    host.add_argument("--store", type=size, default=48 << 30, help="the daemon's store (48GiB)")
    host.add_argument("--cgroup", type=size, metavar="SIZE", help="limit of a memory cgroup for engine, daemon and page cache together")
    host.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="a setting of the daemon")
    host.add_argument("--extra", type=setting, action="append", default=[], metavar="KEY=JSON",
                      help="a key of vLLM's kv_connector_extra_config, of SGLang's options of a storage backend, or of our adapter for LMCache")
    host.add_argument("--policy", default="auto", help="load_policy of our arms (auto)")
    host.add_argument("--tp", type=int, default=1, metavar="N", help="tensor parallel over N GPUs of the machine (1)")
    host.add_argument("--eager", action="store_true", help="no CUDA graphs")
    host.add_argument("--gpu-share", type=float, default=0.85, help="gpu_memory_utilization (0.85)")
    limits = p.add_argument_group("limits")
    limits.add_argument("--budget", type=float, default=560, help="seconds for everything; then the remaining runs are skipped (560)")
    limits.add_argument("--each", type=float, default=140, help="seconds for one run (140)")
    limits.add_argument("--estimate", type=float, default=40, help="seconds that the first run is expected to take (40)")
    limits.add_argument("--silence", type=float, default=20, help="seconds without an event after which stacks are printed (20)")
    return p


def options_of(arguments):
    p = parser()
    options = p.parse_args(arguments, namespace=Options())
    modes = [m for m in ("kill_at", "starts", "daemon_fault", "identity", "states", "fleet") if getattr(options, m) is not None]
    if modes == ["kill_at", "fleet"]:
        modes = ["fleet"]
    if len(modes) > 1 or (options.sequential and modes and modes[0] in ("starts", "identity", "states", "fleet")):
        p.error(f"--{' and --'.join(m.replace('_', '-') for m in modes)} cannot be combined" + (" with --sequential" if len(modes) < 2 else ""))
    if options.again and not options.standing:
        p.error("--again is of --standing alone; --kill-at restarts the engines of other runs")
    if options.standing and (wrong := [m for m in modes if m != "daemon_fault"] + ["tp"] * (options.tp > 1)):
        p.error(f"--standing and --{wrong[0].replace('_', '-')} cannot be combined")
    if options.shape not in SHAPES:
        p.error(f"--shape: {options.shape} is not known; use {', '.join(SHAPES)}")
    if options.tier_memory:
        parts = options.tier_memory.split("+")
        if len(parts) != 2:
            p.error(f"--tier-memory: {options.tier_memory} is not CPU+POOL, such as 20GiB+20GiB")
        try:
            options.tier_memory = [size(part) for part in parts]
        except argparse.ArgumentTypeError as problem:
            p.error(f"--tier-memory: {problem}")
    engine, mode = importlib.import_module(f"traffic_{options.engine}"), modes[0] if modes and not options.standing else ""
    usual = {"starts": ["spec"], "identity": ["spec"], "states": ["spec"], "fleet": ["cpu", "spec"], "daemon_fault": ["spec", "tier"],
             "kill_at": ["cpu", "spec"]}.get(mode, ["cpu", "spec", "tier"])
    options.arms = options.arms or [arm for arm in usual if arm in engine.ARMS] or ["tier"]
    options.own = {}  # by name: the arm, and its own options
    for text in options.arms:
        name, _, what = text.partition("=")
        if what:
            kind, *own = what.split("+")
            options.own[name] = kind, own
    options.arms = [text.partition("=")[0] for text in options.arms]
    if wrong := [part for _, own in options.own.values() for part in own if "=" not in part]:
        p.error(f"--arms: {', '.join(wrong)} is not KEY=VALUE")
    if wrong := [text for arm in options.arms for text in options.settings_of(arm) if "=" not in text]:
        p.error(f"--arms: set={wrong[0]} is not set=KEY=VALUE")
    if options.announce and options.engine == "sglang":
        p.error("--announce: SGLang passes no announcement to its back end; use --engine vllm")
    if wrong := [options.kind_of(arm) for arm in options.arms if options.kind_of(arm) not in engine.ARMS]:
        p.error(f"--arms: {', '.join(wrong)} is not known to the engine {options.engine}; use {', '.join(engine.ARMS)}")
    if options.identity and options.identity not in engine.OTHERS:
        p.error(f"--identity: {options.identity} is not known to the engine {options.engine}; use {', '.join(engine.OTHERS)}")
    if mode in ("starts", "daemon_fault", "identity", "states") and (wrong := {arm for arm in options.arms if not options.has_daemon(arm)}):
        p.error(f"--{mode.replace('_', '-')}: {', '.join(sorted(wrong))} has no daemon; use --arms"
                f" {' or '.join(arm for arm in engine.ARMS if arm in traffic_run.DAEMON_ARMS)}")
    return options


def check_places(options):
    """Creates the folders of the results and of the files of the run. Ends the program if one cannot be written to, or the trace not read."""
    for name, folder in (("out", options.out), ("scratch", options.scratch)):
        try:
            if folder:
                pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()
        except OSError as problem:
            parser().error(f"--{name}: {folder} cannot be used: {problem.strerror}; use a folder that can be written to")
    try:
        if options.trace:
            open(options.trace, "rb").close()
    except OSError as problem:
        parser().error(f"--trace: {options.trace} cannot be read: {problem.strerror}")


class Driver:
    """Runs what the options ask for, within the budget, and keeps the rows."""

    def __init__(self, options):
        self.options, self.began = options, time.monotonic()
        self.rows, self.remarks, self.skipped, self.wrong = [], [], 0, 0
        self.took, self.failed_starts, self.host, self.engines = [], {}, None, {}
        self.said = {}  # the answers of each round's first run

    def left(self):
        return self.options.budget - (time.monotonic() - self.began)

    def say(self, text):
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)

    def remark(self, text, wrong=False):
        self.remarks.append(text)
        self.wrong += wrong
        self.say(text)

    def expected_s(self, arm):
        """Returns the estimated seconds of another run of an arm, from its earlier runs or those of other arms. The very first run of all does
        not count, because it reads vLLM from disk and compiles kernels."""
        others = [seconds for _, seconds in self.took]
        own = [seconds for one, seconds in self.took[1:] if one == arm]
        return max(own or others[1:] or [self.options.estimate])

    def has_time(self, arm, label):
        """Returns whether another run fits into the budget."""
        expected = self.expected_s(arm)
        if self.left() > expected + 5:
            return True
        self.skipped += 1
        self.remark(f"{label} skipped: {self.left():.0f} s of {self.options.budget:.0f} s are left, and a run takes {expected:.0f} s")
        return False

    def limit(self):
        return min(self.options.each, self.left() - 5)

    def one(self, arm, number, label, **how):
        """Runs an arm once, unless there is no time for it. Returns its answers, or None."""
        if self.failed_starts.get(arm, 0) >= 2:
            self.skipped += 1
            self.remark(f"{label} skipped: {arm} did not start twice")
            return None
        if self.options.standing and (arm not in self.engines or not self.engines[arm].is_alive()):
            self.skipped += 1
            self.remark(f"{label} skipped: the engine of {arm} is not there any more", wrong=True)
            return None
        if not self.has_time(arm, label):
            return None
        self.say(f"{label} ...")
        how.setdefault("standing", self.engines.get(arm))
        row, answers = traffic_run.run_one(self.host, self.options, arm, number, self.limit(), name=label, **how)
        if self.must_not_fork(row, label):
            row, answers = traffic_run.run_one(self.host, self.options, arm, number, self.limit(), name=label, **how)
        self.add(row, label)
        return answers

    def must_not_fork(self, row, label):
        """Returns whether a forked engine could not use CUDA. No engine is forked from then on."""
        if self.host.server is None or not row["outcome"].startswith("did not start") or not (
                "forked subprocess" in row["outcome"] or "initialization error" in row["outcome"]):
            return False
        self.remark(f"{label} again, in a new process: a forked engine cannot use CUDA here")
        self.host.stop_forking()
        return True

    def add(self, row, label):
        self.rows.append(row)
        self.took.append((row["arm"], row["took_s"]))
        self.failed_starts[row["arm"]] = self.failed_starts.get(row["arm"], 0) + row["outcome"].startswith("did not start")
        failed = row.get("failed") or row.get("unanswered") or 0
        self.wrong += row["outcome"] != "ok" or bool(failed)
        self.say(f"{label}: {row['outcome']}" + "".join(
            f", {head} {traffic_report.cell(row.get(key), digits)}" for head, key, digits in traffic_report.SHORT if row.get(key) is not None))
        self.write()

    def write(self):
        options = {k: v for k, v in vars(self.options).items() if k not in ("pack", "site", "out", "scratch")}
        traffic_report.write(pathlib.Path(self.options.out), self.options.title(), options, self.rows, self.options.reference, self.remarks)

    # --- modes ---

    def rounds(self, variant=""):
        """Runs all arms in turns. Each round begins with the next arm, so that no arm is always the first."""
        arms = self.options.arms
        for number in range(self.options.rounds):
            first = number % len(arms)
            for arm in arms[first:] + arms[:first]:
                label, before = "-".join(filter(None, (arm, variant, str(number + 1)))), len(self.rows)
                self.count_equal(number, label, self.one(arm, number + 1, label, variant=variant))
                if self.options.kill_at is not None:
                    self.one(arm, number + 1, f"{label}-killed", variant="killed", meddler_of=lambda place: traffic_run.Kill(self.options.kill_at))
                    self.compare_killed(self.rows[before:])

    def count_equal(self, number, label, answers):
        """Reports how many answers of a run are those of the round's first run. A batch of other requests may round differently, so that a few
        differ in any engine; wrong KV would change most."""
        tokens = {(a["session"], a["turn"]): a["tokens"] for a in answers or []}
        said = self.said.setdefault(number, tokens) if tokens else {}
        if tokens and said is not tokens:
            equal = sum(said.get(key) == value for key, value in tokens.items())
            different = len(set(map(tuple, said.values())))  # an engine that always answers the same shows nothing
            self.remark(f"{label}: {equal} of {len(tokens)} answers are equal to those of the round's first run; {different} different answers")

    def compare_killed(self, rows):
        """Reports the cost of a kill, with and without the time until the next engine served."""
        if len(rows) == 2 and all(row["outcome"] == "ok" for row in rows):
            whole, killed = (row["seconds"] for row in rows)
            down = rows[1]["down_s"]
            self.remark(f"{rows[0]['arm']}: {whole:.2f} s undisturbed, {killed:.2f} s with a kill of which {down:.2f} s without an engine:"
                        f" {killed / whole:.3f} × as long, {(killed - down) / whole:.3f} × without that time")

    def standing(self):
        """Runs the rounds, and after them the faults of daemons, with engines that stay."""
        self.engines = self.start_standing()
        try:
            self.rounds()
            if self.options.again:
                self.say("kill and start all engines ...")
                engines, self.engines = self.engines, {}
                self.engines = self.started(*traffic_standing.restart(self.host, self.options, engines, self.limit()))
                self.rounds("again")
            if self.options.daemon_fault:
                self.faults([arm for arm in self.options.arms if self.options.has_daemon(arm)], rounds=1)
        finally:
            traffic_standing.close(self.engines)
            traffic_run.keep_logs(self.host, self.options, ended=tuple(f"{arm}-standing-" for arm in self.options.arms))

    def start_standing(self):
        self.say(f"start {len(self.options.arms)} engines ...")
        engines, failed = traffic_standing.start(self.host, self.options, self.limit())
        if any(self.must_not_fork(dict(outcome=outcome), "these starts") for outcome in failed.values()):
            traffic_standing.close(engines)
            engines, failed = traffic_standing.start(self.host, self.options, self.limit())
        return self.started(engines, failed)

    def started(self, engines, failed):
        """Reports the starts of engines that stay. Returns the engines."""
        for arm, outcome in failed.items():
            self.remark(f"{arm}: {outcome}", wrong=True)
        self.say(f"{len(engines)} engines stay")
        return engines

    def faults(self, arms, rounds):
        for number in range(rounds):
            for arm in arms:
                for nth, kind in enumerate(self.options.daemon_fault):
                    before = len(self.rows)
                    # An engine that stays has the prompts of the rounds in its caches, so each of its faults gets prompts of its own.
                    load = dict(seed=self.options.seed + self.options.rounds + 1 + nth) if self.options.standing else None
                    self.one(arm, number + 1, f"{arm}-{kind}-{number + 1}", variant=kind, load=load, meddler_of=None if kind == "none" else (
                        lambda place, kind=kind: traffic_run.Fault(kind, place, self.options)))
                    if len(self.rows) > before:
                        self.judge_fault(self.rows[-1], kind)

    def judge_fault(self, row, kind):
        """Says whether no request failed and none waited too long."""
        if row["outcome"] != "ok":
            self.remark(f"{row['arm']}, daemon {kind}: {row['outcome']}")
            return
        self.remark(f"{row['arm']}, daemon {kind}: {row['failed']} of {row['requests']} requests failed, {row['unanswered']} unanswered,"
                    f" {row['over_limit']} waited over {self.options.longest_wait:g} s, the longest {row['longest_ms']:.0f} ms"
                    + (f"; {row['fault_requests']} were under way in the fault" if "fault_requests" in row else ""),
                    wrong=kind != "none" and row["over_limit"] > 0)

    def starts(self):
        options, arm = self.options, self.options.arms[0]
        place = traffic_run.Place(self.host, options, arm, f"{arm}-starts")
        try:
            storer = self.host.beside("storer", "store", place.daemon.socket, options.beside)
            self.wait_for_storer(storer)
            for number in range(0, options.starts, options.at_once):
                count = min(options.at_once, options.starts - number)
                if not self.has_time(arm, f"starts {number + 1} to {number + count}"):
                    break
                self.start_together(arm, place, number, count)
            said = traffic_host.tail(self.host.logs / "storer.log", 1)
            self.remark(f"stored beside: {said}", wrong=storer.poll() is not None or not said.startswith("stored "))
            if self.rows:
                self.rows[-1].update(place.figures())
        finally:
            place.close()
        ready = [row for row in self.rows if row["outcome"] == "ok" and not row["failed"] and not row["unanswered"]]
        seconds = [row["start_s"] for row in ready]
        self.remark(f"{len(ready)} of {len(self.rows)} starts serve ({options.starts} were asked for)" +
                    (f"; start {statistics.median(seconds):.1f} s in the median, {max(seconds):.1f} s at most" if seconds else ""))

    def wait_for_storer(self, storer):
        """Waits until the process beside the starts has stored something, or has ended, or the budget is spent."""
        while storer.poll() is None and self.left() > 0:
            said = traffic_host.tail(self.host.logs / "storer.log", 1)
            if said.startswith("stored ") and not said.startswith("stored 0 "):
                return
            time.sleep(0.01)

    def start_together(self, arm, place, number, count):
        """Starts engines at the same time on one GPU, and waits until each has answered its requests."""
        options = self.options
        load = dict(options.load(number), kind="sequence", requests=2, turns=1, sessions=2)
        job = dict(options.job(arm, number, place), load=load)
        if options.at_once > 1:
            job.update(gpu_share=options.gpu_share / options.at_once, kv_bytes=options.kv_bytes())
        runs = [traffic_run.Run(self.host, options, dict(job, label=f"{arm}-start-{number + n + 1}"), self.limit()) for n in range(count)]
        began, outcomes = time.monotonic(), {}
        try:
            for run in runs:
                run.start()
            while len(outcomes) < count:
                for run in runs:
                    if run not in outcomes and (outcome := run.look()) is not None:
                        run.end()
                        outcomes[run] = outcome
                time.sleep(0.01)
        finally:
            for run in runs:
                run.end()
        traffic_run.keep_logs(self.host, options)
        rows = [dict(run.figures(), arm=arm, round=number + n + 1, variant="start", outcome=outcomes[run], took_s=time.monotonic() - began,
                     answers=[traffic_run.compact(answer) for answer in run.seen.answers]) for n, run in enumerate(runs)]
        if any(self.must_not_fork(row, "these starts") for row in rows):
            self.start_together(arm, place, number, count)
            return
        for row, run in zip(rows, runs):
            self.add(row, run.job["label"])

    def identity(self):
        """Compares the tokens of two engines on one daemon with those of each without a cache, one request at a time."""
        options, arm = self.options, self.options.arms[0]
        others = importlib.import_module(f"traffic_{options.engine}").OTHERS[options.identity]
        jobs = [dict(env={name: value}) if name.isupper() else {name: value} for name, value in others]
        said = {}
        place = traffic_run.Place(self.host, options, arm, f"{arm}-identity")
        try:
            for which, kind, passes in ((0, "none", 1), (1, "none", 1), (0, arm, 2), (1, arm, 2), (0, arm, 2)):
                label = f"{kind}-{others[which][1]}-{len(self.rows) + 1}"
                answers = self.one(kind, 1, label, job=jobs[which], variant=f"{options.identity}={others[which][1]}", place=place,
                                   load=dict(kind="passes", passes=[(f"pass{n}", True) for n in range(passes)], turns=1))
                if answers is None or self.rows[-1]["outcome"] != "ok":
                    self.remark(f"identity not shown: {label} did not run", wrong=True)
                    return
                self.compare(others[which][1], kind, label, answers, said)
        finally:
            place.close()

    def compare(self, name, kind, label, answers, said):
        tokens = {answer["session"]: answer["tokens"] for answer in answers} if kind == "none" else {}
        if kind == "none":
            said[name] = tokens
            return
        different = [a["session"] for a in answers if a["tokens"] != said[name][a["session"]]]
        cached = sum(a["cached"] for a in answers)
        self.remark(f"{label}: {len(answers) - len(different)} of {len(answers)} answers are those without a cache, {cached:,} tokens were cached",
                    wrong=bool(different) or cached == 0)

    def describe(self):
        """Remarks on which GPU the figures are from, on a disk that is too small, and on a pack that lacks the wheel."""
        if gpu := traffic_host.gpu():
            self.remark(gpu, wrong=gpu.count(";") + 1 < max(self.options.tp, self.options.gpus))
        if self.options.engine == "vllm" and not any(path.name == "wheel" for path in self.host.programs.python):
            self.remark("the pack has no wheel of the package: unless kvcache is installed, vLLM does not find its entry point")
        daemons = sum(map(self.options.has_daemon, self.options.arms))
        stores = self.options.store * (daemons if self.options.standing else min(daemons, 1))
        if (free := shutil.disk_usage(self.host.scratch).free) < stores:
            self.remark(f"the disk has {free >> 20} MiB free, and the stores may take {stores >> 20} MiB at once, besides files of other arms:"
                        " figures of a full disk are not those of a tier")

    def remark_unlimited(self):
        reasons = [row["memory"]["unlimited"] for row in self.rows if "unlimited" in row.get("memory", {})]
        if reasons:
            self.remark(f"{len(reasons)} of {len(self.rows)} runs had no limit of memory (--cgroup): {reasons[0]}")

    def run_mode(self):
        options = self.options
        if options.standing:
            self.standing()
        elif options.starts is not None:
            self.starts()
        elif options.identity is not None:
            self.identity()
        elif options.states:
            traffic_states.run(self)
        elif options.fleet:
            traffic_fleet.run(self)
        elif options.daemon_fault is not None:
            self.faults(options.arms, options.rounds)
        else:
            self.rounds()

    def run(self):
        self.host = traffic_host.Host(self.options)
        try:
            self.describe()
            self.run_mode()
        finally:
            self.host.close()
            self.remark_unlimited()
            self.write()
            print("\n" + traffic_report.markdown(self.options.title(), self.rows, self.options.reference, self.remarks, statuses=False), flush=True)
        return 1 if self.wrong else 3 if self.skipped else 0


def main():
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    options = options_of(sys.argv[1:])
    check_places(options)
    return Driver(options).run()


if __name__ == "__main__":
    sys.exit(main())
