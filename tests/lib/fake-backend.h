/* SPDX-License-Identifier: Apache-2.0 */
/* A back end in memory, for tests of the shared tier. A test chooses when operations end
 * (within submit(), on another thread, on request, or never), makes them fail, and alters the bytes
 * of objects. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "remote/backend.h"

enum fake_end {
        FAKE_WITHIN, /* within submit() */
        FAKE_THREAD, /* on a thread of the back end */
        FAKE_HELD,   /* by fake_release(); stop() cancels it */
        FAKE_HUNG,   /* by fake_release(); stop() does not cancel it */
};

extern const struct backend_ops fake_backend;       /* with all functions that the sweeper needs */
extern const struct backend_ops fake_backend_plain; /* without them */

/* Removes all objects and faults. Call before remote_new(), and at the end. */
void fake_reset(void);
void fake_set_end(enum backend_op_kind kind, enum fake_end end);
void fake_set_end_of_all(enum fake_end end);
/* Makes the next `times` operations of this kind end with `result`, without any effect. */
void fake_fail(enum backend_op_kind kind, int result, unsigned times);
/* Hides the sizes of objects in the results of reads. */
void fake_hide_sizes(bool hide);
/* Ends the oldest `n` held operations. Returns how many were held. */
unsigned fake_release(unsigned n);
unsigned fake_held(void);
unsigned fake_count(enum backend_op_kind kind); /* number submitted since fake_reset() */
unsigned fake_marked(void);                     /* calls of mark_used() */

/* Inspect and change objects. Functions that change one return false if it does not exist. */
unsigned fake_objects(void);
bool fake_has(const char *name);
const uint8_t *fake_bytes(const char *name, size_t *ret_size);
void fake_put(const char *name, const void *bytes, size_t size, uint64_t used_ms);
bool fake_remove(const char *name);
bool fake_flip(const char *name, size_t offset);
bool fake_cut(const char *name, size_t size);
bool fake_swap(const char *a, const char *b); /* exchanges their bytes */
bool fake_set_used(const char *name, uint64_t used_ms);

/* The sweeper's lease and listing: */
void fake_lease(const char *owner);     /* leases to another host; NULL: to none */
bool fake_is_leased(const char *owner); /* NULL: to any host */
void fake_hang_list(bool hang);         /* makes list() hang until it is false, whatever `stop`
                                           says */
unsigned fake_lists(void);
