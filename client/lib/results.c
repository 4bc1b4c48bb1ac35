/* SPDX-License-Identifier: Apache-2.0 */
/* Writes results for programs in which struct kvcache_result has another size; see results.h. Kept
 * out of the inline function, so that the usual case stays short. */
#include "lib/results.h"

void results_set_sized(const struct results *to, size_t i, const struct kvcache_result *r)
{
        abi_copy_out(abi_at(to->base, to->size, i), to->size, r, sizeof(*r));
}
