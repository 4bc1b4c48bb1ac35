# SPDX-License-Identifier: Apache-2.0
"""Engines of the traffic benchmark that stay: all arms start side by side on one GPU, and then run one load after the other in turns.

A start of vLLM takes longer than most loads. Where a GPU machine is lent by the minute, engines that stay leave the minutes to the loads.
An engine that waits for its next load runs no step. Its caches keep what earlier loads left there, as in life.
"""

import contextlib
import json
import os
import time

import traffic_run


class StandingEngine:
    """The engine of an arm, with a place of its own. Loads are sent to it through a named pipe."""

    def __init__(self, host, options, arm, beside, limit_s):
        name = f"{arm}-standing"
        self.host, self.options, self.arm, self.orders = host, options, arm, None
        self.place = traffic_run.Place(host, options, arm, name)
        try:
            pipe = host.scratch / f"{name}-orders"
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

    def close(self):
        if self.orders is not None:
            self.first.end()
            os.close(self.orders)
        self.place.close()


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


def start(host, options, limit_s):
    """Starts an engine for each arm. Returns the engines by arm, and the reasons of the arms that did not start."""
    engines, failed = {}, {}
    try:
        for arm in options.arms:  # the daemons populate their memory one after the other
            try:
                engines[arm] = StandingEngine(host, options, arm, len(options.arms), limit_s)
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


def close(engines):
    for engine in engines.values():
        with contextlib.suppress(OSError):
            engine.close()
