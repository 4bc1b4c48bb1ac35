# SPDX-License-Identifier: Apache-2.0
"""KvcacheStorage, SGLang's HiCacheStorage of this adapter, for SGLang 0.5.17 to 0.5.23.

SGLang makes one backend for each rank, in the scheduler's process, and calls it from three threads: the prefetch thread looks up pages, the I/O
thread loads them, and the backup thread stores them. The constructor raises ValueError for wrong options. After that, no method that SGLang
calls raises: after a failure, pages count as not found or not stored, and the counter `errors` grows. Pages (pages.py) moves the bytes.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from .. import Error
from ..engine import canary as distances
from ..engine import former, options as checks
from ..engine.verification import COUNTERS, FIRST, OFF, State
from ..engine.weights import CHECKS
from . import facts, identity
from .canary import PageCanary
from .chain import Chain
from .link import Link
from .pages import Pages, describe

log = logging.getLogger("kvcache.sglang")

ACKS = ("accepted", "written", "durable")
OPEN_S = 1.0         # pause after a failed attempt to open the canary's next namespaces
MOST_TIMEOUT_S = 3600  # largest value of the option timeout_s
MOST_SAMPLES = 1000  # most samples of each metric that are kept until SGLang takes them
Call = TypeVar("Call", bound=Callable[..., Any])


def _answers(otherwise: Callable[..., Any]) -> Callable[[Call], Call]:
    """Decorates a method that SGLang calls: if the method raises, the caller gets the result of otherwise() instead, because an exception would end
    SGLang's thread."""

    def decorate(call: Call) -> Call:
        @functools.wraps(call)
        def guarded(self: KvcacheStorage, *arguments: Any, **named: Any) -> Any:
            try:
                return call(self, *arguments, **named)
            except Exception as e:
                self._link.count("errors")
                self._link.complain(f"{call.__name__}() failed, and its pages count as not found or not stored: {type(e).__name__}: {e}")
                log.debug("%s() failed", call.__name__, exc_info=True)
                return otherwise(*arguments, **named)

        return guarded  # type: ignore[return-value]

    return decorate


def _none_of(keys: Sequence[str], *_: Any, **__: Any) -> list[bool]:
    return [False] * len(keys)


def _no_page_of(transfers: Sequence[Any], *_: Any, **__: Any) -> dict[str, list[bool]]:
    return {t.name: [False] * len(t.keys or ()) for t in transfers}  # SGLang counts a pool that is absent as loaded


class _Indices(list):  # type: ignore[type-arg]
    """The indices of tokens in a host pool, for SGLang's methods that call tolist() as on a tensor."""

    def tolist(self) -> list[int]:
        return list(self)


class _Pool:
    """A host pool of SGLang, the lengths of the pieces of a page in it, and its pages in the daemon."""

    def __init__(self, pool: Any, lengths: tuple[int, ...], pages: Pages) -> None:
        self.pool, self.lengths, self.pages = pool, lengths, pages

    def pieces(self, count: int, host_indices: Any) -> list[int]:
        """Returns the addresses of the pieces of `count` pages. Raises ValueError if the pieces have other lengths than when the pool was
        registered, because their memory then has another layout."""
        addresses, lengths = self.pool.get_page_buffer_meta(host_indices)
        if len(addresses) != count * len(self.lengths) or list(lengths) != list(self.lengths) * count:
            raise ValueError(f"the host pool returned {len(addresses)} pieces of {list(lengths)[:4]} bytes for {count} pages, whose pieces had "
                             f"{self.lengths[:4]} bytes when the pool was registered")
        return list(addresses)


class KvcacheStorage(HiCacheStorage):  # type: ignore[misc]
    """SGLang's HiCacheStorage of this adapter. All options are keys of --hicache-storage-backend-extra-config:

    socket       path of the daemon's socket; default: $KVCACHE_SOCKET, else the usual places
    namespace    prefix of the namespaces' names ("sglang")
    weights      names the model's weights; default: a digest of their content (kvcache.engine.weights)
    weights_check  "samples" (default) or "full": how much of each file that digest reads
    ack          when a store is complete: "accepted" (default; the page is in memory), "written" or "durable"
    share        register the host pool with the daemon, so that it reads pages in place (true)
    remote       also look up pages in the shared tier (true)
    load_into    the daemon writes loaded pages directly to the registered host pool (true); false: SGLang's thread copies them
    canary       "first": compare a stored page with a computed one before any page is loaded (kvcache.engine.verification); "off" (default)
    canary_bound  distance above which the two pages differ (kvcache.engine.canary)
    part_bytes   longest chunk in bytes, a multiple of 4096; longer pages are stored in parts (64 MiB)
    timeout_s    timeout of a load, and of a request to store, in seconds (5)

    Options of SGLang's file backend are accepted and have no effect (kvcache.engine.former)."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        options = dict(storage_config.extra_config or {})
        former.note(log, "SGLang's file backend", former.SGLANG_FILE, options)
        former.note(log, "SGLang's file backend", former.SGLANG_VARIABLES, os.environ)
        self._ack, self._share = options.get("ack", "accepted"), options.get("share", True)
        self._part_bytes = checks.part_bytes_of("part_bytes", options.get("part_bytes", 64 << 20))
        timeout_s = checks.timeout_of("timeout_s", options.get("timeout_s", 5.0), MOST_TIMEOUT_S, plain=True)
        self._prefix, socket = options.get("namespace", "sglang"), options.get("socket")
        self._weights, self._check = options.get("weights"), options.get("weights_check", "samples")
        self._start = identity.new_start()
        if self._check not in CHECKS:
            raise ValueError(f"weights_check must be 'samples' or 'full', not {self._check!r}")
        if self._ack not in ACKS:
            raise ValueError(f"ack must be 'accepted', 'written' or 'durable', not {self._ack!r}")
        if not isinstance(self._share, bool):
            raise ValueError(f"share must be true or false, not {self._share!r}")
        remote = options.get("remote", True)
        if not isinstance(remote, bool):
            raise ValueError(f"remote must be true or false, not {remote!r}")
        into = options.get("load_into", True)
        if not isinstance(into, bool):
            raise ValueError(f"load_into must be true or false, not {into!r}")
        for name, value in (("namespace", self._prefix), ("weights", self._weights), ("socket", socket)):
            if value is not None and (not isinstance(value, str) or not value or not value.isprintable() or len(value) > 100):
                raise ValueError(f"{name} must be a printable text of 1 to 100 characters, not {value!r}")
        self._canary_mode = options.get("canary", OFF)
        self._bound = checks.bound_of("canary_bound", options.get("canary_bound", distances.BOUND), plain=True)
        if self._canary_mode not in (OFF, FIRST):
            raise ValueError(f"canary must be 'off' or 'first', not {self._canary_mode!r}")
        self._canary: PageCanary | None = None
        self._facts: tuple[dict[str, str], dict[str, object]] | None = None
        if self._canary_mode != OFF and storage_config.is_mla_model and storage_config.tp_size > 1:
            log.warning("the canary is off, so stored pages are loaded without a comparison: one rank of %d stores the pages of all ranks, and the "
                        "others have no computed page to compare", storage_config.tp_size)
            self._canary_mode = OFF
        self._config = storage_config
        self._in_pieces = bool(options.get("interface_v1", 0))
        self._link = Link(socket, timeout_s, remote=remote, into=into)
        self._link.counters.update(dict.fromkeys(("learned_parents", *COUNTERS), 0))
        self._pool: _Pool | None = None
        self._sides: dict[str, _Pool] = {}  # host pools other than that of K and V, by name
        self._refused_pool = ""
        self._opened: dict[_Pool, Pages] = {}  # by pool, its pages in the canary's next namespaces, until those of all pools are open
        self._has_moved, self._open_at = False, 0.0  # the canary's next namespaces are not open; time.monotonic() of the next attempt
        self._chain = Chain()
        self._values: Pages | None = None
        self._sampling = threading.Lock()
        self._samples: dict[str, list[float]] = {n: [] for n in ("prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth")}

    def __repr__(self) -> str:
        link = getattr(self, "_link", None)
        if link is None:
            return "<KvcacheStorage of nothing>"
        pages = f"{len(self._sides) + 1} pool(s)" if self._values is not None else "no pool yet"
        return f"<KvcacheStorage {self._prefix!r}: {'connected' if link.well else 'not connected'}, {pages}>"

    # --- the host pool and its namespaces ---

    @_answers(lambda *_: None)
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if self._pool is not None or self._values is not None:
            return
        refusal = facts.refusal()
        if refusal:
            log.warning("this engine runs without kvcache, which would return wrong pages: %s", refusal)
            return
        pool = getattr(getattr(mem_pool_host, "anchor_entry", None), "host_pool", mem_pool_host)
        lengths: tuple[int, ...] = ()
        if self._in_pieces:
            first = _Indices(range(getattr(pool, "logical_page_size", pool.page_size)))
            lengths = tuple(int(n) for n in pool.get_page_buffer_meta(first)[1])
            if self._share:
                self._share_memory(pool)
            self._pool = _Pool(pool, lengths, self._pages(pool, lengths, of_canary=True))
        self._values = self._pages(pool, ())
        self._link.begin()

    def _share_memory(self, pool: Any) -> None:
        buffers = getattr(pool, "kv_buffer", None)
        if not hasattr(buffers, "data_ptr") and not isinstance(buffers, (list, tuple)):
            buffers = pool.get_hybrid_pool_buffer()
        for tensor in buffers if isinstance(buffers, (list, tuple)) else [buffers]:
            address, nbytes = describe(tensor)
            memory = (ctypes.c_ubyte * nbytes).from_address(address)
            memory._tensor = tensor  # type: ignore[attr-defined]  # keeps the tensor, which owns the memory
            self._link.share(memory, address, nbytes)

    def _state_of(self, name: str) -> State | None:
        found = self._link.searches.namespace_state(name)
        return None if found is None else State(not found.chunks and not found.sessions, found.fingerprint)

    def _facts_of_engine(self) -> tuple[dict[str, str], dict[str, object]]:
        """Returns the facts of the model, and those of SGLang's context, which are the same for all host pools. The first call collects them: the
        files of the weights may be replaced later, while the engine keeps the weights that it has read."""
        if self._facts is None:
            model, revision = facts.model_of(self._config.model_name)
            if self._weights and isinstance(revision, identity.Unknown):
                revision = "of weights"  # the option weights identifies the revision, too
            weights = self._weights or facts.weights_of_engine(model, None if isinstance(revision, identity.Unknown) else revision, self._check)
            self._facts = {"model": model, "revision": revision, "weights": weights}, facts.of_engine()
        return self._facts

    def _pages(self, pool: Any, lengths: tuple[int, ...], side: str = "", of_canary: bool = False) -> Pages:
        model, engine = self._facts_of_engine()
        said = identity.fields_of(self._config, pool, lengths, **model, part_bytes=self._part_bytes, side=side)
        fingerprint = identity.compose("sglang", {**said, **engine}, self._start)
        if not side and (lengths or not self._in_pieces):
            identity.warn(log, fingerprint)
        fields = fingerprint.fields
        name = identity.namespace_name(self._prefix, fields)
        if of_canary and self._canary_mode != OFF:
            self._canary = PageCanary(self._bound, str(getattr(pool, "dtype", "")), lengths, name, fields, self._state_of)
        if lengths and self._canary is not None:
            name = self._canary.named(name)
        page = sum(lengths)
        log.info("kvcache uses the namespace %s for pages of %s", name, f"{page} bytes in {len(lengths)} pieces" if lengths else "any size")
        self._link.largest_part = max(self._link.largest_part, min(page, self._part_bytes))
        spaces = self._link.namespace(name, fields, min(page, self._part_bytes))
        return Pages(self._link, spaces, self._part_bytes, self._ack)

    # --- the canary ---

    def _may_store(self, pool: _Pool, names: list[bytes], addresses: list[int], has_parent: bool) -> bool:
        """Compares one of the computed pages with the stored one if the canary needs it. Returns whether the pages may be stored."""
        if self._canary is None:
            return True
        if self._follow(pool):
            there = pool.pages.exists(names, pool.lengths) if self._canary.is_open else []
            self._has_moved = self._canary.compare(names, there, addresses, pool.lengths, has_parent, lambda key: self._stored_page(pool, key))
        may_store = self._follow(pool) and self._canary.may_store(len(names))
        if self._has_moved:
            self._link.count("canary_unstored", len(names))
        for name, counted in self._canary.take_counts().items():
            self._link.count(name, counted)
        return may_store

    def _follow(self, pool: _Pool) -> bool:
        """Opens the next variant of the namespaces of all pools if the canary has rejected the present variant. Returns whether the pools have the
        variant in use. While they have not, no page may be stored, because it would get into the rejected variant."""
        if not self._has_moved:
            return True
        if self._canary is None or time.monotonic() < self._open_at:
            return False
        self._open_at = time.monotonic() + OPEN_S
        try:
            if not self._opened:
                self._canary.enter()
            for side, one in (("", pool), *self._sides.items()):
                if one not in self._opened:
                    self._opened[one] = self._pages(one.pool, one.lengths, side)
        except Error as e:
            self._link.complain(f"nothing is loaded or stored until the canary's next namespaces can be opened: {e}")
            return False
        for one, pages in self._opened.items():
            one.pages = pages
        self._has_moved, self._open_at, self._opened = False, 0.0, {}
        return True

    @staticmethod
    def _stored_page(pool: _Pool, key: bytes) -> bytes | None:
        place = ctypes.create_string_buffer(sum(pool.lengths))
        addresses, at = [], ctypes.addressof(place)
        for length in pool.lengths:
            addresses.append(at)
            at += length
        return place.raw if pool.pages.get([key], addresses, pool.lengths) == [True] else None

    # --- lookups ---

    @_answers(lambda *_, **__: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        names = [identity.key_of(k) for k in keys]
        self._chain.learn(names, _parent_of(extra_info))
        if self._pool is not None:
            run = self._pool.pages.match(names, self._pool.lengths)
            return run if self._canary is None else self._canary.loadable(names[:run])
        return self._values.match(names) if self._values is not None else 0

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    # --- pages in pieces: interface_v1 ---

    @_answers(_none_of)
    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        if self._pool is None or not keys:
            return [False] * len(keys)
        started = time.monotonic()
        names, addresses = [identity.key_of(k) for k in keys], self._pool.pieces(len(keys), host_indices)
        parent, lengths = self._parent(names, extra_info), self._pool.lengths
        n = len(names) if self._canary is None else self._canary.loadable(names)  # SGLang 0.5.23 loads some pages without a lookup
        good = self._pool.pages.get(names[:n], addresses[:n * len(lengths)], lengths, parent) + [False] * (len(names) - n)
        self._sample("prefetch", sum(good), sum(self._pool.lengths), time.monotonic() - started)
        return good

    @_answers(_none_of)
    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        if self._pool is None or self._refused_pool or not keys:
            return [False] * len(keys)
        started = time.monotonic()
        names, addresses = [identity.key_of(k) for k in keys], self._pool.pieces(len(keys), host_indices)
        parent = self._parent(names, extra_info)
        if not self._may_store(self._pool, names, addresses, parent is not None):
            return [False] * len(keys)
        earlier: set[bytes] = set()
        good = self._pool.pages.put(names, addresses, self._pool.lengths, parent, earlier)
        if self._canary is not None:
            self._canary.stored([n for n, ok in zip(names, good) if ok and n not in earlier])
        self._sample("backup", sum(good), sum(self._pool.lengths), time.monotonic() - started)
        return good

    def _parent(self, names: list[bytes], extra_info: Any) -> bytes | None:
        """Returns the key of the page before the first page, as SGLang passes it, else as an earlier call has shown (chain.py), or None."""
        said = _parent_of(extra_info)
        parent = said or self._chain.before(names[0])
        if said is None and parent is not None:
            self._link.count("learned_parents")
        self._chain.learn(names, parent)
        return parent

    # --- older calls, with one tensor for each page ---

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    @_answers(lambda keys, *_, **__: [None] * len(keys))
    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Loads pages into the tensors `target_locations`. Returns a list with each tensor that was filled, and None for each other page."""
        if self._values is None or target_locations is None or len(target_locations) != len(keys):
            return [None] * len(keys)
        good = self._move(self._values.get, keys, target_locations)
        return [t if ok else None for t, ok in zip(target_locations, good)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    @_answers(lambda *_, **__: False)
    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        if self._values is None or values is None or len(values) != len(keys):
            return False
        return all(self._move(self._values.put, keys, values))

    def _move(self, call: Callable[..., list[bool]], keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        """Moves one tensor for each key, tensors of equal length in one call. Returns for each tensor whether it was moved; False for
        None."""
        good = [False] * len(keys)
        of_length: dict[int, list[tuple[int, int]]] = {}
        for i, tensor in enumerate(tensors):
            if tensor is not None:
                address, nbytes = describe(tensor)
                of_length.setdefault(nbytes, []).append((i, address))
        for nbytes, listed in of_length.items():
            said = call([identity.key_of(keys[i]) for i, _ in listed], [a for _, a in listed], [nbytes])
            for (i, _), ok in zip(listed, said):
                good[i] = ok
        return good

    # --- models with several host pools ---

    @_answers(lambda *_: None)
    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Registers a further host pool of the model (Mamba, sliding windows, an indexer, a draft model), whose pages get a namespace of their own.
        If one pool cannot be stored, no page of the model is stored, because pages of K and V are useless without those of the other pools."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(getattr(host_pool_name, "value", host_pool_name))
        if name == "kv" or name in self._sides:
            return
        try:
            if self._pool is None:
                raise ValueError("the host pool of K and V was not registered before this one, or was refused: set the option interface_v1 "
                                 "of the backend to 1, and see the earlier warnings")
            self._sides[name] = self._side_pool(host_pool, name)
        except Exception as e:
            self._refused_pool = name
            log.warning("no page of this model is stored or found, because its host pool '%s' cannot be stored (%s: %s)", name, type(e).__name__, e)

    def _side_pool(self, pool: Any, name: str) -> _Pool:
        """Returns a further host pool, whose memory is registered with the daemon if the option share is true. Raises ValueError if the
        pool does not list the pieces of its pages page by page."""
        tokens = int(getattr(pool, "page_size", 1) or 1)
        (first, lengths), (both, _) = (pool.get_page_buffer_meta(_Indices(range(n * tokens))) for n in (1, 2))
        (second, _) = pool.get_page_buffer_meta(_Indices(range(tokens, 2 * tokens)))
        if not first or list(both) != [*first, *second]:
            raise ValueError("the pool does not list all pieces of a page before those of the next page")
        if self._share:
            self._share_memory(pool)
        lengths = tuple(int(n) for n in lengths)
        return _Pool(pool, lengths, self._pages(pool, lengths, name))

    @_answers(lambda *_, **__: PoolTransferResult.empty())
    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Returns how many leading pages can be restored from all pools, and for SGLang 0.5.23 also all smaller numbers that can be restored. A pool
        with the hit policy "trailing_pages" needs its last pages only, and each other pool needs every page."""
        if self._refused_pool:
            return PoolTransferResult.empty()
        run = self.batch_exists(keys, extra_info)
        hits: dict[Any, int] = {PoolName.KV: run} if run else {}
        usable = list(range(1, run + 1))
        for transfer in pool_transfers or ():
            if not usable:
                break
            fitting = self._restorable(keys[:run], transfer)
            if fitting:
                hits[transfer.name] = max(fitting)
            usable = [n for n in usable if n in fitting]
        result = PoolTransferResult(usable[-1] if usable else 0, hits)
        if hasattr(result, "restorable_prefix_pages"):  # since 0.5.23
            result.restorable_prefix_pages = usable
        return result

    def _restorable(self, keys: list[str], transfer: Any) -> Collection[int]:
        """Returns each number of leading pages for which the transfer's pool has the pages that it needs."""
        side = self._sides[_name_of(transfer)]
        there = side.pages.exists([identity.key_of(k) for k in keys], side.lengths)
        policy = str(getattr(transfer.hit_policy, "value", transfer.hit_policy))
        if policy not in ("all_pages", "trailing_pages"):
            raise ValueError(f"this adapter supports SGLang's hit policies all_pages and trailing_pages, not {policy!r}: use a version of SGLang "
                             "that the adapter's README.md lists")
        window = max(1, len(transfer.keys or ())) if policy == "trailing_pages" else len(keys)
        run, fitting = 0, set()
        for n, is_there in enumerate(there, 1):
            run = run + 1 if is_there else 0
            if run >= min(window, n):
                fitting.add(n)
        return fitting

    @_answers(_no_page_of)
    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {t.name: self._move_side(t, extra_info, True) for t in transfers}

    @_answers(_no_page_of)
    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {t.name: self._move_side(t, extra_info, False) for t in transfers}

    def _move_side(self, transfer: Any, extra_info: Any, is_get: bool) -> list[bool]:
        """Moves the pages of one transfer. A failure of one pool does not affect the others."""
        keys, side = list(transfer.keys or ()), self._sides.get(_name_of(transfer))
        if not keys or side is None or self._refused_pool or self._has_moved:
            return [False] * len(keys)
        try:
            names, places = [identity.key_of(k) for k in keys], side.pieces(len(keys), transfer.host_indices)
            if not is_get and self._canary is not None and not self._canary.may_store(0):
                return [False] * len(keys)
            move = side.pages.get if is_get else side.pages.put
            return move(names, places, side.lengths, self._parent(names, extra_info))
        except Exception as e:
            self._link.count("errors")
            self._link.complain(f"pages of the host pool '{_name_of(transfer)}' were not {'loaded' if is_get else 'stored'}: {type(e).__name__}: {e}")
            return [False] * len(keys)

    # --- clear, metrics, close ---

    def clear(self) -> None:
        """Refuses to clear the daemon, which also stores chunks of other engines."""
        log.warning("SGLang's request to clear its storage removes no pages, which other engines may use; kvcachectl purge removes a namespace")

    def _sample(self, what: str, pages: int, page_bytes: int, seconds: float) -> None:
        if not pages or not getattr(self._config, "enable_storage_metrics", False):
            return
        with self._sampling:
            for name, value in ((f"{what}_pgs", pages), (f"{what}_bandwidth", pages * page_bytes / max(seconds, 1e-9) / 1e9)):
                if len(self._samples[name]) < MOST_SAMPLES:
                    self._samples[name].append(value)

    @_answers(lambda *_, **__: None)
    def get_stats(self) -> Any:
        """Returns SGLang's StorageMetrics with the pages and the GB/s of each load and store since the last call."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        metrics = StorageMetrics()
        with self._sampling:
            for name, values in self._samples.items():
                getattr(metrics, name).extend(values)
                values.clear()
        return metrics

    @property
    def counters(self) -> dict[str, int]:
        """Returns the counters of this backend since its start: pages, bytes and failures (link.COUNTERS, and those of the canary)."""
        return dict(self._link.counters)

    @_answers(lambda *_, **__: None)
    def close(self) -> None:
        log.info("the kvcache backend ends with these counters: %s", ", ".join(f"{n} {v}" for n, v in self._link.counters.items() if v) or "all 0")
        self._link.close()


def _name_of(transfer: Any) -> str:
    return str(getattr(transfer.name, "value", transfer.name))


def _parent_of(extra_info: Any) -> bytes | None:
    """Returns the key of the page before the first page if SGLang passes it (hicache_storage_pass_prefix_keys), or None."""
    before = getattr(extra_info, "prefix_keys", None)
    return identity.key_of(before[-1]) if before else None
