# SPDX-License-Identifier: Apache-2.0
"""The page that an engine's scheduler and its ranks share: the words of each side, and stale, foreign or hostile pages."""

import errno
import json
import logging
import os
import pathlib
import pickle
import subprocess
import sys
import types

import pytest
from kvcache.vllm import delivery, page, promises, ranks
from kvcache.vllm.page import ATTACHED, NONE, REFUSES, Description, EnginePage, PageError, Seat, open_page
from kvcache.vllm.shards import Share, shards_of, shares_of

ns = types.SimpleNamespace
FIELDS = {"engine": "vllm", "model": "m"}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Pages are made in a folder of the test."""
    monkeypatch.setattr(delivery, "FOLDER", str(tmp_path))
    return tmp_path


def described(rank=0, world=2, **groups):
    return Description("vllm/m-1", FIELDS, groups.get("groups") or {0: (4096, Share(rank, world))})


@pytest.fixture
def engine():
    """Provides the page of an engine with two ranks, and each rank's view of it."""
    made = EnginePage("e", 2, 7)
    return ns(page=made, ranks=[open_page("e", r, 2, 7) for r in range(2)])


def word(engine, rank, at, value):
    engine.page._memory.words[page.HEADER_WORDS + rank * page.RANK_WORDS + at] = value


def text(engine, rank, data, state=ATTACHED):
    """Writes a text as a hostile rank does."""
    at = (page.HEADER_WORDS + rank * page.RANK_WORDS + page.TEXT_AT) * page.WORD
    engine.page._memory.bytes[at:at + len(data)] = data
    word(engine, rank, page._LENGTH, len(data))
    word(engine, rank, page._STATE, state)


def test_a_rank_s_words_reach_the_scheduler(engine):
    assert engine.page.states() == [NONE, NONE] and engine.page.is_here(0)
    one = engine.ranks[1]
    one.describe(described(1))
    one.set_pools([11, 12])
    one.set_variant(3)
    one.set_counters(stored_bytes=1 << 40, failed_stores=2)
    assert engine.page.states() == [NONE, ATTACHED] and engine.page.description(1) == described(1)
    counted = dict(zip(page.COUNTERS, engine.page.all_counted()[1]))
    assert counted["stored_bytes"] == 1 << 40 and counted["rescued_loads"] == 0
    assert not engine.page.serves(11), "one rank has not published the pool"
    engine.ranks[0].set_pools([12, 11])
    assert engine.page.serves(11) and engine.page.serves(12) and not engine.page.serves(13) and not engine.page.serves(0)
    engine.ranks[0].set_variant(2)
    assert engine.page.variant() == 2


def test_the_scheduler_s_words_reach_the_ranks(engine):
    assert engine.page.use([1, 2, 3, 4]) and engine.ranks[0].in_use() == {1, 2, 3, 4}
    assert not engine.page.use([1, 2, 3, 4, 5]) and engine.ranks[0].in_use() == {1, 2, 3, 4}, "a list that is full has changed"
    assert engine.page.use([4, 9]) and engine.ranks[1].in_use() == {4, 9}
    assert engine.page.use([]) and engine.ranks[1].in_use() == set()
    engine.page.want(77)
    assert engine.ranks[1].wanted == 77 and not engine.ranks[1].is_closed
    engine.page.close(0.0)
    assert engine.ranks[1].is_closed


def test_a_pool_that_stays_in_use_is_never_off_the_list(engine):
    """A rank that reads between two writes of the scheduler must not release the page."""
    engine.page.use([1, 2, 3])
    seen, words = [], engine.page._memory.words

    class Watched:
        def __getitem__(self, at):
            return words[at]

        def __setitem__(self, at, value):
            words[at] = value
            seen.append(engine.ranks[0].in_use())

    engine.page._memory.words = Watched()
    engine.page.use([3, 5])
    assert seen and all(3 in pools for pools in seen)
    engine.page._memory.words = words


def test_samples_are_taken_once_and_the_latest_stay(engine):
    one = engine.ranks[0]
    one.add_load(10 << 20, 0.001)
    one.add_prefill(512, 0.25)
    assert engine.page.loads(0) == [(10 << 20, pytest.approx(0.001))] and engine.page.loads(0) == []
    assert engine.page.prefills(0) == [(512, pytest.approx(0.25))] and engine.page.prefills(1) == []
    for i in range(1, 101):
        one.add_prefill(i, 1.0)
    assert [n for n, _ in engine.page.prefills(0)] == list(range(101 - page.RING, 101))


def test_values_beyond_a_sample_s_bits_are_cut(engine):
    engine.ranks[0].add_load(1 << 60, 1e9)
    [(nbytes, seconds)] = engine.page.loads(0)
    assert nbytes == ((1 << 28) - 1) * 4096 and 6000 < seconds < 7000


@pytest.mark.parametrize("head", [0, 5, 1 << 40, (1 << 64) - 1])
def test_a_hostile_head_of_a_ring_gives_few_samples(engine, head):
    engine.ranks[0].add_load(4096, 1.0)
    assert len(engine.page.loads(0)) == 1
    word(engine, 0, page._LOADS, head)
    assert len(engine.page.loads(0)) <= page.RING
    word(engine, 0, page._LOADS, 0)
    assert engine.page.loads(0) == []


@pytest.mark.parametrize("said, wanted", [((3, 9), 3), ((3, 0), 0), ((3, 11), 0), ((1 << 63, 10), 0), ((10, 10), 10)])
def test_loads_end_only_below_the_next_one(engine, said, wanted):
    for rank, number in enumerate(said):
        word(engine, rank, page._ENDED, number)
    assert engine.page.ended_below(10) == wanted


@pytest.mark.parametrize("state", [3, 99, (1 << 64) - 1])
def test_an_unknown_state_is_none(engine, state):
    word(engine, 0, page._STATE, state)
    assert engine.page.states() == [NONE, NONE]


@pytest.mark.parametrize("number", [0, 9, 1 << 63])
def test_a_variant_out_of_range_is_the_first(engine, number):
    word(engine, 0, page._VARIANT, number)
    assert engine.page.variant() == 1


def encoded(**changed):
    return json.dumps({"base": "b", "fields": FIELDS, "groups": [[0, 4096, 0, 2, 1, 0]], **changed}).encode()


HOSTILE = {
    "empty": b"", "no JSON": b"{", "not an object": b"[]", "a number": b"7", "nested": b"[" * 5000, "not UTF-8": b"\xff\xfe\x00",
    "no groups": encoded(groups=[]), "groups are none": encoded(groups=None), "a group twice": encoded(groups=[[0, 1, 0, 2, 1, 0]] * 2),
    "a short group": encoded(groups=[[0]]), "a long group": encoded(groups=[[0, 1, 0, 2, 1, 0, 0]]),
    "no bytes": encoded(groups=[[0, 0, 0, 2, 1, 0]]), "negative bytes": encoded(groups=[[0, -1, 0, 2, 1, 0]]),
    "too many bytes": encoded(groups=[[0, (64 << 20) + 1, 0, 2, 1, 0]]), "a fraction": encoded(groups=[[0, 1.5, 0, 2, 1, 0]]),
    "true": encoded(groups=[[0, True, 0, 2, 1, 0]]), "a group's number": encoded(groups=[[1 << 32, 1, 0, 2, 1, 0]]),
    "a text as number": encoded(groups=[["0", 1, 0, 2, 1, 0]]), "a list as number": encoded(groups=[[[], 1, 0, 2, 1, 0]]),
    "shard beyond": encoded(groups=[[0, 1, 2, 2, 1, 0]]), "negative shard": encoded(groups=[[0, 1, -1, 2, 1, 0]]),
    "no shards": encoded(groups=[[0, 1, 0, 0, 1, 0]]), "no writers": encoded(groups=[[0, 1, 0, 2, 0, 0]]),
    "writer beyond": encoded(groups=[[0, 1, 0, 1, 2, 2]]), "too many shards": encoded(groups=[[0, 1, 0, 1 << 40, 1, 0]]),
    "base": encoded(base=7), "a control character": encoded(base="a\nb"), "long base": encoded(base="n" * 256), "fields": encoded(fields=[]),
    "a field": encoded(fields={"a": 1}), "a field's text": encoded(fields={"a": "\x00"}), "a NaN": encoded(groups=[[0, float("nan"), 0, 2, 1, 0]]),
    "many groups": encoded(groups=[[i, 1, 0, 2, 1, 0] for i in range(page.MOST_GROUPS + 1)])[:page.TEXT_BYTES],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_description_is_refused(engine, name):
    text(engine, 1, HOSTILE[name])
    with pytest.raises(PageError, match="rank 1"):
        engine.page.description(1)


@pytest.mark.parametrize("length", [page.TEXT_BYTES + 1, (1 << 64) - 1])
def test_a_length_out_of_range_reads_nothing(engine, length):
    text(engine, 1, encoded())
    word(engine, 1, page._LENGTH, length)
    with pytest.raises(PageError, match=f"{length} bytes"):
        engine.page.description(1)
    assert f"{length} bytes" in engine.page.reason(1)


def test_a_reason_is_one_printable_line(engine):
    engine.ranks[0].refuse("it\x1b[31m has\nno \x00 driver " + "x" * (2 * page.TEXT_BYTES))
    assert engine.page.states()[0] == REFUSES
    assert engine.page.reason(0).isprintable() and engine.page.reason(0).startswith("it [31m has no")


def test_a_pool_that_stays_published_is_seen_at_any_time(engine, monkeypatch):
    """The scheduler forgets hits in a pool that a rank no longer publishes, and may look between any two words."""
    one, other = engine.ranks
    kept, write = set(), page.RankPage._set

    def writes(rank, at, value):
        write(rank, at, value)
        assert all(map(engine.page.serves, kept)), "a pool that stays is not seen for a moment"

    monkeypatch.setattr(page.RankPage, "_set", writes)
    before = []
    for pools in ([1], [2, 1], [3, 2, 1], [3, 1], [4, 3, 1], [5, 4, 3, 1], [5, 1], [6, 1], [6], []):
        kept = set()
        other.set_pools(before)
        other.set_pools([*dict.fromkeys(pools + before)][:page.MOST_POOLS])
        kept = set(before) & set(pools)
        one.set_pools(pools)
        before = pools


def test_a_description_that_does_not_fit_is_a_refusal(engine):
    engine.ranks[0].describe(Description("b", {f"f{i}": "v" * 200 for i in range(80)}, {0: (1, Share(0, 2))}))
    assert engine.page.states()[0] == REFUSES and "shorten kvcache_namespace" in engine.page.reason(0)


def test_after_leaving_nothing_is_written(engine):
    engine.ranks[0].describe(described())
    engine.ranks[0].set_pools([5])
    engine.ranks[0].leave()
    engine.ranks[0].set_pools([5])
    engine.ranks[0].describe(described())
    assert engine.page.states()[0] == NONE and not engine.page.serves(5) and not engine.page.is_here(0)


# --- the file ---


def file_of(folder):
    [name] = os.listdir(folder)
    return pathlib.Path(folder, name)


def test_there_is_no_page_yet(folder):
    assert open_page("e", 0, 2, 7) is None and os.listdir(folder) == []


def test_the_page_is_this_user_s_alone(folder):
    made = EnginePage("../../e\0 \udcff", 2, 7)
    st = file_of(folder).stat()
    assert st.st_mode & 0o777 == 0o600 and st.st_size == page.bytes_of(2) and pathlib.Path(made.path).parent == folder


def test_the_page_has_all_its_memory_when_it_is_made(folder):
    """Where /dev/shm is full, making it fails; a hole would end the engine by SIGBUS at the first write."""
    made = EnginePage("e", 2, 7)
    assert os.stat(made.path).st_blocks * 512 >= page.bytes_of(2)


def test_a_full_folder_is_no_cache(folder, monkeypatch, caplog):
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    assert not ranks.Ranks("e", 2, 7).join() and "No space left" in caplog.text and os.listdir(folder) == []


def test_another_engine_does_not_find_it(folder):
    EnginePage("e", 2, 7)
    assert open_page("f", 0, 2, 7) is None


def test_the_name_goes_when_all_ranks_have_opened_the_page(folder):
    made = EnginePage("e", 2, 7)
    made.tick()
    open_page("e", 0, 2, 7)
    made.tick()
    assert os.listdir(folder)
    open_page("e", 1, 2, 7)
    made.tick()
    assert os.listdir(folder) == [] and open_page("e", 0, 2, 7) is None


def test_the_name_goes_after_a_while(folder, monkeypatch):
    made = EnginePage("e", 2, 7)
    monkeypatch.setattr(page, "NAME_S", 0.0)
    made.tick()
    assert os.listdir(folder) == []


def test_one_process_has_no_two_engines_of_one_id(folder):
    first = EnginePage("e", 1, 7)
    with pytest.raises(PageError, match="give each engine its own engine_id"):
        EnginePage("e", 1, 7)
    first.close(0.0)
    EnginePage("e", 1, 7).close(0.0)
    assert os.listdir(folder) == []


@pytest.mark.parametrize("world", [0, -1, page.MOST_RANKS + 1])
def test_sizes_of_engines_that_are_not_served(folder, world):
    with pytest.raises(PageError, match=str(world)):
        EnginePage("e", world, 7)
    assert os.listdir(folder) == []


def test_stale_pages_of_dead_processes_are_removed(folder):
    """Removes files of ended processes, even if the process id is in use again. Files of other users stay."""
    digest = "0" * 32
    for name in (f"kvcache-engine-{os.getpid()}-1-{digest}", f"kvcache-engine-999999999-5-{digest}", f"kvcache-engine-999999999-5-{digest}.new",
                 "kvcache-engine-x", f"kvcache-engine-1-{'9' * 30}-{digest}"):
        (folder / name).write_bytes(b"")
    live = EnginePage("live", 1, 7)
    EnginePage("e", 1, 7)
    left = os.listdir(folder)
    assert len(left) == 4 and pathlib.Path(live.path).name in left and "kvcache-engine-x" in left


def damaged(folder, **words):
    """Makes the page of an engine with changed words in its header."""
    made = EnginePage("e", 2, 7)
    for name, value in words.items():
        made._memory.words[getattr(page, name)] = value
    return made


@pytest.mark.parametrize("words, said", [({"_MAGIC": 0}, "not a page of this version"), ({"_VERSION": 2}, "not a page of this version"),
                                         ({"_WORLD": 3}, "of an engine of 3 GPUs"), ({"_WORLD": 1 << 63}, "GPUs"),
                                         ({"_PID": 1}, "is not the page of the running process"), ({"_START": 1}, "is not the page of the running process")])
def test_a_wrong_header_is_refused(folder, words, said):
    damaged(folder, **words)
    with pytest.raises(PageError, match=said):
        open_page("e", 0, 2, 7)


@pytest.mark.parametrize("size", [0, 8, page.bytes_of(2) - 1, page.bytes_of(2) + 4096])
def test_a_wrong_size_is_refused(folder, size):
    EnginePage("e", 2, 7)
    os.truncate(file_of(folder), size)
    with pytest.raises(PageError, match=f"{size} bytes"):
        open_page("e", 0, 2, 7)


def test_a_page_that_others_may_read_is_refused(folder):
    EnginePage("e", 2, 7)
    file_of(folder).chmod(0o640)
    with pytest.raises(PageError, match="mode 640"):
        open_page("e", 0, 2, 7)


def test_a_page_of_another_user_is_refused(folder, monkeypatch):
    EnginePage("e", 2, 7)
    path, euid = file_of(folder), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: euid + 1)
    monkeypatch.setattr(page, "path_of", lambda *_: str(path))
    with pytest.raises(PageError, match=f"belongs to user {euid}"):
        open_page("e", 0, 2, 7)


@pytest.mark.parametrize("make", [lambda p: p.symlink_to("/etc/passwd"), lambda p: os.mkfifo(p, 0o600), lambda p: p.mkdir(mode=0o700)])
def test_what_is_no_file_is_refused_without_waiting(folder, make):
    make(pathlib.Path(page.path_of(os.getpid(), "e")))
    with pytest.raises(PageError):
        open_page("e", 0, 2, 7)


def test_a_rank_of_another_configuration_says_so(folder):
    made = EnginePage("e", 2, 7)
    with pytest.raises(PageError, match="kvcache_namespace differ"):
        open_page("e", 1, 2, 8)
    assert made.states() == [NONE, REFUSES] and "kvcache_namespace differ" in made.reason(1)


def test_a_rank_s_area_is_taken_over_from_a_dead_process_only(folder):
    made = EnginePage("e", 2, 7)
    at = page.HEADER_WORDS + page.RANK_WORDS + page._RANK_PID
    made._memory.words[at] = os.getppid()
    with pytest.raises(PageError, match=f"process {os.getppid()} is rank 1 of this engine already"):
        open_page("e", 1, 2, 7)
    made._memory.words[at] = 999999999
    assert open_page("e", 1, 2, 7) is not None


def test_a_rank_in_a_child_process_finds_its_parent_s_page(folder):
    made = EnginePage("e", 1, 7)
    program = ("import sys, os\nfrom kvcache.vllm import delivery, page\ndelivery.FOLDER = sys.argv[1]\none = page.open_page('e', 0, 1, 7)\n"
               "one.refuse('no driver')\nassert not one.is_here\nprint('right')")
    out = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False,
                         env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert out.stdout == "right\n", out.stderr
    assert made.states() == [REFUSES] and not made.is_here(0)


def test_a_seat_looks_until_there_is_a_page(folder):
    opened = []
    seat = Seat("e", 0, 1, 7, opened.append)
    assert seat.poll() is None and not opened
    made = EnginePage("e", 1, 7)
    assert seat.poll() is seat.poll() is opened[0] and len(opened) == 1
    made.tick()


def test_a_rank_takes_part_when_its_pools_are_published(folder):
    made = EnginePage("e", 1, 7)
    served = []
    seat = Seat("e", 0, 1, 7, lambda one: (served.append(made.serves(5)), one.describe(described())))
    assert seat.poll(lambda: [5]) is not None and served == [True] and made.states() == [ATTACHED]


def test_a_rank_that_refuses_before_there_is_a_page_never_takes_part(folder):
    opened = []
    seat = Seat("e", 0, 1, 7, opened.append)
    seat.refuse("no driver")
    made = EnginePage("e", 1, 7)
    assert seat.poll() is not None and not opened and made.states() == [REFUSES] and made.reason(0) == "no driver"
    seat.refuse("")
    assert opened == [seat.page]


def test_a_seat_says_once_what_is_wrong_with_a_page(folder, caplog):
    EnginePage("e", 2, 7)
    seat = Seat("e", 0, 1, 7, lambda _: None)
    assert seat.poll() is None and seat.poll() is None and seat.has_failed
    assert len([r for r in caplog.records if "this rank cannot use the engine's page" in r.getMessage()]) == 1


# --- all ranks or none ---


def joined(world=2, **described_as):
    both = ranks.Ranks("e", world, 7)
    both.of_test = [open_page("e", rank, world, 7) for rank in range(world)]
    for rank, one in enumerate(both.of_test):
        one.describe(described_as.get(f"rank{rank}", described(rank, world)))
    return both


def test_all_ranks_take_part():
    both = joined()
    assert both.join() and [s.name for s in both.shards[0]] == ["vllm/m-1/g0/s0.of.2", "vllm/m-1/g0/s1.of.2"]
    assert both.owned == {0: [0, 1]} and both.chunk_bytes() == {0: 8192} and not both.has_scheduler


@pytest.mark.parametrize("other", [Description("vllm/m-1", FIELDS, {1: (4096, Share(1, 2))}), Description("vllm/m-1", FIELDS, {0: (4096, Share(0, 2))}),
                                   Description("vllm/m-1", FIELDS, {0: (4096, Share(0, 1, 2, 1))})])
def test_ranks_that_do_not_fit_are_not_served(caplog, other):
    both = joined(rank1=other)
    assert not both.join() and not both.join() and not both.look()
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1, caplog.text


@pytest.mark.parametrize("nbytes, base, fields, writer", [(8192, "vllm/m-1", FIELDS, 1), (4096, "vllm/m-2", FIELDS, 1),
                                                         (4096, "vllm/m-1", {"engine": "other"}, 1), (4096, "vllm/m-1", FIELDS, 0)])
def test_ranks_of_one_shard_agree_on_it(caplog, nbytes, base, fields, writer):
    both = joined(rank0=Description("vllm/m-1", FIELDS, {0: (4096, Share(0, 1, 2, 0))}),
                  rank1=Description(base, fields, {0: (nbytes, Share(0, 1, 2, writer))}))
    assert not both.join() and "group 0" in caplog.text


def test_a_page_that_cannot_be_made_is_no_cache(caplog, monkeypatch):
    monkeypatch.setattr(delivery, "FOLDER", "/nonexistent")
    none = ranks.Ranks("e", 2, 7)
    assert not none.join() and not none.serves(5) and not none.use([5]) and none.loads() == [] and list(none.counted()) == []
    none.close()
    assert len(caplog.records) == 1


def test_a_rank_that_leaves_ends_the_hits():
    both = joined()
    for one in both.of_test:
        one.set_pools([5])
    assert both.look() and both.serves(5)
    both.of_test[1].leave()
    assert not both.look() and not both.join() and not both.serves(5)


def test_ranks_divide_a_chunk_in_one_way(caplog):
    both = joined(rank0=Description("vllm/m-1", FIELDS, {0: (4096, Share(0, 1, 2, 0))}))
    assert not both.join() and "group 0" in caplog.text


def test_the_rate_of_loads_is_that_of_all_shards():
    """Ranks load their shards at the same time, so a load of all shards takes as long as that of one."""
    both = joined(rank0=Description("vllm/m-1", FIELDS, {0: (4096, Share(0, 2))}), rank1=Description("vllm/m-1", FIELDS, {0: (12288, Share(1, 2))}))
    assert both.join()
    both.of_test[0].add_load(10 * 4096, 0.5)
    both.of_test[1].add_load(10 * 12288, 0.25)
    assert both.loads() == [(10 * 16384, 0.5), (10 * 16384, 0.25)] and both.loads() == []


def test_counters_never_go_backwards():
    """Two threads of a rank publish the counters, and the thread that read them first may write last."""
    both = joined()
    [one, _] = both.of_test
    one.set_counters(stored_bytes=100)
    assert dict(both.counted())["stored_bytes"] == 100
    for said, wanted in ((1, 0), (100, 0), (101, 1)):
        one.set_counters(stored_bytes=said)
        assert dict(both.counted())["stored_bytes"] == wanted, said


# --- shares ---


def refs(writers, index, count=2):
    return [ns(mapping=None if writers is None else ns(num_writers=writers, writer_index=index)) for _ in range(count)]


@pytest.mark.parametrize("rank, writers, index, wanted", [
    (1, None, 0, Share(1, 4)), (2, 1, 0, Share(2, 4)), (3, 4, 3, Share(0, 1, 4, 3)), (2, 2, 0, Share(1, 2, 2, 0)), (3, 2, 0, Share(3, 4)), (3, 3, 0, Share(3, 4)),
])
def test_share_of_a_rank(rank, writers, index, wanted):
    parallel = ns(rank=rank, world_size=4, tp_size=4, pp_size=1, pcp_size=1, dcp_size=1)
    share = shares_of([refs(writers, index)], [0], parallel)[0]
    assert share == wanted and share.is_valid(4)


@pytest.mark.parametrize("sizes", [dict(tp_size=2, pp_size=2), dict(tp_size=4, dcp_size=2), dict(tp_size=2, pcp_size=2)])
def test_other_parallelism_shares_no_shard(sizes):
    parallel = ns(**{"rank": 3, "world_size": 4, "pp_size": 1, "pcp_size": 1, "dcp_size": 1, **sizes})
    assert shares_of([refs(2, 1)], [0], parallel)[0] == Share(3, 4)


def test_a_group_with_unequal_layers_shares_no_shard():
    parallel = ns(rank=1, world_size=2, tp_size=2, pp_size=1, pcp_size=1, dcp_size=1)
    assert shares_of([refs(2, 1) + refs(None, 0)], [0], parallel)[0] == Share(1, 2)


def test_writers_take_turns_by_key():
    keys = [os.urandom(32) for _ in range(200)]
    shares = [Share(0, 1, 3, w) for w in range(3)]
    assert all(sum(s.writes(k) for s in shares) == 1 for k in keys)


def test_shards_of_one_rank_have_the_names_of_one_gpu():
    made, owned = shards_of([Description("b", FIELDS, {0: (1, Share()), 7: (2, Share())})])
    assert [s.name for g in made.values() for s in g] == ["b/g0", "b/g7"] and owned == {0: [0], 7: [0]}


# --- shards that are found ---


@pytest.mark.parametrize("found, wanted", [((b"\1\2\3\0",), b"\1\2\3\0"), ((b"\1\1\0\0", b"\1\0\1\0"), b"\1\0\0\0"), ((b"\1\3\2", b"\3\3\2"), b"\3\3\2"),
                                           ((b"\1\2\3", b"\2\1\2"), b"\2\2\2"), ((b"\1", b"\4", b"\1"), b"\4")])
def test_a_chunk_is_in_memory_if_all_shards_are(found, wanted):
    """The numbers are 1: in memory, 2: on disk, 4: in the shared tier."""
    assert promises._combined(found) == wanted


# --- specifications ---


def spec_class():
    import fake_vllm

    fake_vllm.install((0, 33))
    from kvcache.vllm.chunks import KvcacheLoadStoreSpec

    return KvcacheLoadStoreSpec


def test_a_load_s_specification_is_small_and_has_no_live_objects():
    cls = spec_class()
    for world in (1, 2, 8):
        offsets = [[r << 40 | i for i in range(4096)] for r in range(world)]
        data = pickle.dumps(cls.of_load(5, 77, offsets), protocol=2)
        assert len(data) <= 16 * world * 4096 + 1024
        again = pickle.loads(data)
        assert (again.number, again.pool, again.count) == (5, 77, 4096) and [list(again.offsets_of(r)) for r in range(world)] == offsets


def test_a_store_s_specification_has_keys_and_what_is_present():
    cls, keys = spec_class(), [bytes([i]) * 32 + (i // 7).to_bytes(4, "big") for i in range(20)]
    present = [[i % 3 == r for i in range(20)] for r in range(3)]
    data = pickle.dumps(cls.of_store(keys, present, 512, [keys[4]]), protocol=4)
    again = pickle.loads(data)
    assert again.keys() == keys and again.checks == (4,) and again.tokens == 512 and again.scheduled > 0
    assert [[again.is_present(r, i) for i in range(20)] for r in range(3)] == present
    none = cls.of_store(keys)
    assert none.present == b"" and not none.is_present(2, 19) and cls.of_store([]).keys() == []
