/* SPDX-License-Identifier: Apache-2.0 */
/* Structures cross the interface with the size that the program was built with. What a program
 * passes is brought to this library's form, members that it does not know being zero; a member that
 * this library does not know has to be zero. What the library writes, it writes up to the program's
 * size. The rule of the kernel's copy_struct_from_user() and copy_struct_to_user(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "checked.h"
#include "kvcache-admin.h"

#define ABI_BYTES_TO(type, member) (offsetof(type, member) + sizeof(((type *)0)->member))

/* The structures' sizes when the interface was first released. A smaller one is a mistake, not an
 * older program. */
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
        ABI_LISTED_MIN = ABI_BYTES_TO(struct kvcache_listed, reserved),
        ABI_SWEEP_MIN = ABI_BYTES_TO(struct kvcache_sweep, deleted_bytes),
        ABI_VERIFY_MIN = ABI_BYTES_TO(struct kvcache_verify, reserved_2),
        ABI_MAX = 4096, /* of any of them: more is no size */
};

/* Is a size that the program gives one that a structure can have? */
static inline bool abi_size_is_valid(size_t size, size_t min)
{
        return size >= min && size <= ABI_MAX && size % _Alignof(uint64_t) == 0;
}

/* 0; -E2BIG: `from` has a member set that this library does not know. `*to` is all of `to_size`. */
int abi_copy_in(void *to, size_t to_size, const void *from, size_t from_size);

static inline void abi_copy_out(void *to, size_t to_size, const void *from, size_t from_size)
{
        memcpy(to, from, MIN(to_size, from_size));
        if (to_size > from_size)
                memset((char *)to + from_size, 0, to_size - from_size);
}

/* Element `i` of a program's array. */
static inline void *abi_at(const void *array, size_t size, size_t i)
{
        return (char *)(uintptr_t)array + i * size;
}
