# SPDX-License-Identifier: Apache-2.0
"""Identifies a model's weights by their content. Used by the adapters of all engines for the fact "weights" of a fingerprint.

The identity of a folder is a digest over the relative name, the size and the content digest of each of its files. Times, inodes and
absolute paths do not matter, so that a download by another tool on another host has the same identity. Files that do not affect the
computation, such as texts, are left out. Files of more than 1 MiB, except JSON files of up to 64 MiB, are sampled (formats.py) unless the
check is "full". The first scan reads the files; later scans take the digests of unchanged files from a cache (digests.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from typing import NamedTuple

from .digests import Digests
from .formats import Changed, content_digest
from .identity import Unknown

CHECKS = ("samples", "full")
MOST_FILES = 100_000  # most entries of all folders together
MOST_DEPTH = 32       # most folders that are nested in each other
ATTEMPTS = 3          # scans before a folder whose files change meanwhile is refused
MOST_INDEX_BYTES = 64 << 20  # bytes of the largest index of shards that is read, and of the largest JSON file of which no samples are taken
OPTION = "weights"    # name of the adapters' option that supplies the identity of the weights

# Names of files that do not affect the computation.
_IRRELEVANT = re.compile(
    r"(?i)(.*\.(md|txt|rst|pdf|html|ipynb|csv|jinja|png|jpe?g|gif|svg|webp|lock|incomplete)"
    r"|(licen[cs]e|notice|readme|use_policy)[^/.]*|\.(gitattributes|gitignore|ds_store)"
    r"|tokenizer(_config)?\.json|tokenizer\.model(\.v\d+)?|tekken\.json|special_tokens_map\.json|added_tokens\.json|vocab\.json"
    r"|chat_template\.json)")
_IRRELEVANT_FOLDERS = (".git", ".cache", ".locks")
_DESCRIPTIONS = (".json", ".py", ".yaml", ".yml")


class _File(NamedTuple):
    name: str  # relative to the folder
    path: str
    state: tuple[int, int, int, int, int]  # device, inode, size, mtime, ctime


class _Refused(Exception):
    """A folder or file cannot be identified. The text is the reason."""


def weights_of(model: str, revision: str | None = None, check: str = "samples", hub: str | None = None) -> str:
    """Returns the identity of the weights of `model`: a folder, a file, or a name in the cache of the Hugging Face hub. Returns an Unknown if the
    identity cannot be established; raises ValueError only for a wrong `check`. `hub`: the hub's cache; default: that of huggingface_hub."""
    if check not in CHECKS:
        raise ValueError(f"weights_check: {check!r} is not a check; use {' or '.join(CHECKS)}")
    try:
        place = _place_of(str(model), revision, hub)
        if isinstance(place, Unknown):
            return place
        return _identity(place, check)
    except _Refused as e:
        return Unknown(str(e), OPTION)
    except Exception as e:  # the engine must start
        return Unknown(f"the weights of {model} could not be read: {type(e).__name__}: {e}"[:300], OPTION)


def dummy_weights(config: str, seed: object) -> str:
    """Returns the identity of random weights, which an engine makes from the model's configuration and a seed."""
    return "dummy-" + hashlib.sha256(f"{seed}\n{config}".encode()).hexdigest()[:32]


def _place_of(model: str, revision: str | None, hub: str | None) -> str | Unknown:
    if os.path.exists(model):
        return model
    if "://" in model or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model) or ".." in model:
        return Unknown(f"{model} is neither a folder nor a model of the hub", OPTION)
    if any(os.environ.get(name, "").lower() in ("1", "true") for name in ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE")):
        return Unknown(f"{model} is loaded from ModelScope", OPTION)
    cached = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(cached, "huggingface")
    hub = hub or os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    folder = os.path.join(hub, "models--" + model.replace("/", "--"))
    commit = revision or "main"
    if ".." in commit.split("/") or commit.startswith("/"):
        return Unknown(f"{commit} is not a revision", OPTION)
    try:
        with open(os.path.join(folder, "refs", commit), encoding="ascii") as f:
            commit = f.read(200).strip()
    except (OSError, ValueError):
        pass  # `revision` is a commit, which has no file in refs
    snapshot = os.path.join(folder, "snapshots", commit)
    if "/" in commit or not os.path.isdir(snapshot):
        return Unknown(f"the hub's cache {hub} does not have {model} at {commit}", OPTION)
    return snapshot


def _identity(place: str, check: str) -> str:
    digests = Digests()
    for _ in range(ATTEMPTS):
        files = _files_of(place)
        try:
            seen = hashlib.blake2b(b"kvcache weights 1\n" + check.encode(), digest_size=16)
            for file in files:
                line = json.dumps([file.name, file.state[2], _digest(file, check, digests)])
                seen.update(line.encode() + b"\n")
        except Changed:
            continue
        if files == _files_of(place):
            digests.save()
            return f"{check}-{seen.hexdigest()}"
    raise _Refused(f"the files of {place} change while they are read")


def _digest(file: _File, check: str, digests: Digests) -> str:
    how = "full" if check == "full" or file.name.endswith(".json") and file.state[2] <= MOST_INDEX_BYTES else "samples"
    known = digests.get(file.state, how)
    if known is not None:
        return known
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError:
        raise Changed from None
    except OSError as e:
        raise _Refused(f"{file.name or file.path} cannot be read: {e.strerror}") from None
    try:
        if _state(os.fstat(fd)) != file.state:
            raise Changed
        digest = content_digest(fd, file.state[2], how)
        if _state(os.fstat(fd)) != file.state:
            raise Changed
    except OSError as e:
        raise _Refused(f"{file.name or file.path} cannot be read: {e.strerror}") from None
    finally:
        os.close(fd)
    digests.put(file.state, how, digest)
    return digest


def _state(st: os.stat_result) -> tuple[int, int, int, int, int]:
    return st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns


def _files_of(place: str) -> list[_File]:
    """Returns the regular files that belong to the model, sorted by name. Raises _Refused if the files cannot be listed, or have no weights."""
    if not os.path.isdir(place):
        st = os.stat(place)
        if not stat.S_ISREG(st.st_mode):
            raise _Refused(f"{place} is neither a folder nor a regular file")
        return [_File("", place, _state(st))]  # the name of a single file does not matter
    found: list[_File] = []
    _collect(place, "", (), found, [0])
    left_out = set()
    for file in found:
        if file.name.endswith(".index.json"):
            left_out |= _not_in_index(file, {f.name for f in found})
    files = sorted(f for f in found if f.name not in left_out)
    if all(f.name.endswith(_DESCRIPTIONS) for f in files):
        raise _Refused(f"there are no weights in {place}")
    return files


def _collect(folder: str, prefix: str, above: tuple[tuple[int, int], ...], found: list[_File], visited: list[int]) -> None:
    st = os.stat(folder)
    here = (st.st_dev, st.st_ino)
    if here in above:
        return  # a symbolic link to a folder that contains this one
    if len(above) >= MOST_DEPTH:
        raise _Refused(f"{prefix} lies in more than {MOST_DEPTH} folders")
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return  # the folder was removed meanwhile, so the second scan will differ
    except OSError as e:
        raise _Refused(f"{prefix or folder} cannot be read: {e.strerror}") from None
    for name in names:
        visited[0] += 1
        if visited[0] > MOST_FILES:
            raise _Refused(f"the model's folder has more than {MOST_FILES} entries")
        path = f"{folder}/{name}"
        try:
            st = os.stat(path)
        except OSError as e:
            if _IRRELEVANT.fullmatch(name):
                continue
            raise _Refused(f"{prefix}{name} cannot be read: {e.strerror}") from None
        if stat.S_ISDIR(st.st_mode) and name not in _IRRELEVANT_FOLDERS:
            _collect(path, f"{prefix}{name}/", (*above, here), found, visited)
        elif stat.S_ISREG(st.st_mode) and not _IRRELEVANT.fullmatch(name):
            found.append(_File(prefix + name, path, _state(st)))


def _not_in_index(index: _File, names: set[str]) -> set[str]:
    """Returns the numbered shards in the index's folder that the index does not list, because engines do not load them. If the index is
    damaged or longer than MOST_INDEX_BYTES, returns an empty set. Raises _Refused if a listed file is absent."""
    if index.state[2] > MOST_INDEX_BYTES:
        return set()
    try:
        with open(index.path, "rb") as f:
            listed = set(json.loads(f.read(MOST_INDEX_BYTES))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()
    folder, _, own = index.name.rpartition("/")
    prefix = folder + "/" if folder else ""
    for name in listed:
        if not isinstance(name, str) or prefix + name not in names:
            raise _Refused(f"{index.name} lists {str(name)[:80]!r}, which is not in the folder")
    stem, _, suffix = own.removesuffix(".index.json").rpartition(".")
    shard = re.compile(re.escape(prefix + stem) + r"-\d+-of-\d+\." + re.escape(suffix))
    return {n for n in names if shard.fullmatch(n) and n.removeprefix(prefix) not in listed}
