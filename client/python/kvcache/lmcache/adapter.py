# SPDX-License-Identifier: Apache-2.0
"""KvcacheL2Adapter, LMCache's L2AdapterInterface of this adapter, for LMCache 0.5.0 to 0.5.6.

LMCache's server makes one adapter and calls it from two threads, for stores and for prefetches, which must not wait. Lookups are answered
immediately from the daemon's lookup index; stores and loads are queued for several threads each. One more thread answers lookups that may take
time: the first lookup of a model and layout, which reads weight files and opens a namespace, and searches of the shared tier. Results are queued
until LMCache takes them; an event descriptor wakes LMCache. Pages (kvcache.sglang.pages) moves the bytes.

LMCache is notified of stored, accessed and deleted keys before it sees the result of the task. A further thread, the audit, compares LMCache's
records with the daemon's, and notifies LMCache of keys that the daemon has evicted. The constructor raises ValueError for wrong options. After
that, no method raises except list_l2_keys() for a wrong argument: an object that cannot be moved counts as not found or not stored.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import lmcache
from lmcache.v1.distributed.api import KeyEntry, KeyListPage
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

from .._memory import Pin
from ..engine import former, options as checks
from ..engine.weights import CHECKS
from ..sglang import link
from ..sglang.link import Link
from ..sglang.pages import Pages
from . import identity
from .ledger import Held, Ledger

try:
    from lmcache.lmcache_native import Bitmap
except ImportError:  # before 0.5.3
    from lmcache.native_storage_ops import Bitmap

log = logging.getLogger("kvcache.lmcache")

ACKS = ("accepted", "written", "durable")
OPTIONS = ("socket", "ack", "timeout_s", "weights", "weights_check", "adapter", "namespace", "share", "remote", "part_bytes", "threads",
           "capacity_bytes")
COUNTERS = ("deleted_pages", "evicted_pages", "adopted_pages", "refused_keys")  # counters in addition to link.COUNTERS
MOST_TIMEOUT_S = 3600  # largest value of the option timeout_s
MOST_SPACES = 64  # most namespaces, one for each model and layout
THREADS, MOST_THREADS = 4, 64  # default and largest value of the option threads
AUDIT_S = 1.0       # interval between audits; an audit begins at once if a lookup misses a key of the ledger
ROTATION = 60       # number of audits in which each object is compared once
LEAST_AUDIT = 1024  # least number of objects that an audit compares, if the ledger has as many
MOST_PAGE = 100000  # most keys of one page of list_l2_keys()
SHARE_ADVICE = "lmcache server --shm-name NAME --no-l1-use-lazy makes memory that can be mapped"


class _Space:
    """One namespace of the daemon, with LMCache's objects of one model and layout, and the Pages that move them."""

    def __init__(self, model: str, layout: identity.Layout, pages: Pages) -> None:
        self.model, self.layout, self.pages = model, layout, pages


class _Worker:
    """Threads with a queue of tasks, and the results of tasks that LMCache has not taken yet. A task is called with the number of its thread, and
    its result has the number of the task. `event`: an eventfd that is signalled for each result."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._results: dict[int, Any] = {}
        self._lock, self._closed = threading.Lock(), False
        self._tasks: queue.SimpleQueue[tuple[int, Callable[[int], Any]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, args=(loader,), name=f"{name}-{loader}", daemon=True) for loader in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, number: int, task: Callable[[int], Any]) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self._tasks.put((number, task))
        if closed:
            self.answer(number, task(0))

    def answer(self, number: int, result: Any) -> None:
        with self._lock:
            self._results[number] = result
            if self.event >= 0:
                os.eventfd_write(self.event, 1)

    def take(self, number: int) -> Any:
        with self._lock:
            return self._results.pop(number, None)

    def take_all(self) -> dict[int, Any]:
        with self._lock:
            taken, self._results = self._results, {}
        return taken

    def _run(self, loader: int) -> None:
        while (task := self._tasks.get()) is not None:
            self.answer(task[0], task[1](loader))
            del task  # the thread must not keep references to the arguments while it waits

    def end(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._tasks.put(None)

    def join(self, seconds: float) -> None:
        """Waits for the threads for at most `seconds`, and closes the event descriptor. If a thread does not end, the descriptor stays open, because
        the thread could otherwise write to another file that got its number."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            if self.event >= 0 and not any(t.is_alive() for t in self._threads):
                os.close(self.event)
                self.event = -1


class KvcacheL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """LMCache's L2AdapterInterface of this adapter. All options are keys of adapter_params:

    socket       path of the daemon's socket; default: $KVCACHE_SOCKET, else the usual places
    namespace    prefix of the namespaces' names ("lmcache")
    weights      names the models' weights; default: a digest of their content (kvcache.engine.weights)
    weights_check  "samples" (default) or "full": how much of each file that digest reads
    adapter      names the LoRA adapters that the engines use, or "none"; without this option, namespaces are private
    ack          when a store is complete: "accepted" (default; the object is in memory), "written" or "durable"
    share        register LMCache's memory with the daemon, so that it reads objects in place (true)
    remote       also look up objects in the shared tier (true)
    part_bytes   longest chunk in bytes, a multiple of 4096; longer objects are stored in parts (64 MiB)
    threads      number of threads that load, each over its own connection, and of threads that store (4)
    capacity_bytes  capacity above which LMCache's LRU policy deletes objects; 0 (default): only the daemon evicts
    timeout_s    timeout of a load, and of a request to store, in seconds (5)

    The options of LMCache's own adapters and backends that kvcache.engine.former lists are accepted and have no effect, except
    max_capacity_gb, which sets capacity_bytes."""

    def __init__(self, params: Mapping[str, Any] | None = None, l1_memory_desc: Any = None) -> None:
        options = former.capacity_of(log, params or {})
        former.note(log, "LMCache's fs adapter", former.LMCACHE_FS, options)
        former.note(log, "LMCache", former.LMCACHE, options)
        options = {name: value for name, value in options.items() if name not in {**former.LMCACHE_FS, **former.LMCACHE}}
        _check(options)
        super().__init__(options.get("capacity_bytes", 0))
        self._ack, self._weights = options.get("ack", "accepted"), options.get("weights")
        self._check, self._adapter = options.get("weights_check", "samples"), options.get("adapter")
        self._start = identity.new_start()
        self._prefix, self._part_bytes = options.get("namespace", "lmcache"), options.get("part_bytes", 64 << 20)
        self._timeout_s = float(options.get("timeout_s", 5.0))
        self._release = ".".join(str(getattr(lmcache, "__version__", "unknown")).split(".")[:2])
        threads = options.get("threads", THREADS)
        self._link = Link(options.get("socket"), self._timeout_s, "lmcache", SHARE_ADVICE, options.get("remote", True), threads)
        self._link.counters.update(dict.fromkeys(COUNTERS, 0))
        self._ledger = Ledger()
        self._spaces: dict[tuple[str, str], _Space] = {}
        self._making, self._numbers = threading.Lock(), itertools.count(1)
        self._lock, self._closed = threading.Lock(), False
        self._stores, self._lookups, self._loads = (
            _Worker(f"kvcache-{what}", n) for what, n in (("store", threads), ("lookup", 1), ("load", threads)))
        self._ending, self._kick = threading.Event(), threading.Event()
        self._auditor = threading.Thread(target=self._audit_until_closed, name="kvcache-audit", daemon=True)
        if options.get("share", True) and l1_memory_desc is not None:
            self._share_memory(l1_memory_desc)
        self._link.namespace(f"{self._prefix}/probe", {"engine": "lmcache"}, 0)  # only for the mender's probes, which store nothing
        self._link.begin()
        self._auditor.start()

    def __repr__(self) -> str:
        link = getattr(self, "_link", None)
        if link is None:
            return "<KvcacheL2Adapter of nothing>"
        state = "closed" if self._closed else "connected" if link.well else "not connected"
        return f"<KvcacheL2Adapter {self._prefix!r}: {state}, {len(self._spaces)} namespaces>"

    def _share_memory(self, desc: Any) -> None:
        memory = (ctypes.c_ubyte * desc.size).from_address(desc.ptr)
        self._link.share(memory, desc.ptr, desc.size)

    # --- event descriptors, and results of tasks ---

    def get_store_event_fd(self) -> int:
        return self._stores.event

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.event

    def get_load_event_fd(self) -> int:
        return self._loads.event

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._stores.take_all()

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookups.take(task_id)

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.take(task_id)

    # --- tasks ---

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        number = self._number()
        if not self._link.well:  # answers at once, because the threads may be waiting for a daemon that hangs
            self._link.count("unavailable", len(keys))
            self._stores.answer(number, L2StoreResult(False, 0))
            return number

        def store(loader: int) -> Any:
            good, nbytes = self._guarded(self._move, keys, objects, None)
            return L2StoreResult(all(good), nbytes)

        self._stores.submit(number, store)
        return number

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        """Submits a lookup. `group_layout_descs`: one layout for each group of layers; LMCache 0.5.0 passes one layout for all groups."""
        number, until = self._number(), time.monotonic() + link.SEARCH_S

        def lookup(loader: int) -> Any:
            return self._found(keys, self._guarded(self._find, keys, group_layout_descs, until if self._link.has_remote else None)[0])

        if not self._link.well:
            self._link.count("lookups", len(keys))
            self._link.count("unavailable", len(keys))
            self._lookups.answer(number, _bitmap([False] * len(keys)))
        elif self._are_known(keys, group_layout_descs):
            here = self._guarded(self._find, keys, group_layout_descs, None)[0]
            if self._link.has_remote and not all(here):  # a search of the shared tier takes time
                self._lookups.submit(number, lookup)
            else:
                self._lookups.answer(number, self._found(keys, here))
        else:
            self._lookups.submit(number, lookup)
        return number

    def _found(self, keys: list[Any], found: list[bool]) -> Any:
        """Counts a lookup, notifies LMCache of the keys that were found, and returns the lookup's result."""
        accessed = [key for key, ok in zip(keys, found) if ok]
        if accessed:
            with self._ledger.changing:
                self._notify(self._notify_keys_accessed, accessed)
        self._link.count("lookups", len(found))
        self._link.count("hits", len(accessed))
        return _bitmap(found)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Does nothing, because lookups lock no object. An object that is evicted between its lookup and its load counts as not loaded."""

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        number = self._number()
        self._loads.submit(number, lambda loader: _bitmap(self._guarded(self._move, keys, objects, loader)[0]))
        return number

    def _number(self) -> int:
        return next(self._numbers)

    def _guarded(self, call: Callable[..., tuple[list[bool], int]], keys: list[Any], *arguments: Any) -> tuple[list[bool], int]:
        """Calls `call`. If it raises, returns that no key was found, loaded or stored, because an exception would end a thread of LMCache or of the
        adapter."""
        try:
            return call(keys, *arguments)
        except Exception as e:
            self._link.count("errors")
            self._link.complain(f"{call.__name__}() failed for {len(keys)} objects, which count as not found or not stored: {type(e).__name__}: {e}")
            log.debug("%s() failed", call.__name__, exc_info=True)
            return [False] * len(keys), 0

    # --- lookups ---

    def _find(self, keys: list[Any], layouts: Any, until: float | None) -> tuple[list[bool], int]:
        """Looks up keys. Returns which are found, and 0 as the number of moved bytes, because _guarded() expects one.

        The keys are looked up in the namespace of the layout that LMCache expects, and then in the other namespaces of the model, because some
        callers do not pass a layout. A load compares the layout again, so a hit in a wrong namespace is not loaded. Keys that this host lacks
        are looked up as a chain in the shared tier until the time `until`; None: not at all."""
        found, usable = [False] * len(keys), self._usable(keys)
        names = {i: identity.key_of(keys[i]) for i in usable}
        of_group: dict[tuple[str, int], list[int]] = {}
        for i in _in_order(keys, usable):
            key = keys[i]
            of_group.setdefault((key.model_name, getattr(key, "object_group_id", 0)), []).append(i)
        for (model, group), chain in of_group.items():
            left, spaces = chain, self._candidates(model, _of_group(layouts, group))
            for space in spaces:
                said = space.pages.exists([names[i] for i in left], [space.layout.nbytes])
                for i, ok in zip(left, said):
                    found[i] = ok
                here = [i for i in left if found[i]]
                self._adopt(space, [(keys[i], names[i]) for i in here])
                left = [i for i in left if not found[i]]
                if not left:
                    break
            self._doubt([keys[i] for i in left], spaces)
            if left and until is not None and spaces:
                reach = spaces[0].pages.reach([names[i] for i in chain], [spaces[0].layout.nbytes], until)
                there = [i for i in chain[:reach] if not found[i]]
                for i in there:
                    found[i] = True
                self._link.count("remote_hits", len(there))
        return found, 0

    def _usable(self, keys: list[Any]) -> list[int]:
        """Returns the positions of the keys that are valid (identity.refusal_of()). Invalid keys are counted and logged."""
        usable = []
        for i, key in enumerate(keys):
            why = identity.refusal_of(key)
            if why:
                self._link.count("refused_keys")
                self._link.complain(f"an object of LMCache is neither stored nor found, because its key is invalid: {why}")
            else:
                usable.append(i)
        return usable

    def _candidates(self, model: str, layout: Any) -> list[_Space]:
        named = _named(layout)
        first = self._space(model, named) if named is not None else None
        return ([first] if first is not None else []) + [s for s in list(self._spaces.values()) if s.model == model and s is not first]

    def _are_known(self, keys: list[Any], layouts: Any) -> bool:
        """Returns whether the namespace of each layout is open, or no further namespace may be opened, so that a lookup need not wait."""
        if len(self._spaces) >= MOST_SPACES:
            return True
        try:
            wanted = {(k.model_name, getattr(k, "object_group_id", 0)) for k in keys}
            named = [(model, _named(_of_group(layouts, group))) for model, group in wanted]
        except Exception:  # the lookup reports the error
            return True
        return all(layout is None or (model, layout.text) in self._spaces for model, layout in named)

    # --- loads and stores ---

    def _move(self, keys: list[Any], objects: list[Any], loader: int | None) -> tuple[list[bool], int]:
        """Loads objects over connection number `loader`, or stores them if `loader` is None. Returns which objects were moved, and their bytes.
        Objects of one layout are moved together."""
        if len(keys) != len(objects):
            raise ValueError(f"{len(keys)} keys need as many objects, not {len(objects)}")
        good, nbytes = [False] * len(keys), 0
        of_space: dict[_Space, list[tuple[int, Pin]]] = {}
        for i in _in_order(keys, self._usable(keys)):
            key, thing = keys[i], objects[i]
            space, pin = self._space(key.model_name, _layout_of(thing)), Pin(thing.byte_array)
            if space is None:
                continue
            if pin.nbytes != space.layout.nbytes or pin.readonly:  # for example compressed by a serde of LMCache, or padded
                self._link.count("wrong_lengths")
                self._link.complain(f"an object of {pin.nbytes} bytes is neither stored nor loaded, because its memory is read-only or its layout "
                                    f"has {space.layout.nbytes} bytes: use LMCache without a serde")
                continue
            of_space.setdefault(space, []).append((i, pin))
        for space, listed in of_space.items():
            names, places = [identity.key_of(keys[i]) for i, _ in listed], [pin.address for _, pin in listed]
            lengths = [space.layout.nbytes]
            said = space.pages.put(names, places, lengths) if loader is None else space.pages.get(names, places, lengths, loader=loader)
            for (i, _), ok in zip(listed, said):
                good[i] = ok
            nbytes += sum(said) * space.layout.nbytes
            moved = [(keys[i], name) for (i, _), name, ok in zip(listed, names, said) if ok]
            if loader is None:
                self._hold(space, moved)
            else:
                self._adopt(space, moved)
        return good, nbytes

    # --- namespaces ---

    def _space(self, model: str, layout: identity.Layout) -> _Space | None:
        """Returns the namespace of a model and layout, or None if there are MOST_SPACES others. Opens the namespace if necessary, which
        reads weight files and may wait for the daemon."""
        space = self._spaces.get((model, layout.text))
        if space is not None:
            return space
        with self._making:
            space = self._spaces.get((model, layout.text))
            if space is not None or len(self._spaces) >= MOST_SPACES:
                if space is None:
                    self._link.complain(f"objects of the model {model} with the layout {layout.text[:80]} are not stored, because this server has "
                                        f"{MOST_SPACES} other models and layouts already")
                return space
            weights = self._weights or identity.weights_of(model, None, self._check)
            facts = identity.fields_of(model, weights, layout, self._release, self._part_bytes, self._adapter)
            fingerprint = identity.compose("lmcache", facts, self._start)
            if not any(s.model == model for s in self._spaces.values()):
                identity.warn(log, fingerprint)
            fields = fingerprint.fields
            name, part = identity.namespace_name(self._prefix, fields), min(layout.nbytes, self._part_bytes)
            info = self._link.lookups.info()
            if info is not None and info.max_chunk_bytes < part:
                self._link.complain(f"an object is stored in chunks of {part} bytes, but the daemon accepts at most {info.max_chunk_bytes}: set "
                                    "part_bytes to that number")
            log.info("kvcache uses the namespace %s for objects of %d bytes", name, layout.nbytes)
            space = _Space(model, layout, Pages(self._link, self._link.namespace(name, fields, part), self._part_bytes, self._ack))
            self._spaces[(model, layout.text)] = space
            return space

    # --- the ledger: objects that LMCache believes to be in this L2 ---

    def _notify(self, notify: Callable[..., None], *arguments: Any) -> None:
        """Notifies LMCache's listeners. Catches exceptions of a listener, which would end the thread of a store."""
        try:
            notify(*arguments)
        except Exception as e:
            self._link.count("errors")
            self._link.complain(f"a listener of LMCache raised, so LMCache's records of this L2 may be wrong: {type(e).__name__}: {e}")

    def _hold(self, space: _Space, objects: list[tuple[Any, bytes]]) -> list[Any]:
        """Records in the ledger that the daemon has these objects. Notifies LMCache of the objects that were not in the ledger, and returns their
        keys."""
        with self._ledger.changing:
            new = self._ledger.confirm(space, objects, space.layout.nbytes)
            if new:
                self._notify(self._notify_keys_stored, new, [space.layout.nbytes] * len(new))
        return new

    def _adopt(self, space: _Space, objects: list[tuple[Any, bytes]]) -> None:
        """Records objects that were found. Counts the objects that were not in the ledger: another server, or an earlier start of this server,
        has stored these."""
        if objects:
            self._link.count("adopted_pages", len(self._hold(space, objects)))

    def _doubt(self, keys: list[Any], spaces: list[_Space]) -> None:
        """Makes the audit compare, at once, keys of the ledger that a lookup did not find."""
        if self._ledger.suspect(held for key in keys for held in self._ledger.of_key(key, spaces)):
            self._kick.set()

    def _drop(self, objects: list[Held], counter: str) -> int:
        """Removes these objects, which the daemon does not have, from the ledger, and notifies LMCache. Adds the number of removed objects to the
        counter, and returns this number."""
        with self._ledger.changing:
            removed = self._ledger.remove(objects)
            if removed:
                self._notify(self._notify_keys_deleted, [h.key for h in removed], [h.nbytes for h in removed])
        self._link.count(counter, len(removed))
        return len(removed)

    def _check_held(self, objects: list[Held]) -> list[Held]:
        """Asks the daemon which of these objects it has, and removes the evicted ones from the ledger. Returns the other objects, also
        if the daemon did not answer."""
        absent: list[Held] = []
        for space, listed in _by_space(objects).items():
            said = space.pages.are_stored([h.name for h in listed], [space.layout.nbytes])
            absent += [h for h, is_there in zip(listed, said) if is_there is False]
        self._drop(absent, "evicted_pages")
        gone = set(map(id, absent))
        return [h for h in objects if id(h) not in gone]

    def _audit_until_closed(self) -> None:
        while not self._ending.is_set():
            self._kick.wait(AUDIT_S)
            self._kick.clear()
            if self._link.well and not self._ending.is_set():
                self._guarded(self._audit, self._ledger.to_audit(max(LEAST_AUDIT, len(self._ledger) // ROTATION)))

    def _audit(self, objects: list[Held]) -> tuple[list[bool], int]:
        self._check_held(objects)
        return [], 0

    def delete(self, keys: list[Any]) -> None:
        """Evicts objects from the daemon, in all namespaces of their model, and notifies LMCache. While the daemon does not answer, the objects
        stay in LMCache's records, and LMCache's eviction tries again later."""
        self._guarded(self._delete, list(keys))

    def _delete(self, keys: list[Any]) -> tuple[list[bool], int]:
        keys = [keys[i] for i in self._usable(keys)]
        if not self._link.well:
            self._link.count("unavailable", len(keys))
            return [], 0
        for space in list(self._spaces.values()):
            listed = [key for key in keys if key.model_name == space.model]
            with self._ledger.changing:
                held = {key: of_key[0] for key in listed if (of_key := self._ledger.of_key(key, [space]))}
            said = space.pages.evict([identity.key_of(key) for key in listed], [space.layout.nbytes])
            self._drop([held[key] for key, was in zip(listed, said) if was is not None and key in held], "deleted_pages")
        return [], 0

    def list_l2_keys(self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None) -> Any:
        """Returns one page of the list of objects that this server has stored or found and that the daemon still has; while the daemon does
        not work, objects that it has evicted may be among them. `cursor`: the token that the page before returned, or None for the first
        page. Raises ValueError for a wrong argument."""
        if isinstance(page_size, bool) or not isinstance(page_size, int) or not 0 < page_size <= MOST_PAGE:
            raise ValueError(f"page_size must be a number of keys, 1 to {MOST_PAGE}, not {page_size!r}")
        if cursor is not None and not (isinstance(cursor, str) and cursor.isascii() and cursor.isdecimal() and len(cursor) <= 18):
            raise ValueError(f"cursor must be the token of an earlier page, not {str(cursor)[:40]!r}")
        listed, following = self._ledger.after(int(cursor or 0), page_size, model_name)
        if self._link.well:
            listed = self._check_held(listed)
        entries = tuple(KeyEntry(h.key.to_encoded_object_key(), h.nbytes) for h in listed)
        return KeyListPage(entries, None if following is None else str(following))

    # --- counters, status, close ---

    @property
    def counters(self) -> dict[str, int]:
        """Returns the counters of this adapter since its start: objects, bytes and failures (link.COUNTERS and COUNTERS)."""
        return dict(self._link.counters)

    def report_status(self) -> dict[str, Any]:
        usage = self.get_usage()
        return {"is_healthy": self._link.well, "type": "kvcache", "error": "" if self._link.well else self._link.lookups.error,
                "namespaces": len(self._spaces), "held_pages": len(self._ledger), "held_bytes": usage.total_bytes_used, **self.counters}

    def close(self) -> None:
        """Ends the threads and the connections. Tasks that are still queued end as not found or not stored."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        log.info("the kvcache adapter ends with these counters: %s", ", ".join(f"{n} {v}" for n, v in self._link.counters.items() if v) or "all 0")
        for worker in (self._stores, self._lookups, self._loads):
            worker.end()
        self._ending.set()
        self._kick.set()
        self._link.close()
        self._auditor.join(self._timeout_s + 1.0)
        for worker in (self._stores, self._lookups, self._loads):
            worker.join(self._timeout_s + 1.0)


def _by_space(objects: list[Held]) -> dict[_Space, list[Held]]:
    listed: dict[_Space, list[Held]] = {}
    for held in objects:
        listed.setdefault(held.space, []).append(held)
    return listed


def _in_order(keys: Sequence[Any], positions: Collection[int]) -> list[int]:
    """Returns positions of keys in the order of their chunks in the prompt, with the ranks of a chunk together. LMCache 0.5.6 lists all chunks of one
    rank before those of the next rank. In that order, the end of one rank's chain would precede the beginning of the next: a search of the
    shared tier, and a load, would stop before that beginning."""
    chunks: dict[bytes, int] = {}
    for i in positions:
        chunks.setdefault(keys[i].chunk_hash, len(chunks))
    return sorted(positions, key=lambda i: chunks[keys[i].chunk_hash])


def _layout_of(thing: Any) -> identity.Layout:
    meta = thing.meta
    return identity.layout_of(meta.shapes or [meta.shape], meta.dtypes or [meta.dtype])


def _of_group(layouts: Any, group: int) -> Any:
    return layouts.get(group) if isinstance(layouts, Mapping) else layouts


def _named(layout: Any) -> identity.Layout | None:
    try:
        return identity.layout_of(layout.shapes, layout.dtypes)
    except (AttributeError, TypeError, ValueError):  # no layout, or an invalid one
        return None


def _bitmap(good: Sequence[bool]) -> Any:
    bits = Bitmap(len(good))
    for i, ok in enumerate(good):
        if ok:
            bits.set(i)
    return bits


def _check(options: Mapping[str, Any]) -> None:
    def of(name: str, otherwise: Any) -> Any:
        return options.get(name, otherwise)

    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not an option of the adapter; use {', '.join(OPTIONS)}")
    if of("ack", "accepted") not in ACKS:
        raise ValueError(f"ack must be 'accepted', 'written' or 'durable', not {options['ack']!r}")
    for name in ("share", "remote"):
        if not isinstance(of(name, True), bool):
            raise ValueError(f"{name} must be true or false, not {options[name]!r}")
    checks.part_bytes_of("part_bytes", of("part_bytes", 4096))
    checks.timeout_of("timeout_s", of("timeout_s", 5), MOST_TIMEOUT_S, plain=True)
    checks.whole_of("threads", of("threads", THREADS), f"a number, 1 to {MOST_THREADS}", 1, MOST_THREADS)
    checks.whole_of("capacity_bytes", of("capacity_bytes", 0), "a number of bytes, or 0", 0, (1 << 63) - 1)
    if of("weights_check", "samples") not in CHECKS:
        raise ValueError(f"weights_check must be 'samples' or 'full', not {options['weights_check']!r}")
    for name in ("namespace", "weights", "adapter", "socket"):
        value = options.get(name)
        if value is not None and (not isinstance(value, str) or not value or not value.isprintable() or len(value) > 100):
            raise ValueError(f"{name} must be a printable text of 1 to 100 characters, not {value!r}")
