/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of nixlbench, in its order of printing: one table row each, from which the
 * command-line options, their help, their defaults, and the text, JSON and CSV of plan are
 * generated. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

enum kvbench_kind { KVBENCH_COUNT, KVBENCH_FLAG, KVBENCH_WORD };

/* The parameters of nixlbench, whose commands KVBench prints. Columns: id, name, kind, default
 * number, default text, whether the version of June 2025 has it, argument, help. */
#define KVBENCH_PARAMETERS(X)                                                                      \
        X(BACKEND, "backend", WORD, 0, "UCX", 1, "NAME", "transfer backend")                       \
        X(CHECK_CONSISTENCY, "check_consistency", FLAG, 0, NULL, 1, "[BOOL]",                      \
          "verify the contents")                                                                   \
        X(DEVICE_LIST, "device_list", WORD, 0, "all", 1, "NAMES", "devices, by commas")            \
        X(ENABLE_PT, "enable_pt", FLAG, 0, NULL, 1, "[BOOL]", "a progress thread")                 \
        X(PROGRESS_THREADS, "progress_threads", COUNT, 0, NULL, 0, "N", "progress threads")        \
        X(ETCD_ENDPOINTS, "etcd_endpoints", WORD, 0, "http://localhost:2379", 1, "URL",            \
          "etcd server by which nixlbench's processes find each other")                            \
        X(STORAGE_ENABLE_DIRECT, "storage_enable_direct", FLAG, 0, NULL, 1, "[BOOL]",              \
          "direct I/O")                                                                            \
        X(FILEPATH, "filepath", WORD, 0, "", 1, "DIR", "where the files are")                      \
        X(ENABLE_VMM, "enable_vmm", FLAG, 0, NULL, 1, "[BOOL]", "CUDA's VMM allocation")           \
        X(GDS_BATCH_POOL_SIZE, "gds_batch_pool_size", COUNT, 32, NULL, 0, "N", "GDS: batch pool")  \
        X(GDS_BATCH_LIMIT, "gds_batch_limit", COUNT, 128, NULL, 0, "N", "GDS: batch limit")        \
        X(INITIATOR_SEG_TYPE, "initiator_seg_type", WORD, 0, "DRAM", 1, "TYPE", "DRAM or VRAM")    \
        X(MAX_BATCH_SIZE, "max_batch_size", COUNT, 1, NULL, 1, "N", "most I/Os at a time")         \
        X(MAX_BLOCK_SIZE, "max_block_size", COUNT, 64 << 20, NULL, 1, "BYTES", "largest I/O")      \
        X(MODE, "mode", WORD, 0, "SG", 1, "MODE", "SG or MG: one or several GPUs a process")       \
        X(NUM_FILES, "num_files", COUNT, 1, NULL, 0, "N", "files")                                 \
        X(NUM_INITIATOR_DEV, "num_initiator_dev", COUNT, 1, NULL, 1, "N", "initiating devices")    \
        X(NUM_ITER, "num_iter", COUNT, 1000, NULL, 1, "N", "iterations")                           \
        X(NUM_TARGET_DEV, "num_target_dev", COUNT, 1, NULL, 1, "N", "target devices")              \
        X(NUM_THREADS, "num_threads", COUNT, 1, NULL, 1, "N", "threads, or clients")               \
        X(OP_TYPE, "op_type", WORD, 0, "WRITE", 1, "OP", "READ or WRITE")                          \
        X(POSIX_API_TYPE, "posix_api_type", WORD, 0, "AIO", 0, "API", "AIO, URING or POSIXAIO")    \
        X(RUNTIME_TYPE, "runtime_type", WORD, 0, "ETCD", 1, "TYPE", "ETCD")                        \
        X(SCHEME, "scheme", WORD, 0, "pairwise", 1, "NAME",                                        \
          "pairwise, manytoone, onetomany or tp")                                                  \
        X(START_BATCH_SIZE, "start_batch_size", COUNT, 1, NULL, 1, "N", "fewest I/Os at a time")   \
        X(START_BLOCK_SIZE, "start_block_size", COUNT, 4096, NULL, 1, "BYTES", "smallest I/O")     \
        X(TARGET_SEG_TYPE, "target_seg_type", WORD, 0, "DRAM", 1, "TYPE", "DRAM or VRAM")          \
        X(TOTAL_BUFFER_SIZE, "total_buffer_size", COUNT, 8589934592, NULL, 1, "BYTES",             \
          "bytes in all")                                                                          \
        X(WARMUP_ITER, "warmup_iter", COUNT, 100, NULL, 1, "N", "iterations not counted")          \
        X(WORKER_TYPE, "worker_type", WORD, 0, "nixl", 1, "TYPE", "nixl or nvshmem")               \
        X(BENCHMARK_GROUP, "benchmark_group", WORD, 0, "default", 0, "NAME",                       \
          "which processes belong together")                                                       \
        X(GDS_MT_NUM_THREADS, "gds_mt_num_threads", COUNT, 1, NULL, 0, "N", "GDS_MT: threads")     \
        X(GPUNETIO_DEVICE_LIST, "gpunetio_device_list", WORD, 0, "0", 0, "NAMES",                  \
          "GPUNETIO: devices")                                                                     \
        X(GPUNETIO_OOB_LIST, "gpunetio_oob_list", WORD, 0, "", 0, "NAMES",                         \
          "GPUNETIO: control interface")                                                           \
        X(HF3FS_IOPOOL_SIZE, "hf3fs_iopool_size", COUNT, 64, NULL, 0, "N", "HF3FS: I/O pool")      \
        X(OBJ_ACCESS_KEY, "obj_access_key", WORD, 0, "", 0, "KEY", "OBJ: access key")              \
        X(OBJ_SECRET_KEY, "obj_secret_key", WORD, 0, "", 0, "KEY", "OBJ: secret key")              \
        X(OBJ_SESSION_TOKEN, "obj_session_token", WORD, 0, "", 0, "TOKEN", "OBJ: session token")   \
        X(OBJ_BUCKET_NAME, "obj_bucket_name", WORD, 0, "", 0, "NAME", "OBJ: bucket")               \
        X(OBJ_SCHEME, "obj_scheme", WORD, 0, "http", 0, "SCHEME", "OBJ: http or https")            \
        X(OBJ_REGION, "obj_region", WORD, 0, "eu-central-1", 0, "NAME", "OBJ: region")             \
        X(OBJ_USE_VIRTUAL_ADDRESSING, "obj_use_virtual_addressing", FLAG, 0, NULL, 0, "[BOOL]",    \
          "OBJ: virtual addressing")                                                               \
        X(OBJ_ENDPOINT_OVERRIDE, "obj_endpoint_override", WORD, 0, "", 0, "URL", "OBJ: endpoint")  \
        X(OBJ_REQ_CHECKSUM, "obj_req_checksum", WORD, 0, "supported", 0, "WHEN",                   \
          "OBJ: supported or required")                                                            \
        X(OBJ_CA_BUNDLE, "obj_ca_bundle", WORD, 0, "", 0, "FILE", "OBJ: CA certificates")          \
        X(LARGE_BLK_ITER_FTR, "large_blk_iter_ftr", COUNT, 16, NULL, 0, "N",                       \
          "fewer iterations of blocks above 1 MiB, by this factor")                                \
        X(RECREATE_XFER, "recreate_xfer", FLAG, 0, NULL, 0, "[BOOL]",                              \
          "a new transfer each iteration")

enum kvbench_parameter {
#define X(id, ...) KVBENCH_##id,
        KVBENCH_PARAMETERS(X)
#undef X
                KVBENCH_N_PARAMETERS
};

struct kvbench_parameter_row {
        const char *name; /* with '_', as in nixlbench */
        enum kvbench_kind kind;
        uint64_t number;  /* default of a COUNT or FLAG */
        const char *text; /* default of a WORD */
        bool in_2025_06;
};
extern const struct kvbench_parameter_row kvbench_parameter_rows[KVBENCH_N_PARAMETERS];

/* Values of all parameters. Texts are borrowed. */
struct kvbench_parameters {
        union {
                uint64_t number; /* COUNT; FLAG: 0 or 1 */
                const char *text;
        } value[KVBENCH_N_PARAMETERS];
        uint64_t given; /* bit i: parameter i was given on the command line */
};

/* Sets all parameters to their defaults; none counts as given. */
void parameters_init(struct kvbench_parameters *p);

static inline bool parameters_given(const struct kvbench_parameters *p, enum kvbench_parameter id)
{
        return p->given >> id & 1;
}

static inline uint64_t parameters_number(const struct kvbench_parameters *p,
                                         enum kvbench_parameter id)
{
        return p->value[id].number;
}

static inline const char *parameters_text(const struct kvbench_parameters *p,
                                          enum kvbench_parameter id)
{
        return p->value[id].text;
}

bool parameters_is_default(const struct kvbench_parameters *p, enum kvbench_parameter id);
/* Formats a value as nixlbench's command line does: "READ", "36864", "True". Returns `buffer` or
 * the parameter's text. */
enum { KVBENCH_NUMBER_BYTES = 24 };
const char *parameters_print(const struct kvbench_parameters *p, enum kvbench_parameter id,
                             char buffer[static KVBENCH_NUMBER_BYTES]);
/* Adds a value to `object` under `name` as a number, a Boolean or a text. Returns false if memory
 * is short. */
bool parameters_add_json(const struct kvbench_parameters *p, enum kvbench_parameter id,
                         const char *name, cJSON *object);
