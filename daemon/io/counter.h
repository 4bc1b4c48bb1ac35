/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that one thread writes and any thread reads. Private to io/. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

static inline uint64_t counter_get(const _Atomic uint64_t *c)
{
        return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void counter_set(_Atomic uint64_t *c, uint64_t value)
{
        atomic_store_explicit(c, value, memory_order_relaxed);
}

/* Adds with a plain load and store, which suffices because each counter has one writer. */
static inline void counter_add(_Atomic uint64_t *c, uint64_t n)
{
        counter_set(c, counter_get(c) + n);
}
