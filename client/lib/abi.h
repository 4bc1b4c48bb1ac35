/* SPDX-License-Identifier: Apache-2.0 */
/* A program passes each structure with the size that the structure had when the program was
 * built. abi_copy_in() converts a program's structure to this library's form: members that the
 * program does not know become zero, and members that this library does not know must be zero.
 * abi_copy_out() writes at most the program's size. The kernel's copy_struct_from_user() and
 * copy_struct_to_user() follow the same rule. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "checked.h"
#include "kvcache-admin.h"

#define ABI_BYTES_TO(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))

/* The structures' sizes when the interface was first released. A smaller size is a mistake of the
 * caller, because no older program exists. */
enum {
        ABI_OPTIONS_MIN = ABI_BYTES_TO(struct kvcache_options, staging_bytes),
        ABI_INFO_MIN = ABI_BYTES_TO(struct kvcache_info, lookups_local),
        ABI_NAMESPACE_OPTIONS_MIN = ABI_BYTES_TO(struct kvcache_namespace_options, chunk_bytes),
        ABI_BUFFER_OPTIONS_MIN = ABI_BYTES_TO(struct kvcache_buffer_options, base),
        ABI_ENTRY_MIN = ABI_BYTES_TO(struct kvcache_entry, cost_us),
        ABI_RESULT_MIN = ABI_BYTES_TO(struct kvcache_result, leases),
        ABI_REQUEST_MIN = ABI_BYTES_TO(struct kvcache_request, return_s),
        ABI_COMPLETION_MIN = ABI_BYTES_TO(struct kvcache_completion, count),
        ABI_NAMESPACE_INFO_MIN = ABI_BYTES_TO(struct kvcache_namespace_info, may_remove),
        ABI_EVENT_MIN = ABI_BYTES_TO(struct kvcache_event, reserved),
        ABI_LISTED_MIN = ABI_BYTES_TO(struct kvcache_listed, reserved),
        ABI_SWEEP_MIN = ABI_BYTES_TO(struct kvcache_sweep, deleted_bytes),
        ABI_VERIFY_MIN = ABI_BYTES_TO(struct kvcache_verify, reserved_2),
        ABI_MAX = 4096, /* upper limit for every structure; a larger size is invalid */
};

/* Returns whether `size`, given by the program, can be the size of a structure of at least `min`
 * bytes. */
static inline bool abi_size_is_valid(size_t size, size_t min)
{
        return size >= min && size <= ABI_MAX && size % _Alignof(uint64_t) == 0;
}

/* Copies `from` to `to`; all `to_size` bytes of `*to` are set. Returns 0, or -E2BIG if `from` has a
 * member set that this library does not know. */
int abi_copy_in(void *to, size_t to_size, const void *from, size_t from_size);

static inline void abi_copy_out(void *to, size_t to_size, const void *from, size_t from_size)
{
        memcpy(to, from, MIN(to_size, from_size));
        if (to_size > from_size)
                memset((char *)to + from_size, 0, to_size - from_size);
}

/* Returns element `i` of a program's array of elements of `size` bytes. */
static inline void *abi_at(const void *array, size_t size, size_t i)
{
        return (char *)(uintptr_t)array + i * size;
}
