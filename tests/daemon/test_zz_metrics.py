# SPDX-License-Identifier: Apache-2.0
"""Runs last, after the other processes of the run: checks that some test of this run has moved every metric of daemon/report/metrics.def.

harness.py collects the metrics that daemons showed with a value other than 0. A few metrics need a device that fails in a way that no test
outside the process can cause: for each of them a unit test is named, and checked.
"""

import pathlib
import re

import pytest

import harness

pytestmark = pytest.mark.serial

SOURCE = harness.SOURCE
ROW = re.compile(r"^METRICS_(\w+)\((\w+), \"(\w+)\"", re.M)

# Metric: the unit test that makes the daemon's code count it, and how it looks at the count.
ELSEWHERE = {
    "volume_hung": ("tests/daemon/test_disk_error.py", r"kvcache_volume_hung\{\{"),
    "volume_resuming": ("tests/unit/test-volumes-missed.c", r"STORE_VOLUME_RESUMING"),
    "volume_read_errors": ("tests/unit/test-store-faults.c", r"\bread_errors\b"),
    "volume_write_errors": ("tests/unit/test-store-faults.c", r"\bwrite_errors\b"),
    "volume_sync_errors": ("tests/unit/test-store-faults.c", r"\bsync_errors\b"),
    "store_handover_failures": ("tests/unit/test-store-tenants.c", r"\bhandover_failures\b"),
    "store_detached_files": ("tests/daemon/test_gds_rights.py", r"kvcache_store_detached_files_total"),
    "store_files_given_up": ("tests/unit/test-store-space.c", r"\bfiles_given_up\b"),
    "io_wiped": ("tests/unit/test-io-buffers.c", r"\bwiped\b"),
    "store_crc_rereads": ("tests/unit/test-store-memory.c", r"\bcrc_rereads\b"),
    "io_errors": ("tests/unit/test-io.c", r"\berrors\b"),
    "io_merged": ("tests/unit/test-io-merge.c", r"\bjoined\b"),
    "io_resubmitted": ("tests/unit/test-io.c", r"\bresubmi"),
    "descriptors_closing": ("tests/campaigns/campaign_cost.py", r"kvcache_descriptors_closing"),
    "stagings_closing": ("tests/unit/test-session.c", r"\bstagings_closing, 1"),
    "direct_unwritten_bytes": ("tests/unit/test-cache-shared.c", r"stats\(\)\.direct_bytes == "),
    "volume_pending_operations": ("tests/unit/test-volumes-names.c", r"stats_of\(1\)\.pending > 0"),
    "queued_writes": ("tests/unit/test-cache-users.c", r"stats\(\)\.queued_writes, MANY"),
    "queued_reads": ("tests/unit/test-cache-users.c", r"stats\(\)\.queued_reads, READS"),
    "put_postponed": ("tests/unit/test-cache-postponed.c", r"stats\(\)\.postponed"),
    "put_caught_up": ("tests/unit/test-cache-postponed.c", r"stats\(\)\.caught_up"),
    "put_checks": ("tests/unit/test-cache-verify.c", r"stats\(\)\.put_checks, 1"),
    "put_pool_only": ("tests/unit/test-cache-room.c", r"\bpool_only\b"),
    "pool_index_unplaced": ("tests/unit/test-pool-index.c", r"stats\(\)\.unplaced, KEYS - found"),
    "pool_index_untold_hits": ("tests/unit/test-pool-index.c", r"\buntold\b"),
    "pool_index_held_chunks": ("tests/unit/test-pool-index.c", r"pool_held\(pool\), 1"),
    "pool_index_holds": ("tests/unit/test-pool-index.c", r"pool_index_holds\(&clients"),
    "lookup_index_building": ("tests/unit/test-lookup.c", r"stats\(\)\.building"),
    "lookup_index_unplaced": ("tests/unit/test-lookup.c", r"stats\(\)\.unplaced > 0"),
    "lookup_index_overflowed": ("tests/unit/test-lookup.c", r"stats\(\)\.overflowed > 0"),
    "lookup_index_failed_builds": ("tests/unit/test-lookup.c", r"stats\(\)\.failed"),
    "kept_pending_chunks": ("tests/unit/test-keep.c", r"stats\(\)\.pending, CHUNKS"),
    # Where nothing can be mounted:
    "kept_ready": ("tests/daemon/test_keep_memory.py", r'\["ready"\]'),
    "kept_chunks": ("tests/unit/test-keep.c", r"stats\(\)\.verified, CHUNKS"),
    "kept_forbidden_pools": ("tests/daemon/test_keep_rights.py", r"kvcache_kept_forbidden_pools"),
    "kept_verified_bytes": ("tests/unit/test-keep.c", r"stats\(\)\.verified_bytes, "),
    "kept_clients": ("tests/unit/test-keep.c", r"stats\(\)\.holders, 1"),
    "kept_leases": ("tests/unit/test-keep.c", r"stats\(\)\.held_slots, 2"),
    "log_lines_held_back": ("tests/unit/test-log.c", r"log_ratelimit_pass"),
}


def families():
    """Yields (name on the page, name in metrics.def)."""
    for kind, _, name in ROW.findall((SOURCE / "daemon/report/metrics.def").read_text()):
        suffix = {"COUNTER": "_total", "COUNTER_BY": "_total", "PROCESS_COUNTER": "_total", "INFO": "_info", "HISTOGRAM": "_count",
                  "HISTOGRAM_BY": "_count", "AGES_BY": "_count"}.get(kind, "")
        prefix = "process" if kind.startswith("PROCESS") else "kvcache"
        yield f"{prefix}_{name}{suffix}", name


def test_every_metric_was_moved_by_some_test(request):
    here = pathlib.Path(__file__).parent
    ran = {pathlib.Path(str(item.fspath)).name for item in request.session.items}
    missing_files = {p.name for p in here.glob("test_*.py")} - ran
    if missing_files and not harness.MOVED_FILE:  # without which it is unknown whether all tests ran; run.sh provides it
        pytest.skip(f"needs all of the daemon tests in this run, not without {', '.join(sorted(missing_files))}")
    moved = {name.partition("{")[0] for name in harness.all_moved()}
    still = []
    for page, name in families():
        if page in moved:
            continue
        file, pattern = ELSEWHERE.get(name, (None, None))
        if file is None or not re.search(pattern, (SOURCE / file).read_text()):
            still.append(name)
    assert not still, f"no test moves {', '.join(still)}"


def test_the_table_of_metrics_that_are_moved_elsewhere_is_right():
    names = {name for _, name in families()}
    assert len(names) > 50
    for name, (file, pattern) in ELSEWHERE.items():
        assert re.search(pattern, (SOURCE / file).read_text()), f"{file} has no {pattern}"
    unknown = set(ELSEWHERE) - names
    assert not unknown, f"not in metrics.def: {unknown}"
