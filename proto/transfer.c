/* SPDX-License-Identifier: Apache-2.0 */
/* The names of paths, layouts, technologies and results. Any thread; owns nothing, cannot fail. */
#include "transfer.h"

#include "checked.h"

#define NAMES(function, other, ...)                                                                \
        const char *function(unsigned i)                                                           \
        {                                                                                          \
                static const char *const names[] = { __VA_ARGS__ };                                \
                return i < ARRAY_SIZE(names) ? names[i] : (other);                                 \
        }                                                                                          \
        struct names_semicolon

NAMES(transfer_path_name, "other", "other", "host_to_disk", "disk_to_host", "host_to_device",
      "device_to_host", "device_to_device", "host_to_host", "disk_to_device", "device_to_disk");
NAMES(transfer_layout_name, "other", "other", "fully_contiguous", "layer_separate_block_first",
      "layer_separate_outer_first", "regions");
NAMES(transfer_technology_name, "other", "other", "io_uring", "posix", "gds", "cuda_batch",
      "cuda_kernel", "cuda_copy", "memcpy", "composed");
NAMES(transfer_result_name, "io", "ok", "io", "short", "checksum", "cancelled", "timeout");
