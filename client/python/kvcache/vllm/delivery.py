# SPDX-License-Identifier: Apache-2.0
"""Passes facts about KV caches, which the fingerprint needs (identity.py), from vLLM's workers to its scheduler.

vLLM registers the KV caches of all workers before it makes the scheduler, and gives an offloading spec no channel from a worker to the
scheduler. A worker in the scheduler's process leaves its facts in a variable. A worker in a separate process leaves them in a file in
/dev/shm. The file's name contains the id and the start time of the process that started the worker, and the engine's id, so that a
scheduler finds only the facts of its own workers. When the scheduler's process ends, it removes the files that it has read. A worker
removes the files that were left for processes that no longer run. Workers on other hosts leave no file here, and their facts count as not
delivered.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import multiprocessing
import os
import re
from collections.abc import Mapping
from typing import Any

from ..engine.identity import Unknown

log = logging.getLogger("kvcache.vllm")

FORMAT = 1            # version of the files' format
MOST_BYTES = 8 << 20  # bytes of the largest file that is read
FOLDER = "/dev/shm"
_PREFIX = "kvcache-facts"
_NAME = re.compile(_PREFIX + r"-(\d{1,10})-(\d{1,20})-[0-9a-f]{32}-\d{1,6}")

_here: dict[tuple[str, int], dict[str, object]] = {}  # by engine id and rank, the facts of workers in this process


def deliver(engine_id: object, rank: int, world_size: int, facts: Mapping[str, object]) -> None:
    """Leaves a worker's facts for its scheduler. Called in the worker's process. Raises OSError if the file cannot be written."""
    _here[str(engine_id), rank] = dict(facts)
    parent = _scheduler()
    if world_size <= 1 or parent is None:
        return
    _sweep()
    name = _name(parent, engine_id, rank)
    content = {"format": FORMAT, "facts": {n: _encoded(v) for n, v in facts.items()}}
    fd = os.open(name + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as f:
        json.dump(content, f)
    os.rename(name + ".new", name)


def own(engine_id: object, rank: int) -> dict[str, object] | None:
    """Returns the facts that the worker of this rank has delivered in this process, or None if there are none."""
    facts = _here.get((str(engine_id), rank))
    return None if facts is None else dict(facts)


def discard(engine_id: object, world_size: int) -> None:
    """Removes the files in which this engine's workers left their facts. Called by the scheduler of the offloading spec, which reads the engine's
    page (page.py) instead. Never raises."""
    for rank in range(world_size):
        with contextlib.suppress(OSError, ValueError, IndexError):
            os.unlink(_name(os.getpid(), engine_id, rank))


def forget(engine_id: object, rank: int) -> None:
    """Removes facts of this rank that an earlier engine of the same id may have left. Called in the worker's process. Never raises."""
    _here.pop((str(engine_id), rank), None)
    with contextlib.suppress(OSError, ValueError, IndexError):
        parent = _scheduler()
        if parent is not None:
            os.unlink(_name(parent, engine_id, rank))


def _scheduler() -> int | None:
    """Returns the id of the process that started this worker's process. Returns None if vLLM started no process for the worker: the scheduler is
    then in this process."""
    parent = multiprocessing.parent_process()
    return None if parent is None else parent.pid


def delivered(engine_id: object, world_size: int) -> dict[str, object] | None:
    """Returns the facts of an engine, or None if a rank has delivered no facts, or facts of other names. A fact that differs between ranks becomes a
    JSON list; a fact that is Unknown in any rank is Unknown. Called in the scheduler's process."""
    ranks = []
    for rank in range(world_size):
        facts = _here.get((str(engine_id), rank)) or (_read(engine_id, rank) if world_size > 1 else None)
        if facts is None:
            return None
        ranks.append(facts)
    if any(set(facts) != set(ranks[0]) for facts in ranks):
        return None
    return {name: _merged([facts[name] for facts in ranks]) for name in ranks[0]}


def _merged(values: list[object]) -> object:
    unknown = next((v for v in values if isinstance(v, Unknown)), None)
    if unknown is not None:
        return unknown
    return values[0] if all(v == values[0] for v in values) else json.dumps([str(v) for v in values])


def _encoded(value: object) -> object:
    return {"reason": value.reason, "option": value.option} if isinstance(value, Unknown) else str(value)


def _name(pid: int, engine_id: object, rank: int) -> str:
    digest = hashlib.sha256(f"{os.geteuid()}\n{engine_id}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{FOLDER}/{_PREFIX}-{pid}-{started(pid)}-{digest}-{rank}"


def started(pid: int) -> int:
    """Returns the start time of a process in clock ticks since boot, which distinguishes it from an earlier process with the same id. Raises
    OSError if no such process exists."""
    with open(f"/proc/{pid}/stat", "rb") as f:
        return int(f.read(4096).rpartition(b")")[2].split()[19])


def _read(engine_id: object, rank: int) -> dict[str, object] | None:
    try:
        name = _name(os.getpid(), engine_id, rank)
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as f:
            st = os.fstat(fd)
            if st.st_uid != os.geteuid() or st.st_mode & 0o077 or st.st_size > MOST_BYTES:
                log.warning("%s belongs to another user, is accessible to others or is too large, so the facts of rank %d in it are ignored: "
                            "remove the file", name, rank)
                return None
            content = json.loads(f.read(MOST_BYTES))
        atexit.register(_remove, name)
        if content["format"] != FORMAT:
            return None
        return {str(n): _decoded(v) for n, v in content["facts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError) as e:
        log.debug("rank %d has delivered no facts: %s", rank, e)
        return None


def _remove(name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name)


def _decoded(value: Any) -> object:
    if isinstance(value, str):
        return value
    return Unknown(str(value["reason"]), str(value["option"]))


def _sweep() -> None:
    """Removes files with facts that this user's ended processes have left."""
    for name in os.listdir(FOLDER):
        found = _NAME.fullmatch(name.removesuffix(".new"))
        if not found:
            continue
        try:
            ended = started(int(found[1])) != int(found[2])
        except OSError:
            ended = True
        path = f"{FOLDER}/{name}"
        with contextlib.suppress(OSError):
            if ended and os.lstat(path).st_uid == os.geteuid():
                os.unlink(path)
