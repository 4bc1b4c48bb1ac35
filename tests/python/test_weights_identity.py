# SPDX-License-Identifier: Apache-2.0
"""Weights identified by content: stable over downloads, sensitive to replaced files, bounded for hostile ones."""

import json
import os
import shutil
import struct
import time
import zipfile

import pytest
from kvcache.engine import digests, formats, weights
from kvcache.engine.identity import Unknown

GIB = 1 << 30


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    home = tmp_path_factory.mktemp("home")
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(digests, "RECENT_NS", -GIB * 10**9)  # files of the test itself are cached, too
    return home / "kvcache"


def safetensors(path, tensors=3, nbytes=1 << 20, fill=b"\0"):
    """Writes a sparse file with this many tensors."""
    header = {f"layer.{i}": {"dtype": "U8", "shape": [nbytes], "data_offsets": [i * nbytes, (i + 1) * nbytes]} for i in range(tensors)}
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(f.tell() + tensors * nbytes)
        if fill != b"\0":
            f.write(fill)
    return 8 + len(text)


def gguf(path, tensors=3, nbytes=1 << 20, pairs=((b"general.name", 8, struct.pack("<Q", 1) + b"m"),), alignment=32):
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, tensors, len(pairs)))
        for name, kind, value in pairs:
            f.write(struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value)
        for i in range(tensors):
            f.write(struct.pack("<Q", 2) + b"t%d" % i + struct.pack("<IQIQ", 1, nbytes, 0, i * nbytes))
        first = -(-f.tell() // alignment) * alignment
        f.truncate(first + tensors * nbytes)
    return first


def make_model(folder, content=b"weights"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def write_at(path, at, data=b"\1"):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(data)


def of(folder, **more):
    said = weights.weights_of(str(folder), **more)
    assert not isinstance(said, Unknown), said.reason
    return said


def reason(folder, **more):
    said = weights.weights_of(str(folder), **more)
    assert isinstance(said, Unknown) and said == "unknown" and said.option == "weights"
    return said.reason


def test_600_downloads_of_the_same_bytes_are_one_model(tmp_path):
    seen = set()
    for i in range(600):
        shutil.rmtree(tmp_path / "m", ignore_errors=True)
        folder = make_model(tmp_path / "m")
        os.utime(folder / "model.safetensors", (i, i))
        seen.add(of(folder))
    assert len(seen) == 1


def test_the_hub_s_cache_and_a_plain_folder_are_one_model(tmp_path):
    make_model(tmp_path / "plain" / "deep")
    (tmp_path / "plain" / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / "plain" / ".cache" / "huggingface" / "m.metadata").write_text("2026-11-28")
    root = tmp_path / "hub" / "models--org--m"
    snapshot = root / "snapshots" / "c0ffee" / "deep"
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True)
    (root / "refs" / "main").write_text("c0ffee\n")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "plain" / "deep" / name, root / "blobs" / ("b-" + name))
        (snapshot / name).symlink_to(f"../../../blobs/b-{name}")
    hub = str(tmp_path / "hub")
    assert of("org/m", hub=hub) == of("org/m", revision="c0ffee", hub=hub) == of(tmp_path / "plain")
    assert "does not have" in reason("org/m", revision="b", hub=hub) and "does not have" in reason("org/n", hub=hub)


@pytest.mark.parametrize("name", ["model.safetensors", "sub/model.safetensors", "model.tensors", "model.gguf", "hf_quant_config.json",
                                  "config.json", "pytorch_model.bin", "readme.safetensors", "modeling.py"])
def test_a_replaced_file_of_the_same_size_and_time_is_another_model(tmp_path, name):
    folder = make_model(tmp_path / "m")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'{"a":1}')
    os.utime(path, (1, 1))
    before = of(folder)
    path.write_bytes(b'{"a":2}')
    os.utime(path, (1, 1))
    assert of(folder) != before
    path.unlink()
    make_model(folder, b'{"a":1}')
    assert of(folder) != before or name in ("model.safetensors", "config.json")


@pytest.mark.parametrize("name", ["README.md", "LICENSE", "tokenizer.json", "photo.png", ".gitattributes", "vocab.txt"])
def test_irrelevant_files_do_not_matter(tmp_path, name):
    folder = make_model(tmp_path / "m")
    before = of(folder)
    (folder / name).write_text("x")
    assert of(folder) == before


def test_names_and_sizes_matter(tmp_path):
    folder = make_model(tmp_path / "m")
    seen = {of(folder)}
    os.rename(folder / "model.safetensors", folder / "other.safetensors")
    seen.add(of(folder))
    with open(folder / "other.safetensors", "ab") as f:
        f.write(b"\0")
    seen.add(of(folder))
    assert len(seen) == 3


@pytest.mark.parametrize("tensor, place", [(0, 0), (1, (1 << 19)), (2, (1 << 20) - 1)])
def test_the_samples_of_each_tensor_are_seen(tmp_path, tensor, place):
    for make, name in ((safetensors, "m.safetensors"), (gguf, "m.gguf")):
        path = tmp_path / name
        first = make(path)
        before = of(path)
        write_at(path, first + (tensor << 20) + place)
        assert of(path) != before, name


def test_samples_miss_what_the_full_check_finds(tmp_path):
    path = tmp_path / "m.safetensors"
    first = safetensors(path)
    sampled, full = of(path), of(path, check="full")
    write_at(path, first + 8192)
    assert of(path) == sampled and of(path, check="full") != full
    with pytest.raises(ValueError, match="weights_check: 'some'"):
        weights.weights_of(str(path), check="some")


def test_a_header_and_gguf_metadata_are_seen(tmp_path):
    seen = set()
    for name in (b"a", b"b"):
        path = tmp_path / "m.gguf"
        gguf(path, pairs=((b"k", 8, struct.pack("<Q", 1) + name), (b"n", 9, struct.pack("<IQ", 8, 2) + 2 * (struct.pack("<Q", 1) + b"x")),
                          (b"general.alignment", 4, struct.pack("<I", 64))), alignment=64)
        seen.add(of(path))
    for dtype in ("F16", "BF16"):
        path = tmp_path / "m.safetensors"
        safetensors(path)
        data = path.read_bytes().replace(b'"U8"', b'"%s"' % dtype.encode().rjust(2), 1) if dtype == "F16" else path.read_bytes()
        path.write_bytes(data)
        seen.add(of(path))
    assert len(seen) == 4


def test_a_member_of_a_zip_file_is_seen_by_its_crc(tmp_path):
    seen = set()
    for at in (None, 3_000_001):
        content = bytearray(8 << 20)
        if at:
            content[at] = 1
        with zipfile.ZipFile(tmp_path / "m.bin", "w") as z:
            z.writestr(zipfile.ZipInfo("archive/data/0"), bytes(content))
        seen.add(of(tmp_path / "m.bin"))
    assert len(seen) == 2


def test_the_ends_and_samples_of_other_files_are_seen(tmp_path):
    path, size = tmp_path / "m.tensors", 64 << 20
    with open(path, "wb") as f:
        f.truncate(size)
    seen = {of(path)}
    for at in (0, 65535, 128 * (size - 4096) // 255, size - 65536, size - 1):
        write_at(path, at)
        seen.add(of(path))
    assert len(seen) == 6


def test_the_index_decides_which_shards_belong(tmp_path):
    folder = make_model(tmp_path / "m")
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name in shards:
        (folder / name).write_bytes(name.encode())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(zip("ab", shards))}))
    before = of(folder)
    old = folder / "model-00003-of-00003.safetensors"
    old.write_bytes(b"of an earlier release")
    assert of(folder) == before
    (folder / "consolidated.safetensors").write_bytes(b"of another loader")
    assert of(folder) != before
    (folder / shards[0]).unlink()
    assert shards[0] in reason(folder)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"weight_map": 1}', b"[" * 100_000, b"\xff", b'{"weight_map": {}}'])
def test_a_damaged_index_is_no_error(tmp_path, content):
    folder = make_model(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_bytes(content)
    before = of(folder)
    (folder / "x.safetensors").write_bytes(b"more")
    assert of(folder) != before


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", 5])
def test_an_index_that_names_files_elsewhere_is_unknown(tmp_path, name):
    folder = make_model(tmp_path / "m")
    (tmp_path / "x.safetensors").write_bytes(b"outside")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "not in the folder" in reason(folder)


def during_the_scan(monkeypatch, change, times):
    original, calls = weights.content_digest, []

    def digest(fd, size, how):
        said = original(fd, size, how)
        calls.append(1)
        if len(calls) <= times:
            change(len(calls))
        return said

    monkeypatch.setattr(weights, "content_digest", digest)


def test_a_shard_replaced_during_the_scan_is_noticed(tmp_path, monkeypatch):
    folder, other = make_model(tmp_path / "m"), make_model(tmp_path / "other", b"WEIGHTS")

    def replace(n):
        (folder / "new").write_bytes(b"WEIGHTS")
        os.replace(folder / "new", folder / "model.safetensors")

    during_the_scan(monkeypatch, replace, 2)
    assert of(folder) == of(other)


def test_a_shard_replaced_after_it_was_read_is_noticed(tmp_path, monkeypatch):
    folder, other = make_model(tmp_path / "m"), make_model(tmp_path / "other")
    for place, content in ((folder, b"one"), (other, b"two")):
        (place / "a.safetensors").write_bytes(content)
    during_the_scan(monkeypatch, lambda n: n == 3 and (folder / "a.safetensors").write_bytes(b"two"), 3)
    assert of(folder) == of(other)


def test_large_descriptions_are_read_whole(tmp_path):
    folder = make_model(tmp_path / "m")
    (folder / "table.json").write_bytes(b" " * (8 << 20))
    before = of(folder)
    write_at(folder / "table.json", 120_000)  # between two samples
    assert of(folder) != before


def test_a_folder_that_always_changes_is_unknown(tmp_path, monkeypatch):
    folder = make_model(tmp_path / "m")
    during_the_scan(monkeypatch, lambda n: (folder / "model.safetensors").write_bytes(b"x" * n), 1000)
    assert "change while they are read" in reason(folder)


def test_an_unreadable_file_is_unknown(tmp_path, monkeypatch):
    folder, original = make_model(tmp_path / "m"), os.open

    def refuse(path, *how, **more):
        if str(path).endswith("model.safetensors"):
            raise PermissionError(13, "Permission denied")
        return original(path, *how, **more)

    monkeypatch.setattr(os, "open", refuse)
    assert "model.safetensors cannot be read: Permission denied" in reason(folder)


def test_links(tmp_path):
    folder = make_model(tmp_path / "m")
    before = of(folder)
    (folder / "loop").symlink_to(folder)
    assert of(folder) == before
    (folder / "README.md").symlink_to("nowhere")
    assert of(folder) == before
    (folder / "more.safetensors").symlink_to("nowhere")
    assert "more.safetensors cannot be read" in reason(folder)
    (folder / "more.safetensors").unlink()
    (folder / "self.safetensors").symlink_to("self.safetensors")
    assert "self.safetensors cannot be read" in reason(folder)


def test_links_that_multiply_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MOST_FILES", 1000)
    folder = make_model(tmp_path / "m")
    depth = 14  # Linux refuses paths of more than 40 links, and counts them twice if it has to begin again
    for i in range(depth + 1):
        (tmp_path / f"d{i}").mkdir()
    for i in range(depth):
        for name in "ab":
            (tmp_path / f"d{i}" / name).symlink_to(tmp_path / f"d{i + 1}")
    (folder / "d").symlink_to(tmp_path / "d0")
    assert "more than 1000 entries" in reason(folder)


def test_fifos_sockets_and_devices_are_not_read(tmp_path):
    folder = make_model(tmp_path / "m")
    before = of(folder)
    os.mkfifo(folder / "a.safetensors")
    (folder / "zero.safetensors").symlink_to("/dev/zero")
    assert of(folder) == before
    assert "regular file" in reason("/dev/zero") and "regular file" in reason(folder / "a.safetensors")


@pytest.mark.parametrize("header", [struct.pack("<Q", 1 << 63) + b"{", struct.pack("<Q", 1 << 20) + b"{" * (1 << 20),
                                    struct.pack("<Q", 20) + b'{"a":[[[[[[[[[[[]]]]', struct.pack("<Q", 22) + b'{"a":{"data_offsets":1',
                                    struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 9) + b'{"a":1e9}',
                                    struct.pack("<Q", 38) + b'{"a":{"data_offsets":[0,9999999999]}} ',
                                    struct.pack("<Q", 38) + b'{"a":{"data_offsets":[-9,99999999]}}  ',
                                    b"GGUF" + struct.pack("<IQQ", 3, 1 << 63, 0), b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63),
                                    b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63),
                                    b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + 9 * struct.pack("<IQ", 9, 1 << 62),
                                    b"PK\3\4", b"PK\3\4" + b"\0" * 100])
def test_hostile_headers_are_sampled_in_bounded_time(tmp_path, header):
    path = tmp_path / "m.safetensors"
    path.write_bytes(header)
    os.truncate(path, 256 << 20)
    started = time.process_time()
    before = of(path)
    assert time.process_time() - started < 10
    write_at(path, (256 << 20) - 1)
    assert of(path) != before or header[8:10] == b"{}"


def test_a_hostile_end_of_a_zip_file_is_sampled(tmp_path):
    def end_of(n):
        return struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, n, n, 0)

    for end in (end_of(1 << 31), struct.pack("<4sIQI", b"PK\6\7", 0, 1 << 63, 1) + end_of(0xffffffff)):
        path = tmp_path / "m.bin"
        path.write_bytes(b"PK\3\4" + bytes(2 << 20) + end)
        assert of(path).startswith("samples-")


def test_10_000_files_are_all_seen(tmp_path):
    folder = make_model(tmp_path / "m")
    for i in range(10_000):
        (folder / f"{i}.bin").write_bytes(b"%d" % i)
    before = of(folder)
    assert of(folder) == before
    (folder / "7777.bin").write_bytes(b"7778")
    assert of(folder) != before


@pytest.mark.parametrize("model", ["s3://bucket/m", "", "org/m/x/y", "../m", "a\0b", "x" * 5000])
def test_names_of_no_folder_are_unknown(model):
    assert reason(model)


def test_a_folder_without_weights_is_unknown(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert "no weights" in reason(tmp_path)


def test_modelscope_is_unknown(monkeypatch):
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")
    assert "ModelScope" in reason("org/m")


# --- the cache of digests ---


def count_reads(monkeypatch):
    reads, original = [], weights.content_digest
    monkeypatch.setattr(weights, "content_digest", lambda *a: reads.append(a) or original(*a))
    return reads


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch, cache):
    folder, reads = make_model(tmp_path / "m"), count_reads(monkeypatch)
    before = of(folder)
    assert len(reads) == 2 and of(folder) == before and len(reads) == 2
    assert (cache / "weights.json").stat().st_mode & 0o777 == 0o600 and cache.stat().st_mode & 0o777 == 0o700


def test_a_file_that_changed_just_now_is_not_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "RECENT_NS", GIB * 10**9)
    folder, reads = make_model(tmp_path / "m"), count_reads(monkeypatch)
    of(folder), of(folder)
    assert len(reads) == 4


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"\xff", b'{"format": 1}', b'{"format": 9, "files": {}}', b"[" * 100_000,
                                    b'{"format": 1, "files": [1]}', b'{"format": 1, "files": {"samples:1:1:1:1:1": 5}}', b" " * (9 << 20)])
def test_a_damaged_cache_is_rebuilt(tmp_path, monkeypatch, cache, damage):
    folder, reads = make_model(tmp_path / "m"), count_reads(monkeypatch)
    before = of(folder)
    (cache / "weights.json").write_bytes(damage)
    assert of(folder) == before and len(reads) == 4
    assert of(folder) == before and len(reads) == 4


def poison(cache):
    file = cache / "weights.json"
    content = json.loads(file.read_text())
    content["files"] = dict.fromkeys(content["files"], "0" * 64)
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("distrust", [lambda f: f.chmod(0o666), lambda f: f.parent.chmod(0o777),
                                      lambda f: (f.rename(f.parent / "x"), f.symlink_to(f.parent / "x")),
                                      lambda f: (f.unlink(), os.mkfifo(f))])
def test_a_cache_that_others_may_write_to_is_not_trusted(tmp_path, cache, distrust):
    folder = make_model(tmp_path / "m")
    before = of(folder)
    file = poison(cache)
    assert of(folder) != before  # a trusted cache is believed
    distrust(file)
    assert of(folder) == before


def test_a_cache_of_another_user_is_not_trusted(tmp_path, monkeypatch, cache):
    folder = make_model(tmp_path / "m")
    before = of(folder)
    poison(cache)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert of(folder) == before


def test_the_cache_is_bounded(tmp_path, monkeypatch, cache):
    monkeypatch.setattr(digests, "MOST_ENTRIES", 5)
    for i in range(4):
        of(make_model(tmp_path / str(i)))
    assert len(json.loads((cache / "weights.json").read_text())["files"]) == 5


def test_a_cache_that_cannot_be_written_is_not_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert of(make_model(tmp_path / "m"))


def test_140_gb_are_identified_from_bounded_reads(tmp_path, monkeypatch):
    folder, read = make_model(tmp_path / "m"), []
    for i in range(30):
        safetensors(folder / f"model-{i:05}-of-00030.safetensors", tensors=30, nbytes=160 << 20)
    original = os.pread
    monkeypatch.setattr(formats.os, "pread", lambda fd, n, at: read.append(n) or original(fd, n, at))
    before = of(folder)
    assert sum(f.stat().st_size for f in folder.iterdir()) > 140 * 10**9
    assert len(read) < 30 * (30 * 3 + 10) and sum(read) < 64 << 20
    read.clear()
    assert of(folder) == before and read == []
