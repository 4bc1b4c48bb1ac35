# SPDX-License-Identifier: Apache-2.0
"""The mode --standing of the traffic benchmark: the engines of all arms start once, side by side on one GPU, and then run their loads in turns.

A start of vLLM takes longer than most loads, so this mode saves time on a GPU machine that is lent by the minute. An engine that waits for its
next load runs no step. Its caches keep the chunks of earlier loads, as they do in production.
"""

import contextlib
import json
import os
import time

import traffic_run


class StandingEngine:
    """The engine of an arm, with a place of its own or that of an earlier engine. Loads are sent to it through a named pipe."""

    def __init__(self, host, options, arm, beside, limit_s, place=None):
        name = f"{arm}-standing"
        self.host, self.options, self.arm, self.orders, self.first = host, options, arm, None, None
        self.place = place or traffic_run.Place(host, options, arm, name)
        try:
            pipe = host.scratch / f"{name}-orders"
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
            self.orders = os.open(pipe, os.O_RDWR)  # opened so, it waits for no reader
            job = dict(options.job(arm, 0, self.place), label=name, orders=str(pipe), gpu_share=options.gpu_share / beside,
                       kv_bytes=options.kv_bytes())
            self.first = traffic_run.Run(host, options, job, limit_s)
            self.first.start()
        except BaseException:
            self.close()
            raise

    def started(self):
        """Returns None while the engine starts, then an empty text, or the reason why it did not start."""
        outcome = self.first.look()
        return "" if self.first.seen.starts else outcome

    def is_alive(self):
        return not self.first.process.ended()

    def run(self, job, limit_s, meddler):
        return StandingRun(self, job, limit_s, meddler)

    def end(self):
        """Kills the engine. Returns its place, which stays."""
        if self.first is not None:
            self.first.end()
        if self.orders is not None:
            os.close(self.orders)
            self.orders = None
        return self.place

    def close(self):
        self.end().close()


class StandingRun(traffic_run.Run):
    """One load of an engine that stays. The engine is killed only if the load does not end."""

    def __init__(self, engine, job, limit_s, meddler):
        super().__init__(engine.host, engine.options, job, limit_s, meddler)
        self.orders, self.process = engine.orders, engine.first.process
        self.seen.starts, self.seen.engine = list(engine.first.seen.starts), engine.first.seen.engine
        self.process.stacked = False

    def start(self, **load):
        label = f"{self.job['label']}:"
        os.write(self.orders, json.dumps(dict(self.job["load"], names=label, **load)).encode() + b"\n")
        self.seen.last_at = time.monotonic()

    def is_over(self):
        return self.seen.ended is not None or self.process.ended()

    def end(self):
        self._take()
        if not self.seen.ended:
            self.process.kill()
            self._take()


def start(host, options, limit_s, places=None):
    """Starts an engine for each arm, or for each of the places of earlier engines. Returns the engines by arm, and the reasons of the arms
    that did not start."""
    engines, failed = {}, {}
    try:
        for arm in places or options.arms:  # the daemons populate their memory one after the other
            try:
                engines[arm] = StandingEngine(host, options, arm, len(options.arms), limit_s, (places or {}).get(arm))
            except (OSError, RuntimeError) as problem:
                failed[arm] = f"not run: {problem}"
        waiting = dict(engines)
        while waiting:
            for arm, engine in list(waiting.items()):
                outcome = engine.started()
                if outcome is not None:
                    del waiting[arm]
                    if outcome:
                        failed[arm] = outcome
                        engines.pop(arm).close()
            time.sleep(0.01)
        return engines, failed
    except BaseException:
        close(engines)
        raise


def restart(host, options, engines, limit_s):
    """Kills all engines, and starts others in their places. Returns what start() returns."""
    places = {arm: engine.end() for arm, engine in engines.items()}
    host.remove_regions()
    return start(host, options, limit_s, places) if places else ({}, {})


def close(engines):
    for engine in engines.values():
        with contextlib.suppress(OSError):
            engine.close()
