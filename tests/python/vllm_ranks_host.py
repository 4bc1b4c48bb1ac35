# SPDX-License-Identifier: Apache-2.0
"""Engines of several GPUs, as the spec sees them. This process is the scheduler's side, and each rank is a process with its own device, over the
driver without a GPU. vllm_spec_host.py says how to run the scenarios. Specifications are pickled between the processes, as by vLLM's
executor."""

import contextlib
import errno
import functools
import hashlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time

import kvcache
import vllm_spec_host as base
from kvcache.vllm import identity, page, ranks as ranks_module
from vllm_spec_host import LAYERS, PAGE, SOCKET, VERSION, found_again, keys_of, leases, ns, told, until

CHUNK = LAYERS * PAGE
ours = base.ours


def value_of(key, layer, shard):
    return hashlib.shake_128(key + bytes([layer, shard])).digest(PAGE)


def config(name, rank, world, **options):
    made = base.config(name, world_size=world, **options)
    made.parallel.rank = rank
    return made


def caches(rank, writers, groups=1):
    """Makes the caches of a rank. `writers` is the number of ranks with the same bytes, as vLLM 0.33 reports it."""
    made = base.caches(*[PAGE] * LAYERS, groups=groups)
    for refs in made.group_data_refs:
        for ref in refs:
            ref.mapping = ns(num_writers=writers, writer_index=rank % writers)
    return made


# --- the process of a rank ---


def pools_of(one):
    return [p for p in one._memory.words[one._first + page._POOLS:one._first + page._POOLS + page.MOST_POOLS] if p]


class Rank:
    """Answers the calls that the scheduler's process sends."""

    def __init__(self, name, world, how, rank):
        self.name, self.rank, self.world, self.how = name, rank, world, dict(how)
        self.writers = self.how.pop("writers", 1)
        self.shard = rank // self.writers
        self.refuses = rank in self.how.pop("refuses", ())
        self.is_late = rank in self.how.pop("late", ())
        self.worker, self.attach = None, kvcache._gpu._attach
        self.took_part_with = []  # the published pools, each time it began to take part
        describe = page.RankPage.describe
        page.RankPage.describe = lambda one, text: (self.took_part_with.append(pools_of(one)), describe(one, text))
        if rank in self.how.pop("without_driver", ()):
            kvcache._gpu._attach = self.fails
        if not self.is_late:
            self.start()

    def start(self):
        spec = ours.KvcacheOffloadingSpec(config(self.name, self.rank, self.world, **self.how))
        self.caches = caches(self.rank, self.writers, groups=2 if self.refuses else 1)
        self.worker = ours.KvcacheWorker(spec, self.caches, 0, lambda: base.stream.value)

    @staticmethod
    def fails(_gpu, _kv, _options, why, _length):
        why.value = b"the driver is too old"
        return -errno.EOPNOTSUPP

    def renew_driver(self):
        kvcache._gpu._attach = self.attach
        base.cuda.stub_fault(b"cuMemHostRegister_v2", 0, 0, 0)

    def loses_its_gpu(self):
        """The GPU is detached, and cannot be attached again."""
        kvcache._gpu._attach = self.fails
        self.detaches()

    def loses_its_memory(self):
        """The GPU's driver no longer registers the daemon's memory."""
        base.cuda.stub_fault(b"cuMemHostRegister_v2", 0, 1 << 30, base.OUT_OF_MEMORY)
        self.detaches()

    def detaches(self):
        """Detaches the GPU on the mover's thread, which then tries to attach it again."""
        mover, is_over = self.worker.mover, threading.Event()
        attach = mover._attach

        def attaches():
            mover._attach = attach
            try:
                assert mover._gpu.detach()
                attach()
            finally:
                is_over.set()

        mover._attach = attaches
        mover.attach_soon()
        assert is_over.wait(60), "the rank never attaches again"

    def fill(self, keys, first):
        for i, key in enumerate(keys):
            for layer, one in enumerate(self.caches.tensors):
                one.tensor.write(first + i, value_of(key, layer, self.shard))

    def overwrite(self, blocks):
        for block in blocks:
            for one in self.caches.tensors:
                one.tensor.write(block, b"Z" * PAGE)

    def submit_store(self, *arguments):
        return self.worker.submit_store(*arguments)

    def submit_load(self, *arguments):
        return self.worker.submit_load(*arguments)

    def finished(self):
        return [(e.job_id, e.success) for e in self.worker.get_finished()]

    def wrong_blocks(self, keys, blocks):
        return [block for key, block in zip(keys, blocks) for layer, one in enumerate(self.caches.tensors)
                if one.tensor.read(block) != value_of(key, layer, self.shard)]

    def figures(self):
        mover = self.worker.mover
        return ns(pools=mover._gpu.pools(), rescued=mover.loads.rescued, stored=mover.stored_bytes, names=self.worker.spec.names,
                  fields=self.worker.spec.fields, took_part_with=self.took_part_with)

    def slow_stores(self, seconds):
        self.clock = base.Clock()
        self.clock.slow_stores(self.worker, seconds)

    def attach_soon(self):
        self.worker.mover.attach_soon()

    def looks(self):
        """Waits until the rank has looked at the page a few times, and attached."""
        mover, seen = self.worker.mover, threading.Semaphore(0)
        look = mover._look_at_page
        mover._look_at_page = lambda: (look(), seen.release())
        for _ in range(4):
            mover.attach_soon()
            assert seen.acquire(timeout=60), "the rank never looks at the page"
        del mover._look_at_page

    def runs(self, does):
        """Makes the device continue or stop."""
        base.cuda.stub_run(does)

    def shutdown(self):
        self.worker.shutdown()


def serve(connection, make, *arguments):
    rank = make(*arguments)
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            method, *given = connection.recv()
            connection.send(getattr(rank, method)(*given))


# --- the scheduler's process ---


class Processes:
    """The ranks of an engine. Each is an object in a process of its own."""

    def start_ranks(self, world, make, *arguments):
        """Makes the ranks by make(*arguments, rank)."""
        self.world, self.processes, self.connections = world, [], []
        context = multiprocessing.get_context("spawn")
        for rank in range(world):
            connection, theirs = context.Pipe()
            self.processes.append(context.Process(target=serve, args=(theirs, make, *arguments, rank), daemon=True))
            self.processes[-1].start()
            theirs.close()
            self.connections.append(connection)
        assert [c.recv() for c in self.connections] == ["ready"] * world

    def all(self, method, *arguments, of=None):
        """Makes all ranks, or those of `of`, do something concurrently. Returns their answers."""
        asked = range(self.world) if of is None else of
        for rank in asked:
            self.connections[rank].send((method, *arguments))
        return [self.connections[rank].recv() for rank in asked]

    def end_ranks(self):
        for connection, process in zip(self.connections, self.processes):
            connection.close()
            process.join()


class Engine(Processes, base.Host):
    def __init__(self, name="one", world=2, **how):
        self.number, self.slowest_s, self.counted = 0, 0.0, {}
        self.start_ranks(world, Rank, name, world, how)
        expected = {n: v for n, v in how.items() if n not in ("writers", "refuses", "late", "without_driver")}
        self.spec = ours.KvcacheOffloadingSpec(config(name, 0, world, **expected))
        self.manager = self.spec.get_manager()
        base.pickles(self.manager, world)
        if not {"refuses", "late", "without_driver"} & how.keys():
            until(self.manager._ready, "the ranks never take part")

    def finish(self, number):
        """Waits until each rank has reported the job once."""
        left = set(range(self.world))
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, f"job {number} is never reported by {left}"
            for rank, ended in zip(sorted(left), self.all("finished", of=sorted(left))):
                assert ended in ([], [(number, True)]), ended
                left -= {rank} if ended else set()
            self.step()
            if left:
                base.pause()

    def store(self, keys, context, first=0):
        self.all("fill", keys, first)
        output = self.timed(self.manager.prepare_store, keys, context)
        assert set(output.keys_to_store) <= set(keys) and not output.evicted_keys
        blocks = [first + keys.index(k) for k in output.keys_to_store]
        if blocks:
            self.number += 1
            where = ns(block_ids=blocks, group_sizes=[len(blocks)], block_indices=[0])
            assert self.all("submit_store", self.number, where, output.store_spec) == [True] * self.world
            self.finish(self.number)
            self.all("overwrite", blocks)
        return len(blocks)

    def begin_load(self, keys, context, first=40):
        """Returns the blocks, which are in another order than the chunks."""
        self.number += 1
        spec = self.timed(self.manager.prepare_load, keys, context)
        blocks = [first + len(keys) - 1 - i for i in range(len(keys))]
        self.all("overwrite", blocks)
        where = ns(block_ids=blocks, group_sizes=[len(blocks)], block_indices=[0])
        assert self.all("submit_load", self.number, spec, where) == [True] * self.world
        return blocks

    def load(self, keys, context, first=40):
        blocks = self.begin_load(keys, context, first)
        self.finish(self.number)
        self.timed(self.manager.complete_load, keys, context)
        assert self.all("wrong_blocks", keys, blocks) == [[]] * self.world, "a rank has other bytes than it stored"

    def figures(self):
        return self.all("figures")

    def stored_bytes(self):
        return [f.stored for f in self.figures()]

    def close(self):
        self.all("shutdown")
        self.end_ranks()
        self.manager.shutdown()


class Lines(logging.Handler):
    """Collects the lines of the log from here on."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("kvcache.vllm").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())

    def having(self, text):
        return [line for line in self.lines if text in line]


def evict(figures, keys):
    """Evicts these chunks from one shard."""
    with kvcache.Client(SOCKET) as client:
        client.namespace(figures.names[0], figures.fields).evict([identity.parts_of(k, 1)[0] for k in keys])


def two_ranks_stored_and_loaded():
    host, keys = Engine(), keys_of("a", 37)
    assert host.found("0", keys) == 0
    assert host.stored("1", keys) == 37 and host.stored("2", keys) == 0
    assert host.found("3", keys + keys_of("never", 3)) == 37
    if VERSION != "real":
        counts = host.counts()
        assert counts["stored_bytes"] == counts["loaded_memory_bytes"] == 2 * 37 * CHUNK and counts["up"] == 1, counts
        assert "rescued_loads" not in counts and counts["memory_bytes_per_second"] > 0, counts
    assert host.stored_bytes() == [37 * CHUNK] * 2
    names = [f.names[0] for f in host.figures()]
    assert names[0].endswith("/g0/s0.of.2") and names[1].endswith("/g0/s1.of.2"), names
    assert all(f.pools and f.took_part_with == [f.pools] for f in host.figures())
    beside = Engine("two")
    assert beside.found("4", keys) == 37
    host.close()
    assert beside.found("5", keys) == 37
    beside.close()
    alone = base.Host("alone")  # an engine of one GPU has other chunks
    assert alone.found("6", keys) == 0 and alone.stored("7", keys) == 37
    alone.close()


def chunks_of_three_blocks():
    """Each rank divides its shards of chunks in the same way, whether it or another rank with the same bytes wrote them."""
    for writers in (1, 2):
        host = Engine(f"writers {writers}", writers=writers, blocks_per_chunk=3, kvcache_namespace=f"writers{writers}")
        keys, contents = keys_of("three", 6), keys_of("contents", 18)  # chunks, and what their blocks hold
        context = host.looked_up("1", keys, 0)
        host.all("fill", contents, 1)
        output = host.manager.prepare_store(keys, context)
        where = ns(block_ids=list(range(1, 19)), group_sizes=[18], block_indices=[0])
        assert host.all("submit_store", 1, where, output.store_spec) == [True] * 2
        host.finish(1)
        host.end(context)
        assert sum(host.stored_bytes()) == 2 // writers * 18 * CHUNK, host.stored_bytes()
        context, blocks = host.begin("2"), list(range(70, 59, -1))
        assert host.lookup(keys, context) == 6
        spec = host.manager.prepare_load(keys[1:5], context)
        host.all("overwrite", blocks)
        assert host.all("submit_load", 2, spec, ns(block_ids=blocks, group_sizes=[11], block_indices=[4])) == [True] * 2
        host.finish(2)
        host.manager.complete_load(keys[1:5], context)
        assert host.all("wrong_blocks", contents[4:15], blocks) == [[], []]
        host.end(context)
        host.close()


def stores_that_cost_ranks_too_much():
    """The scheduler's side decides by what its ranks spend, and all of them stop and go on storing together."""
    clock, lines = base.Clock(), base.logged()
    host = Engine(prefill_tokens_per_s=10.0)
    host.all("slow_stores", 1.0)
    stored = base.paused_by_its_stores(host, clock)
    before = host.stored_bytes()
    assert before == [2 * stored * CHUNK] * 2 and len(lines) == 1, (stored, before, lines)
    assert host.stored("paused", keys_of("paused", 3)) == 0 and host.stored_bytes() == before
    host.works(clock, 59)
    for i in range(50):
        assert host.found(f"hit {i}", keys_of("new 1", 2)) == 2
        host.works(clock, 1)
        if len(lines) == 2:
            break
    assert len(lines) == 2 and lines[1].startswith("chunks are stored again"), lines
    assert host.stored("resumed", keys_of("paused", 3)) == 3
    assert host.stored_bytes() == [b + 3 * CHUNK for b in before]
    host.close()


def killed_after_a_store():
    host = Engine()
    assert host.stored("1", keys_of("kept", 20)) == 20
    os.kill(os.getpid(), signal.SIGKILL)


def next_engine():
    host = Engine("next")
    assert host.found("1", keys_of("kept", 20)) == 20
    host.close()


def four_ranks_from_disk():
    host, keys = Engine(world=4, ack="written"), keys_of("disk", 12)
    assert host.stored("1", keys) == 12
    with kvcache.Client(SOCKET) as client:
        for figures in host.figures()[1:3]:  # two shards lie on disk alone
            client.namespace(figures.names[0], figures.fields).evict([identity.parts_of(k, 1)[0] for k in keys], memory_only=True)
    assert host.found("2", keys) == 12
    host.close()


def one_shard_missing():
    """Chunks that are missing in one shard are a miss. The next store writes only that shard, and then they are a hit."""
    host, keys = Engine(), keys_of("shards", 20)
    assert host.stored("1", keys) == 20
    evict(host.figures()[1], keys[5:8])
    evict(host.figures()[0], keys[18:])
    assert host.found("2", keys) == 5
    counts = host.counts() if VERSION != "real" else {"partial_hits": 5}
    assert counts["partial_hits"] == 5, counts
    assert not [n for n in host.manager.get_stats().values if n.endswith(("partial_hits", "lookups"))], "chunks count twice"
    assert "failed_loads" not in counts, "shards that are missing were looked for by a lease"
    context = host.looked_up("3", keys, 5)
    before = host.stored_bytes()
    assert host.store(keys, context) == 5
    host.end(context)
    assert [now - then for now, then in zip(host.stored_bytes(), before)] == [2 * CHUNK, 3 * CHUNK]
    assert host.found("4", keys) == 20
    host.close()


def one_shard_s_lease_refused():
    """Leases are on all shards of a chunk or on none, also if only some chunks of those that are asked for together lack a shard."""
    host, keys = Engine(), keys_of("leases", 10)
    submit, figures = kvcache.Namespace.submit_get_map, host.figures()[1]
    for at, (lost, found) in enumerate(((keys, 0), (keys[5:8], 5))):
        assert host.stored(f"stores {at}", keys) == (10 if at == 0 else 0)

        def losing(namespace, asked, **options):
            if namespace.name == figures.names[0]:
                evict(figures, lost)
            return submit(namespace, asked, **options)

        kvcache.Namespace.submit_get_map = losing
        context = host.looked_up(f"loads {at}", keys, found)
        host.step()
        kvcache.Namespace.submit_get_map = submit
        if found:
            host.load(keys[:found], context)
        host.end(context)
        until(lambda: leases() == 0, "leases of a refused chunk stay")
        assert host.stored(f"again {at}", keys) == len(lost) and host.found(f"found {at}", keys) == 10
    host.close()


def rank_reconnects_between_lookup_and_load():
    host, keys = Engine(), keys_of("gone", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    told("restart")
    until(lambda: (host.all("attach_soon", of=[1]), [len(f.pools) for f in host.figures()])[1] == [1, 2], "the rank never attaches again")
    host.all("looks", of=[1])
    assert [len(f.pools) for f in host.figures()] == [1, 2], "a rank has released a pool that has leases"
    host.load(keys, context)
    host.end(context)
    more = keys_of("more", 6)
    found_again(host, more)
    until(lambda: [len(f.pools) for f in host.figures()] == [1, 1], "the old daemon's memory stays registered")
    assert not any(f.rescued for f in host.figures())
    host.close()


def daemon_killed_after_the_hit():
    host, keys = Engine(), keys_of("killed", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    told("kill")
    host.load(keys, context)
    host.end(context)
    assert not any(f.rescued for f in host.figures())
    assert host.found("3", keys) == 0 and host.stored("4", keys_of("later", 3)) == 0
    told("start")
    found_again(host, keys_of("back", 4))
    host.close()


def daemon_hangs_before_the_load():
    host, keys = Engine(), keys_of("hung", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    base.promises.LOOKUP_S = 1.0
    told("stop")
    host.load(keys, context)
    host.end(context)
    assert not any(f.rescued for f in host.figures())
    told("continue")
    found_again(host, keys, stores=False)
    host.close()


def rank_attaches_late():
    ranks_module.LATE_S = 60.0
    log, host, keys = Lines(), Engine(late=[1]), keys_of("late", 6)
    path = host.manager._ranks._page.path
    until(lambda: host.manager._ranks._page.states() == [1, 0], "the first rank never takes part")
    ranks_module.LATE_S = 0.0
    for _ in range(3):
        assert host.found("1", keys) == 0 and host.manager.prepare_store(keys, host.begin("2")).keys_to_store == []
        host.step()
    assert len(log.having("have not yet")) == 1 and "[1]" in log.having("have not yet")[-1], log.lines
    assert os.path.exists(path)
    host.all("start", of=[1])
    until(lambda: (host.step(), host.manager._ready())[1], "the late rank never takes part")
    assert not os.path.exists(path), "all ranks have opened the page, and it has its name still"
    assert host.stored("3", keys) == 6 and host.found("4", keys) == 6
    host.close()


def rank_refuses():
    log, host, keys = Lines(), Engine(refuses=[1]), keys_of("refused", 6)
    until(lambda: (host.step(), log.having("does not take part"))[1], "no rank refuses")
    for i in range(3):
        assert host.found(f"a{i}", keys) == 0 and host.stored(f"b{i}", keys) == 0
    assert len(log.having("rank 1 of 2 does not take part: KV caches of 2 groups")) == len(log.lines) == 1, log.lines
    spec = ours.KvcacheLoadStoreSpec.of_store(keys)
    assert host.all("submit_store", 9, ns(block_ids=list(range(6)), group_sizes=[6], block_indices=[0]), spec, of=[1]) == [True]
    assert host.all("finished", of=[1]) == [[(9, True)]]
    host.all("shutdown", of=[1])
    host.end_ranks()
    host.manager.shutdown()


def rank_without_a_driver():
    """A rank whose GPU cannot be attached refuses to take part until it can."""
    log, host, keys = Lines(), Engine(without_driver=[0]), keys_of("driver", 6)
    until(lambda: (host.step(), log.having("does not take part"))[1], "no rank refuses")
    for i in range(3):
        assert host.found(f"a{i}", keys) == 0 and host.stored(f"b{i}", keys) == 0
    assert len(log.having("rank 0 of 2 does not take part: the driver is too old")) == len(log.lines) == 1, log.lines
    host.all("renew_driver", of=[0])
    until(lambda: (host.step(), host.manager._ready())[1], "the rank never takes part")
    assert [f.took_part_with for f in host.figures()] == [[f.pools] for f in host.figures()]  # not before it can load
    found_again(host, keys)
    host.close()


STOPS = ("loses_its_gpu", "loses_its_memory", "shutdown")


def rank_stops():
    """The leases of an engine end when one of its ranks stops: of chunks that were found and wait for room, of requests that have ended, and of
    chunks whose leases arrive later. The engine does not load a chunk that it has found before, and is not asked to step for nothing."""
    for how in STOPS:
        host, keys = Engine(how), keys_of("stops", 10)
        host.stored("1", keys)
        waits, ended = host.looked_up("waits", keys, 10), host.looked_up("ended", keys, 10)
        until(lambda: leases() > 0, "nothing is leased")
        asks, board = host.begin("asks"), host.manager._ranks._page
        host.manager._promises.want("asks", keys[:5], [False] * 5)
        host.manager._promises.flush()
        host.all(how, of=[1])
        until(lambda: not any(board._word(1, page._POOLS + i) for i in range(page.MOST_POOLS)), "the rank still has the pool")
        host.end(ended)
        until(lambda: (host.step(), leases() == 0)[1], f"leases stay when a rank {how}")
        until(lambda: (host.step(), not host.manager.has_pending_work())[1], "the engine steps for nothing")
        assert host.lookup(keys, waits) == host.lookup(keys, asks) == 0 and not any(board._memory.words[page._IN_USE:page._IN_USE + page.MOST_POOLS])
        assert host.stored("not stored", keys_of("others", 2)) == 0 or how == "loses_its_memory"
        for context in (waits, asks):
            host.end(context)
        if how != "shutdown":
            host.all("renew_driver", of=[1])
            host.all("attach_soon", of=[1])
            found_again(host, keys)
            host.close()
            continue
        host.all("shutdown", of=[0])
        host.end_ranks()
        host.manager.shutdown()


def rank_stops_while_another_loads():
    """The leases of a load stay until all ranks have ended it, and end although a rank has stopped meanwhile."""
    host, keys = Engine(), keys_of("loads", 10)
    host.stored("1", keys)
    context, waits = host.looked_up("2", keys, 10), host.looked_up("waits", keys, 10)
    host.all("runs", False, of=[1])
    host.begin_load(keys, context)
    until(lambda: host.all("finished", of=[0]) == [[(host.number, True)]], "a rank never loads")
    before = leases()
    host.all("loses_its_gpu", of=[0])
    until(lambda: (host.step(), not host.manager._ranks.look())[1], "the rank still takes part")
    until(lambda: (host.step(), leases() == before // 2)[1], "leases of the request that waits stay")
    for _ in range(3):
        host.step()
        assert host.all("finished", of=[1]) == [[]] and leases() == before // 2, "leases end while a rank loads"
    host.all("runs", True, of=[1])
    until(lambda: host.all("finished", of=[1]) == [[(host.number, True)]], "the other rank never loads")
    assert host.all("wrong_blocks", keys, [49 - i for i in range(10)], of=[1]) == [[]]
    host.manager.complete_load(keys, context)
    until(lambda: (host.step(), leases() == 0)[1], "leases of the load stay")
    assert host.lookup(keys, waits) == 0
    host.end(context)
    host.end(waits)
    host.all("renew_driver", of=[0])
    host.all("attach_soon", of=[0])
    found_again(host, keys, stores=False)
    host.close()


def replicated_shard_written_once():
    """If all ranks hold the same bytes, as with MLA, there is one shard, and the ranks alternate in writing it."""
    host, keys = Engine(writers=2), keys_of("latent", 400)
    for at in range(0, 400, 40):
        assert host.stored(str(at), keys[at:at + 40]) == 40
    stored = host.stored_bytes()
    assert sum(stored) == 400 * CHUNK and abs(stored[0] - stored[1]) <= 0.1 * sum(stored), stored
    assert {f.names[0][-3:] for f in host.figures()} == {"/g0"}
    for at in range(0, 400, 100):
        assert host.found(f"found {at}", keys[at:at + 40]) == 40
    assert host.stored("again", keys[:40]) == 0
    host.close()


def grouped_heads_in_two_shards():
    """Four ranks of a model with two KV heads store each head once."""
    host, keys = Engine(world=4, writers=2), keys_of("heads", 40)
    assert host.stored("1", keys) == 40 and host.found("2", keys) == 40
    stored = host.stored_bytes()
    assert sum(stored) == 2 * 40 * CHUNK and min(stored) > 0 and stored[0] + stored[1] == stored[2] + stored[3], stored
    assert [f.names[0][-7:] for f in host.figures()] == ["s0.of.2", "s0.of.2", "s1.of.2", "s1.of.2"]
    host.close()


def reset_while_it_loads():
    """Loads in flight when vLLM resets its cache keep their leases until all ranks have ended them, although vLLM no longer mentions them."""
    host, keys = Engine(), keys_of("reset", 10)
    host.stored("1", keys)
    context = host.looked_up("2", keys, 10)
    host.all("runs", False, of=[1])
    host.begin_load(keys, context)
    host.manager.on_request_finished(context)
    host.manager.reset_cache()
    until(lambda: host.all("finished", of=[0]) == [[(host.number, True)]], "a rank never loads")
    for _ in range(3):
        assert host.all("finished", of=[1]) == [[]]
        host.step()
        assert host.manager.has_pending_work() and leases() > 0, "leases end while a rank loads"
    host.all("runs", True, of=[1])
    until(lambda: host.all("finished", of=[1]) == [[(host.number, True)]], "the other rank never loads")
    until(lambda: (host.step(), not host.manager.has_pending_work())[1], "a load is never over")
    until(lambda: leases() == 0, "leases stay")
    assert host.found("3", keys) == 10
    host.close()


def forgotten_after_a_reset():
    """All ranks store under the names that the scheduler's side looks for, before and after a reset that forgets."""
    host, keys = Engine(after_reset="forget"), keys_of("forgotten", 10)
    assert host.stored("1", keys) == 10 and host.found("2", keys) == 10
    host.manager.reset_cache()
    assert host.found("3", keys) == 0
    assert host.stored("4", keys) == 10 and host.found("5", keys) == 10
    host.close()


def rank_killed():
    """When vLLM ends the engine, its leases end with the scheduler's connection, and another engine is not affected."""
    beside, mine = Engine("beside"), keys_of("beside", 10)
    assert beside.stored("1", mine) == 10
    for at, step in enumerate(("idle", "storing", "leased", "loading")):
        host, keys = Engine(f"killed {step}"), keys_of(step, 10)
        if step in ("leased", "loading"):
            host.stored("1", keys)
        context = host.looked_up("2", keys, 10 if step in ("leased", "loading") else 0)
        if step in ("storing", "loading"):
            host.all("runs", False, of=[1])
        if step == "storing":
            host.all("fill", keys, 0)
            spec = host.manager.prepare_store(keys, context).store_spec
            host.all("submit_store", 1, ns(block_ids=list(range(10)), group_sizes=[10], block_indices=[0]), spec)
        elif step == "loading":
            host.begin_load(keys, context)
        host.processes[1].kill()
        host.processes[1].join()
        host.connections[1].close()
        host.all("shutdown", of=[0])
        host.processes[0].terminate()
        host.processes[0].join()
        host.manager.shutdown()
        until(lambda: leases() == 0, "leases of the ended engine stay")
        assert beside.found(f"beside {step}", mine) == 10
        again = Engine(f"again {step}")
        assert again.found("3", keys) == (10 if step in ("leased", "loading") else 0)
        assert again.stored("4", keys) == (0 if step in ("leased", "loading") else 10) and again.found("5", keys) == 10
        again.close()
    beside.close()


def one_rank_of_four_killed():
    """A rank of four is killed: an engine beside it does not notice, and the next engine of four ranks finds all that was stored."""
    beside, mine = Engine("beside"), keys_of("beside", 10)
    assert beside.stored("1", mine) == 10
    host, keys, more = Engine("four", world=4), keys_of("four", 12), keys_of("more", 6)
    assert host.stored("1", keys) == 12
    host.all("runs", False, of=[2])
    context = host.looked_up("2", keys, 12)
    host.begin_load(keys, context)
    assert leases() == 4 * 12
    host.processes[2].kill()
    host.processes[2].join()
    host.connections[2].close()
    assert beside.found("2", mine) == 10 and beside.stored("3", more) == 6
    host.all("shutdown", of=[0, 1, 3])
    for rank in (0, 1, 3):
        host.processes[rank].terminate()
        host.processes[rank].join()
    host.manager.shutdown()
    until(lambda: leases() == 0, "leases of the ended engine stay")
    again = Engine("again", world=4)
    assert again.found("4", keys) == 12 and beside.found("5", more) == 6
    again.close()
    beside.close()


def engine_of_four(number):
    """Stores and loads beside three engines that share what they store. The engine waits between storing and loading."""
    host, mine = Engine(f"engine {number}", world=1), keys_of(f"engine {number}", 8)
    assert host.stored("1", mine) == 8
    assert host.stored("2", keys_of("shared", 8)) in range(9)
    print("stored", flush=True)
    sys.stdin.readline()
    assert host.found("3", mine) == 8 and host.found("4", keys_of("shared", 8)) == 8
    assert host.stored("5", keys_of(f"later {number}", 8)) == 8 and host.found("6", keys_of(f"later {number}", 8)) == 8
    host.close()


engine_1_of_four, engine_2_of_four, engine_3_of_four, engine_4_of_four = (functools.partial(engine_of_four, n) for n in range(1, 5))


def engine_after_the_killed_one():
    host = Engine("next", world=1)
    for keys in (keys_of("engine 4", 8), keys_of("shared", 8), keys_of("later 1", 8)):
        assert host.found(str(keys[0]), keys) == 8
    host.close()


def ranks_of_different_configurations():
    """A rank that was started with other options than the scheduler refuses to take part."""
    log = Lines()
    host = Engine("one", late=[0, 1])
    host.spec.common ^= 1
    host.manager._ranks._page._memory.words[5] = host.spec.common
    host.all("start")
    until(lambda: (host.step(), log.having("does not take part"))[1], "no rank refuses")
    assert "kvcache_namespace differ" in log.having("does not take part")[0]
    assert host.found("1", keys_of("x", 2)) == 0
    host.all("shutdown")
    host.end_ranks()
    host.manager.shutdown()


if __name__ == "__main__":
    globals()[base.SCENARIO]()
    print("right", flush=True)
