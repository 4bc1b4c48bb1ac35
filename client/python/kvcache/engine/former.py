# SPDX-License-Identifier: Apache-2.0
"""Options of the tools that kvcache-daemon replaces, which an engine's configuration may still have.

An adapter accepts these options, so that a user only needs to change the name of the backend at first. Nearly all of them describe a directory,
its size and its threads, which are settings of the daemon. Such an option has no effect; the log names the daemon's key to set instead.
conf/coming-from.md has a row for each option; tests/check-coming-from.py compares these rows with the tables below.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

# Each table maps a former option to the daemon's keys to set instead.
NO_NEED = ""  # in place of keys: the daemon needs no such setting
THREADS = "io.workers and io.depth"

VLLM_FS: Mapping[str, str] = {"root_dir": "store.path", "n_read_threads": THREADS, "n_write_threads": THREADS}

LLMD: Mapping[str, str] = {
    "shared_storage_path": "store.path, or remote.path for a directory that hosts share", "threads_per_gpu": THREADS,
    "max_staging_memory_gb": "memory.pool", "read_preferring_ratio": NO_NEED, "max_write_queued_seconds": "limits.wait",
    "gds_mode": "io.gds and io.gds_puts", "backend": "remote.backend", "bucket": "remote.bucket", "endpoint_override": "remote.endpoint",
    "scheme": "remote.endpoint", "access_key": "remote.credentials", "secret_key": "remote.credentials", "ca_bundle": "remote.ca",
    "lookup_mode": NO_NEED, "enable_events": NO_NEED, "storage_events_endpoint": NO_NEED, "storage_events_hwm": NO_NEED,
    "storage_medium": NO_NEED}

LMCACHE_FS: Mapping[str, str] = {"base_path": "store.path", "relative_tmp_dir": NO_NEED, "read_ahead_size": NO_NEED,
                                 "use_odirect": "io.direct", "recover_on_start": NO_NEED}
# Options of LMCache in an engine's process. As environment variables, and in vLLM's kv_connector_extra_config, they have a prefix (below).
LMCACHE: Mapping[str, str] = {
    "gds_path": "store.path", "gds_path_sharding": NO_NEED, "weka_path": "store.path, or remote.path for a directory that hosts share",
    "cufile_buffer_size": NO_NEED, "gds_buffer_size": NO_NEED, "use_cufile": "io.gds", "use_gds": "io.gds", "use_direct_io": "io.direct",
    "gds_io_threads": THREADS, "disk_io_threads": THREADS, "local_disk": "store.path", "local_disk_path_sharding": NO_NEED,
    "max_local_disk_size": "store.limit", "local_cpu": "memory.pool", "max_local_cpu_size": "memory.pool",
    "local_cpu_use_hugepages": "memory.huge_pages", "cache_policy": "eviction.policy", "remote_url": "remote.backend"}
LMCACHE_VARIABLES: Mapping[str, str] = {**{f"LMCACHE_{name.upper()}": instead for name, instead in LMCACHE.items()}, "LMCACHE_LOG_LEVEL": "log.level"}
LMCACHE_IN_VLLM: Mapping[str, str] = {**LMCACHE_VARIABLES, **{f"lmcache.{name}": instead for name, instead in LMCACHE.items()}}
LMCACHE_CAPACITY = "max_capacity_gb"  # LMCache's option that corresponds to the adapter's capacity_bytes

SGLANG_FILE: Mapping[str, str] = {"max_size": "store.limit", "min_free_space": "store.reserve", "eviction_ratio": NO_NEED,
                                  "enable_metadata_cache": NO_NEED, "metadata_ttl": NO_NEED, "direct_io": "io.direct",
                                  "direct_io_alignment": NO_NEED}
SGLANG_VARIABLES: Mapping[str, str] = {
    "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "store.path",
    **{f"SGLANG_HICACHE_FILE_BACKEND_{name.upper()}": SGLANG_FILE[name]
       for name in ("max_size", "min_free_space", "eviction_ratio", "enable_metadata_cache", "metadata_ttl")}}


def note(log: logging.Logger, tool: str, former: Mapping[str, str], given: Iterable[str]) -> None:
    """Logs a warning for each option in `given` that is a former option, with the daemon's key to set instead. Values are not logged, because some
    are secrets."""
    for name in sorted(set(given) & set(former)):
        instead = f"set {former[name]} in kvcache-daemon's configuration instead" if former[name] else "kvcache-daemon needs no such setting"
        log.warning("%s is an option of %s and has no effect here: %s", name, tool, instead)


def capacity_of(log: logging.Logger, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of LMCache's adapter, with max_capacity_gb (in GiB, as in LMCache) converted to capacity_bytes. Raises ValueError for a
    wrong capacity."""
    from .options import number_of  # here, because check-coming-from.py loads this module alone, without its package

    taken = dict(options)
    if LMCACHE_CAPACITY not in taken:
        return taken
    size = taken.pop(LMCACHE_CAPACITY)
    number_of(LMCACHE_CAPACITY, size, "a number of GiB, or 0", 1 << 33, plain=True)
    if "capacity_bytes" in taken:
        log.warning("%s has no effect, because capacity_bytes is set, too", LMCACHE_CAPACITY)
    else:
        taken["capacity_bytes"] = int(size * (1 << 30))
        log.warning("%s is an option of LMCache's own adapters; it is used as capacity_bytes: %d", LMCACHE_CAPACITY, taken["capacity_bytes"])
    return taken
