/* SPDX-License-Identifier: Apache-2.0 */
/* Populates the memory of a growing array before the array needs it, so that the thread that uses
 * the array does not wait for the kernel to clear pages. Clearing a huge page takes 0.1 ms, and
 * several milliseconds in some virtual machines; arrays that grow together would wait for several
 * at the same moment.
 *
 * An array up to its first boundary of 2 MiB gets small pages when each is touched first: these
 * waits are short, and a small array has no more memory than it uses. From there on, when the array
 * has used half of a range of 2 MiB, a thread of the process populates the next range, which is one
 * step. All functions except pages_ahead_steps() are called by the array's own thread. */
#pragma once

#include <stdint.h>

/* The state of one array. The caller initializes it with zeros; until pages_ahead_init() nothing is
 * populated. */
struct pages_ahead {
        char *base;
        uint64_t bytes;
        uint64_t next; /* number of used bytes above which the next step is queued; UINT64_MAX: no
                          step */
        char *reached; /* end of the part that is populated, or being populated */
};

/* Begins with an array from pages_map() that is not used yet. An array of less than 4 MiB is left
 * as it is. */
void pages_ahead_init(struct pages_ahead *a, void *base, uint64_t bytes);
/* Waits until no thread populates the array, which may be unmapped then. */
void pages_ahead_fini(struct pages_ahead *a);
/* Populates nothing until pages_ahead_restart(), because something else populates the array. */
void pages_ahead_pause(struct pages_ahead *a);
/* Continues after the first `used` bytes. Memory beyond them may have been unpopulated. */
void pages_ahead_restart(struct pages_ahead *a, uint64_t used);
void pages_ahead_more(struct pages_ahead *a, uint64_t used);

/* Notes that the first `used` bytes of the array are in use, or about to be. */
static inline void pages_ahead_use(struct pages_ahead *a, uint64_t used)
{
        if (used > a->next)
                pages_ahead_more(a, used);
}

/* Returns the number of steps populated in this process. Any thread. */
uint64_t pages_ahead_steps(void);
