/* SPDX-License-Identifier: Apache-2.0 */
/* A storage engine in memory, for tests of the shared tier. It does what it is asked to: ends
 * operations within submit(), on another thread, when the test says so, or never; fails; brings
 * other bytes than were written. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "remote/backend.h"

enum fake_end {
        FAKE_WITHIN, /* submit() */
        FAKE_THREAD, /* on a thread of the back end's */
        FAKE_HELD,   /* by fake_release(); stop() cancels it */
        FAKE_HUNG,   /* the same, but stop() does not */
};

extern const struct backend_ops fake_backend;       /* with all that the sweeper needs */
extern const struct backend_ops fake_backend_plain; /* without */

/* Before remote_new(), and at the end: no objects, no faults. */
void fake_reset(void);
void fake_set_end(enum backend_op_kind kind, enum fake_end end);
void fake_set_end_of_all(enum fake_end end);
/* The next `times` operations of this kind end with `result`, and do nothing. */
void fake_fail(enum backend_op_kind kind, int result, unsigned times);
/* Reads do not say how large the object is. */
void fake_hide_sizes(bool hide);
/* Ends the oldest `n` of those held; how many there were. */
unsigned fake_release(unsigned n);
unsigned fake_held(void);
unsigned fake_count(enum backend_op_kind kind); /* submitted since fake_reset() */
unsigned fake_marked(void);                     /* calls of mark_used() */

/* Objects. Those that change one: false if it is not there. */
unsigned fake_objects(void);
bool fake_has(const char *name);
const uint8_t *fake_bytes(const char *name, size_t *ret_size);
void fake_put(const char *name, const void *bytes, size_t size, uint64_t used_ms);
bool fake_remove(const char *name);
bool fake_flip(const char *name, size_t offset);
bool fake_cut(const char *name, size_t size);
bool fake_swap(const char *a, const char *b); /* their bytes */
bool fake_set_used(const char *name, uint64_t used_ms);

/* Of the sweeper. */
void fake_lease(const char *owner);     /* another host has it; NULL: none does */
bool fake_is_leased(const char *owner); /* NULL: to any host */
void fake_hang_list(bool hang);         /* list() hangs until it is false, whatever `stop` says */
unsigned fake_lists(void);
