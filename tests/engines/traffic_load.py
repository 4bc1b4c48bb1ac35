# SPDX-License-Identifier: Apache-2.0
"""Sends the traffic benchmark's requests to one engine, and measures how long each request waits. Runs in the engine's process, for any engine.

An engine has add(name, tokens, answer, return_s), which queues a request, and step(), which returns a Progress for each request that got tokens
or ended. `return_s` announces when the request's session returns after its end, in seconds, or that it never does (0); None announces nothing. Sessions are a closed loop: `concurrency` of them at a time, each of several turns. A prompt is the session's history and new
tokens; the history contains invented answers, so that the prompts are equal whatever an engine says.
"""

import json
import os
import pathlib
import random
import select
import time
from typing import NamedTuple


class Progress(NamedTuple):
    """The tokens that a request got in a step. `reason` is empty unless the request failed."""

    name: str
    tokens: list
    cached: int
    finished: bool
    reason: str = ""


def numbers_of(seed, count):
    """Returns `count` token numbers, which depend on the seed alone."""
    numbers = random.Random(seed)
    return [numbers.randrange(10, 31000) for _ in range(count)]


def prompt_of(load, session, turn):
    """Returns the prompt of a session's turn: the first prompt, and for each later turn the answer before it and new tokens."""
    seed = load["seed"] * 10**6 + session * 100
    tokens = numbers_of(seed, load["first"])
    for earlier in range(turn):
        tokens += numbers_of(seed + 50 + earlier, load["answer"]) + numbers_of(seed + 75 + earlier, load["add"])
    return tokens


def pause_of(load, session, turn):
    """Returns the seconds between a session's turn and the next one: `think`, or with a spread one of five times around it."""
    steps = random.Random(load["seed"] * 10**6 + session * 100 + turn).randrange(-2, 3)
    return load["think"] * (1 + load.get("spread", 0) * steps / 2)


def trace_prompts(path, count, block=64):
    """Returns the first prompts of a trace, a line of JSON each, whose hash_ids become blocks of tokens. Sessions have at least four turns."""
    rows = [json.loads(line)["hash_ids"] for line in pathlib.Path(path).read_text().splitlines()]
    owner, session = {}, []
    for number, ids in enumerate(rows):
        known = next((n for n, one in enumerate(ids) if one not in owner), len(ids))
        session.append(owner[ids[known - 1]] if known > 1 else number)
        for one in ids:
            owner.setdefault(one, session[-1])
    wanted = [ids for ids, s in zip(rows, session) if session.count(s) >= 4][:count]
    return [[token for one in ids for token in numbers_of(one, block)] for ids in wanted]


class Request:
    """A request in flight, with the arrival times of its tokens."""

    def __init__(self, session, turn, prompt):
        self.session, self.turn, self.prompt = session, turn, prompt
        self.asked_at = time.monotonic()
        self.last_at, self.first_ms, self.cached, self.gaps_ms, self.tokens = self.asked_at, None, 0, [], []

    def saw(self, progress):
        if not progress.tokens:
            return
        now = time.monotonic()
        if self.first_ms is None:
            self.first_ms, self.cached = (now - self.asked_at) * 1e3, progress.cached
        else:
            self.gaps_ms.append((now - self.last_at) * 1e3)
        self.last_at = now
        self.tokens += progress.tokens

    def record(self, progress):
        """Returns the event of an ended request. The longest wait includes the silence before the end."""
        ended_at = time.monotonic()
        silence_ms = (ended_at - self.last_at) * 1e3
        waits = [self.first_ms or 0.0, silence_ms, *self.gaps_ms]
        return dict(session=self.session, turn=self.turn, asked_at=self.asked_at, ended_at=ended_at, first_ms=self.first_ms,
                    gaps_ms=self.gaps_ms, longest_ms=max(waits), prompt=len(self.prompt), cached=self.cached, tokens=self.tokens,
                    ok=not progress.reason and bool(self.tokens), reason=progress.reason)


class Runner:
    """Feeds requests to an engine, and reports each of them with report(event, **fields)."""

    def __init__(self, engine, load, report):
        self.engine, self.load, self.report = engine, load, report
        self.active, self.longest_step_ms = {}, 0.0

    def ask(self, session, turn, name=None, prompt=None):
        name, prompt = self.load.get("names", "") + (name or f"{session}-{turn}"), prompt or prompt_of(self.load, session, turn)
        self.active[name] = request = Request(session, turn, prompt)
        self.report("asked", name=name, at=request.asked_at)
        self.engine.add(name, prompt, self.load["answer"], self._return_s(session, turn))

    def _return_s(self, session, turn):
        if not self.load.get("announce"):
            return None
        return pause_of(self.load, session, turn) if turn + 1 < self.load["turns"] else 0

    def step(self):
        """Runs one step of the engine. Returns the sessions whose requests ended."""
        began, ended = time.monotonic(), []
        for progress in self.engine.step():
            request = self.active.get(progress.name)
            if request is None:
                continue
            request.saw(progress)
            if progress.finished:
                del self.active[progress.name]
                self.report("answered", name=progress.name, **request.record(progress))
                ended.append(request.session)
        self.longest_step_ms = max(self.longest_step_ms, (time.monotonic() - began) * 1e3)
        return ended

    def finish(self):
        while self.active:
            self.step()

    def sessions(self):
        """Runs all sessions. `answered` in the load has the turns that an engine answered before it was killed."""
        load = self.load
        turns = {int(s): n for s, n in load.get("answered", {}).items()}
        begun = sorted(s for s, n in turns.items() if n < load["turns"])
        fresh = iter(s for s in range(load["sessions"]) if s not in turns)
        waiting = [(0.0, s) for s in begun[:load["concurrency"]]]
        rest = begun[load["concurrency"]:]

        def next_session():
            return rest.pop(0) if rest else next(fresh, None)

        while len(waiting) < load["concurrency"] and (session := next_session()) is not None:
            waiting.append((0.0, session))
        while self.active or waiting:
            now = time.monotonic()
            for entry in [w for w in waiting if w[0] <= now]:
                waiting.remove(entry)
                self.ask(entry[1], turns.setdefault(entry[1], 0))
            if not self.active:
                time.sleep(max(0.0, min(w[0] for w in waiting) - time.monotonic()))
                continue
            for session in self.step():
                pause = pause_of(load, session, turns[session])
                turns[session] += 1
                following = session if turns[session] < load["turns"] else next_session()
                if following is not None:
                    waiting.append((time.monotonic() + pause, following))

    def sequence(self):
        """Sends one request after the other: the first turn of all sessions, then the second, so that prefixes leave the GPU cache."""
        load = self.load
        prompts = trace_prompts(load["trace"], load["requests"]) if load.get("trace") else []
        wanted = [(n, 0, p) for n, p in enumerate(prompts)] or [(s, t, None) for t in range(load["turns"]) for s in range(load["sessions"])]
        done = {(int(s), t) for s, turns in load.get("answered", {}).items() for t in range(turns)}
        for session, turn, prompt in wanted[:load["requests"]]:
            if (session, turn) not in done:
                self.ask(session, turn, prompt=prompt)
                self.finish()

    def routed(self):
        """Answers the requests that a router sends through a named pipe, a line of JSON with a session and a turn each, until a line is null."""
        pipe, rest, is_open = os.open(self.load["requests"], os.O_RDWR | os.O_NONBLOCK), b"", True
        try:
            while self.active or is_open:
                if is_open and select.select([pipe], [], [], 0 if self.active else 1)[0]:
                    *lines, rest = (rest + os.read(pipe, 65536)).split(b"\n")
                    for wanted in map(json.loads, lines):
                        is_open = is_open and wanted is not None
                        if wanted is not None:
                            self.ask(*wanted)
                if self.active:
                    self.step()
        finally:
            os.close(pipe)

    def passes(self):
        """Asks each session's first turn, one at a time, in each pass, which is a name and whether the GPU's cache is emptied after it."""
        for name, forget in self.load["passes"]:
            for session in range(self.load["sessions"]):
                self.ask(session, 0, name=f"{session}-{name}")
                self.finish()
            if forget:
                self.engine.forget()

    def run(self):
        self.report("began", at=time.monotonic())
        getattr(self, self.load["kind"])()
        self.report("ended", at=time.monotonic(), longest_step_ms=self.longest_step_ms, learned=self.engine.learned())

