/* SPDX-License-Identifier: Apache-2.0 */
/* Classifies transfers of KV blocks by path, by layout of the memory on the host's or the device's
 * side, and by technology. The names are those of metrics, reports and files; the numbers are
 * stable. */
#pragma once

enum transfer_path {
        TRANSFER_PATH_OTHER, /* any other pair of source and target */
        TRANSFER_HOST_TO_DISK,
        TRANSFER_DISK_TO_HOST,
        TRANSFER_HOST_TO_DEVICE,
        TRANSFER_DEVICE_TO_HOST,
        TRANSFER_DEVICE_TO_DEVICE,
        TRANSFER_HOST_TO_HOST,
        TRANSFER_DISK_TO_DEVICE,
        TRANSFER_DEVICE_TO_DISK,
        TRANSFER_PATHS
};

enum transfer_layout {
        TRANSFER_LAYOUT_OTHER,
        TRANSFER_FULLY_CONTIGUOUS,
        TRANSFER_LAYER_SEPARATE_BLOCK_FIRST,
        TRANSFER_LAYER_SEPARATE_OUTER_FIRST,
        TRANSFER_REGIONS, /* KVCACHE_LAYOUT_REGIONS: the program lists the parts of a block */
        TRANSFER_LAYOUTS
};

enum transfer_technology {
        TRANSFER_TECHNOLOGY_OTHER,
        TRANSFER_IO_URING,
        TRANSFER_POSIX,
        TRANSFER_GDS,
        TRANSFER_CUDA_BATCH,
        TRANSFER_CUDA_KERNEL,
        TRANSFER_CUDA_COPY,
        TRANSFER_MEMCPY,
        TRANSFER_COMPOSED,
        TRANSFER_TECHNOLOGIES
};

/* Outcome of an operation; the index of transfer_counts.errors. */
enum transfer_result {
        TRANSFER_OK,
        TRANSFER_ERROR_IO,
        TRANSFER_ERROR_SHORT, /* fewer bytes than requested */
        TRANSFER_ERROR_CHECKSUM,
        TRANSFER_ERROR_CANCELLED,
        TRANSFER_ERROR_TIMEOUT,
        TRANSFER_RESULTS
};

/* Return a name, such as "disk_to_host", "fully_contiguous", "io_uring", "checksum"; never NULL.
 * Unknown numbers are "other", or "io" for results. */
const char *transfer_path_name(unsigned path);
const char *transfer_layout_name(unsigned layout);
const char *transfer_technology_name(unsigned technology);
const char *transfer_result_name(unsigned result);
