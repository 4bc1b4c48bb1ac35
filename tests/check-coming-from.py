#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares conf/coming-from.md, the tables for those who come from another tool, with the code.

    check-coming-from.py [ROOT]        prints each row or name that is wrong
    check-coming-from.py --self-test

- Each name of another tool that is listed here has a row of its table.
- Each key, option, command and variable that a row gives as ours exists; so does each option that a row says is the same here.
- Each former option that an adapter accepts (kvcache.engine.former) has a row, which gives what the log gives.
"""

import importlib.util
import pathlib
import re
import sys

PAGE = "conf/coming-from.md"
# The names that the tools take, by the heading of their table. A row may end a name with "*" for all that begin so.
NAMES = {
    "LMCache's GDS backend": """
        gds_path gds_path_sharding weka_path cufile_buffer_size gds_buffer_size use_cufile use_gds gds_backend use_direct_io gds_io_threads
        disk_io_threads max_alloc_attempts allocation_attempt_delay_secs chunk_size local_cpu max_local_cpu_size local_cpu_use_hugepages
        reserve_local_cpu_size local_disk max_local_disk_size local_disk_path_sharding remote_url remote_serde use_layerwise save_decode_cache
        save_unfull_chunk pre_caching_hash_algorithm blocking_timeout_secs cache_policy numa_mode external_lookup_client priority_limit
        min_retrieve_tokens lookup_timeout_ms enable_async_loading enable_lazy_memory_allocator lazy_memory_initial_ratio enable_blending
        blend_recompute_ratios enable_p2p p2p_host enable_controller lmcache_instance_id controller_pull_url lmcache_worker_ports enable_pd
        pd_role transfer_channel nixl_backends storage_plugins remote_storage_plugins external_backends internal_api_server_enabled
        LMCACHE_CONFIG_FILE LMCACHE_LOG_LEVEL LMCACHE_USE_EXPERIMENTAL LMCACHE_TRACK_USAGE CUFILE_ENV_PATH_JSON PYTHONHASHSEED""",
    "LMCache's server": """
        --l2-adapter base_path relative_tmp_dir read_ahead_size use_odirect max_capacity_gb recover_on_start eviction checksum --l1-size-gb""",
    "llm-d's file-system backend": """
        spec_name spec_module_path shared_storage_path block_size threads_per_gpu max_staging_memory_gb read_preferring_ratio
        max_write_queued_seconds gds_mode backend bucket endpoint_override scheme access_key secret_key ca_bundle lookup_mode enable_events
        storage_events_endpoint storage_events_hwm storage_medium STORAGE_LOG_LEVEL STORAGE_CONNECTOR_DEBUG USE_KERNEL_COPY_READ
        USE_KERNEL_COPY_WRITE USE_BATCH_MEMCPY_READ USE_BATCH_MEMCPY_WRITE CUFILE_ENV_PATH_JSON PVC_MOUNT_PATH CACHE_DIRECTORY
        CLEANUP_THRESHOLD TARGET_THRESHOLD NUM_CRAWLER_PROCESSES LOGGER_INTERVAL_SECONDS FILE_QUEUE_MAXSIZE FILE_QUEUE_MIN_SIZE
        DELETION_BATCH_SIZE FILE_ACCESS_TIME_THRESHOLD_MINUTES HEX_BUCKET_LEN ENABLE_DIR_CLEANUP DIR_CLEANUP_TTL_SECONDS DRY_RUN LOG_LEVEL
        LOG_FILE_PATH STORAGE_EVENTS_ENDPOINT""",
    "vLLM's fs tier": """
        type root_dir n_read_threads n_write_threads enable_kv_events locality cpu_bytes_to_use spec_name block_size blocks_per_chunk
        eviction_policy PYTHONHASHSEED""",
    "SGLang's file backend": """
        --hicache-storage-backend --enable-hierarchical-cache --hicache-size --hicache-ratio --hicache-mem-layout --hicache-io-backend
        --hicache-write-policy --hicache-storage-prefetch-policy SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE
        SGLANG_HICACHE_FILE_BACKEND_MIN_FREE_SPACE SGLANG_HICACHE_FILE_BACKEND_EVICTION_RATIO
        SGLANG_HICACHE_FILE_BACKEND_ENABLE_METADATA_CACHE SGLANG_HICACHE_FILE_BACKEND_METADATA_TTL max_size min_free_space eviction_ratio
        enable_metadata_cache metadata_ttl direct_io direct_io_alignment hicache_storage_pass_prefix_keys prefetch_threshold
        prefetch_timeout_base prefetch_timeout_per_ki_token clear_hicache_storage_backend""",
    "NIXL's KVBench": """
        --model --model_config --model_configs --pp --tp --isl --osl --num_requests --page_size --access_pattern --format --source
        --destination --backend --worker_type --initiator_seg_type --target_seg_type --scheme --mode --op_type --check_consistency
        --total_buffer_size --recreate_xfer --start_block_size --max_block_size --start_batch_size --max_batch_size --num_iter --warmup_iter
        --num_threads --num_initiator_dev --num_target_dev --enable_pt --progress_threads --device_list --runtime_type --etcd_endpoints
        --etcd-endpoints --etcd-endpoint --storage_enable_direct --filepath --gds_filepath --posix_api_type --enable_vmm --benchmark_group
        --num_files --large_blk_iter_ftr --gds_batch_pool_size --gds_batch_limit --gds_mt_num_threads --gpunetio_device_list
        --gpunetio_oob_list --hf3fs_iopool_size --obj_access_key --obj_secret_key --obj_session_token --obj_bucket_name --obj_scheme
        --obj_region --obj_use_virtual_addressing --obj_endpoint_override --obj_req_checksum --obj_ca_bundle --debug --no-debug ct-perftest
        sequential-ct-perftest --config-file --verify-buffers --print-recv-buffers --json-output-path
        ./examples/model_deepseek_r1.yaml ./examples/block-tp1-pp8.yaml""",
    "Dynamo's bench_layout_transfers": """
        init status report export compare reset enable disable test --session --format --output --count -s -f -o -c DYNAMO_BENCHMARK_SESSION
        ~/.dynamo/bench_NAME.json ~/.dynamo/dynamo_benchmark_active_session.txt FullyContiguous LayerSeparate""",
}
# Options of the engines that stay, and of the daemon and the container tools.
OF_OTHERS = {"--kv-transfer-config", "--l2-adapter", "--shm-name", "--no-l1-use-lazy", "--hicache-storage-backend",
             "--hicache-storage-backend-extra-config", "--prefix-caching-hash-algo"}
VALUES = {"read_only", "write_only", "read_write", "bb_read_only", "bb_write_only", "bb_read_write", "page_first", "chunk_size"}
# The heading of each table of kvcache.engine.former.
FORMER = {"VLLM_FS": "vLLM's fs tier", "LLMD": "llm-d's file-system backend", "LMCACHE_FS": "LMCache's server",
          "LMCACHE": "LMCache's GDS backend",
          "SGLANG_FILE": "SGLang's file backend", "SGLANG_VARIABLES": "SGLang's file backend"}
KEY = r"(?<![\w./-]){}\.[a-z_]+(?![\w(/.])"


def tables(text):
    """Returns, by heading, the rows as pairs: the cell of the other tool and our cell."""
    found, heading = {}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:].strip()
        elif line.startswith("| ") and not set(line) <= set("|- :"):
            cells = [c.strip() for c in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            if len(cells) == 2:
                found.setdefault(heading, []).append(tuple(cells))
            else:
                found.setdefault(heading, []).append((line, "a row has two cells"))
    return found


def code(cell):
    """Returns what a cell has in code style."""
    return re.findall(r"`([^`]+)`", cell)


def words(cell):
    """Returns the names in a cell's code, without their values."""
    return {w.strip("\"',:") for part in code(cell) for w in re.split(r"[\s=(){}\[\],]+|(?<=\w)\.(?=\w+$)", part)} | set(code(cell))


def has(name, cell):
    return any(w == name or w.split(".")[-1] == name or (w.endswith("*") and name.startswith(w[:-1])) for w in words(cell))


class Tree:
    def __init__(self, root):
        rows = "".join((root / "daemon/config" / f).read_text() for f in ("config.def", "tenant.def"))
        self.keys = {f"{a}.{b}" for a, b in re.findall(r"^ROW\(\w+, (\w+), (\w+),", rows, re.M)}
        self.sections = "(?:" + "|".join(sorted({k.split(".")[0] for k in self.keys})) + ")"
        sources = {p: p.read_text() for p in sorted((root / "client").rglob("*.[ch]")) + [root / "daemon/main.c"]}
        everything = "\n".join(sources.values())
        options = r"""\{[\s\\]*(?:OPTION_\w+(?: \+ \w+)?|'\w'),[\s\\]*"([\w-]+)"|\bX\(\w+,\s*"(\w+)",\s*(?:WORD|COUNT|FLAG)|\{ "([\w-]+)", (?:required|no)_argument|strcmp\(\w+(?:\[\w+\])?, "--([\w-]+)"\)"""
        self.options = {next(filter(None, m)).replace("_", "-") for m in re.findall(options, everything)}
        self.letters = {a or b for a, b in re.findall(r"\{ '(\w)', \"|OPTION_\w+ = '(\w)'", everything)}
        self.commands = set(re.findall(r'\.name = "([\w-]+)"', everything))
        self.actions = {w for block in re.findall(r"action_names\[\] = \{(.*?)NULL", everything, re.S) for w in re.findall(r'"([\w-]+)"', block)}
        daemon = "\n".join(p.read_text() for p in sorted((root / "daemon").rglob("*.c")))
        python = "\n".join(p.read_text() for p in sorted((root / "client/python").rglob("*.py")))
        self.names = set(re.findall(r"\w+", everything + daemon + python))

    def is_option(self, name):
        """A unique beginning is enough for getopt_long()."""
        return any(o.startswith(name[2:].replace("_", "-")) for o in self.options) if name.startswith("--") else name[1:] in self.letters


def ours(tree, cell):
    """Yields what a cell gives as ours and what does not exist."""
    for key in re.findall(KEY.format(tree.sections), " ".join(code(cell))):
        if key not in tree.keys and not key.endswith((".yaml", ".md", ".json")):
            yield f"there is no key {key}"
    for part in code(cell):
        for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", part):
            if option not in OF_OTHERS and not tree.is_option(option):
                yield f"there is no option {option}"
        program = re.match(r"(kvcachectl|kvcache-bench) ([a-z]+)(?: ([a-z]+)\b)?", part)
        if program and program[2] not in tree.commands:
            yield f"there is no command {program[0]}"
        for name in re.findall(r"\bKVCACHE_\w+", part):
            if name not in tree.names:
                yield f"there is no {name}"
        if re.fullmatch(r"[a-z]+(_[a-z]+)+", part) and part not in VALUES | tree.names:
            yield f"nothing here is called {part}"


def is_same(cell):
    return re.match(r"(the same|accepted|carried|always on|the directory of the daemon)\b", cell) is not None


def wrong_rows(tree, found):
    for heading, rows in found.items():
        for theirs, cell in rows[1:]:
            if cell == "a row has two cells":
                yield f"{heading}: {theirs[:60]}: {cell}"
                continue
            for what in ours(tree, cell):
                yield f"{heading}: {theirs[:60]}: {what}"
            if heading not in ("NIXL's KVBench", "Dynamo's bench_layout_transfers") or not is_same(cell):
                continue
            for part in code(theirs):
                for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", part):
                    if not tree.is_option(option):
                        yield f"{heading}: {option} is said to be the same, and is no option here"
                if re.fullmatch(r"[a-z]{4,}", part) and part not in tree.actions | tree.commands:
                    yield f"{heading}: {part} is said to be the same, and is no action here"


def missing_names(found):
    for heading, names in NAMES.items():
        if heading not in found:
            yield f"no table {heading}"
            continue
        for name in names.split():
            if not any(has(name, theirs) for theirs, _ in found[heading]):
                yield f"{heading}: no row for {name}"


def wrong_former(former, found, tree):
    for table, heading in FORMER.items():
        for name, instead in getattr(former, table).items():
            rows = [cell for theirs, cell in found.get(heading, ()) if has(name, theirs)]
            if not rows:
                yield f"{heading}: no row for {name}, which the adapter accepts"
            for key in re.findall(r"\w+\.\w+", instead):
                if key not in tree.keys:
                    yield f"kvcache.engine.former: {name}: there is no key {key}"
                elif rows and not any(key in cell for cell in rows):
                    yield f"{heading}: the row of {name} does not give {key}, and the log does"


def check(text, tree, former):
    found = tables(text)
    return list(missing_names(found)) + list(wrong_rows(tree, found)) + list(wrong_former(former, found, tree))


def load_former(root):
    spec = importlib.util.spec_from_file_location("former", root / "client/python/kvcache/engine/former.py")
    former = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(former)
    return former


def self_test(root):
    """Each kind of fault, planted in the page, is found, and nothing else."""
    text, tree, former = (root / PAGE).read_text(), Tree(root), load_former(root)
    assert check(text, tree, former) == [], check(text, tree, former)
    for old, new, expected in (
            ("| `use_odirect` | `io.direct` |\n", "", "no row for use_odirect"),
            ("`store.reserve`", "`store.reserved`", "no key store.reserved"),
            ("`store.reserve`", "`store.limit`", "does not give store.reserve"),
            ("`--etcd-endpoint`, ", "", "no row for --etcd-endpoint"),
            ("`kvcachectl purge`", "`kvcachectl purges`", "no command kvcachectl purges"),
            ("`kvcache-daemon --config FILE`", "`kvcache-daemon --conf-file FILE`", "no option --conf-file"),
            ("`KVCACHE_GPU_GDS_AUTO`", "`KVCACHE_GPU_GDS_MAYBE`", "no KVCACHE_GPU_GDS_MAYBE"),
            ("`timeout_s` of the adapter", "`time_out_s` of the adapter", "nothing here is called time_out_s"),
            ("`reset`, `enable`, `disable` |", "`reset`, `enable`, `disabled` |", "no action"),
            ("`--num_iter`, `--warmup_iter`", "`--num_iter`, `--warm_iter`, `--warmup_iter`", "--warm_iter is said to be the same"),
            ("## vLLM's fs tier", "## The fs tier", "no table vLLM's fs tier")):
        assert text.count(old) >= 1, old
        wrong = check(text.replace(old, new), tree, former)
        assert any(expected in w for w in wrong), (expected, wrong)
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test(pathlib.Path(__file__).resolve().parent.parent)
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent)
    wrong = check((root / PAGE).read_text(), Tree(root), load_former(root))
    names = sum(len(n.split()) for n in NAMES.values())
    print("\n".join(wrong + [f"{names} names of other tools, {len(wrong)} wrong"]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
