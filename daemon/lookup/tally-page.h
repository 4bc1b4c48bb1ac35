/* SPDX-License-Identifier: Apache-2.0 */
/* The page in which a session's client counts the keys that it has looked up itself, and the keys
 * that it found but did not load (proto/README.md, section 5.5). The client may write any content
 * at any time; the daemon accepts only as many keys as are possible. Loop thread. */
#pragma once

#include "lookup/counters.h"
#include "wire.h"

/* Least ns per key that are believed: no client looks up keys faster, because hashing one takes
 * longer. */
enum { TALLY_PAGE_NS_PER_KEY = 4 };

struct tally_page {
        const struct wire_tally *counts;      /* written by the client; NULL: no page */
        const struct wire_tally_loads *loads; /* part of the same page */
        struct tally_page_seen *seen;         /* values of the last reading, by namespace */
        uint64_t read_ns;                     /* time of the last reading */
        uint64_t budget;                      /* keys that this reading may still accept */
};

/* Returns the bytes of a page and of the values last read, for which the caller charges the
 * client. */
size_t tally_page_bytes(void);
/* Creates a page of zeros. The caller passes *ret_fd to the client and closes it. Returns 0 or
 * -errno. */
int tally_page_open(struct tally_page *ret, uint64_t now_ns, int *ret_fd);
void tally_page_close(struct tally_page *p);
/* Begins a reading, in which tally_page_take() follows once for each namespace of the session. */
void tally_page_read(struct tally_page *p, uint64_t now_ns);
/* Takes the lookups in a namespace since the previous reading, and the keys of declined loads.
 * Returns false if a counter decreased or grew impossibly; only the possible part of an increase is
 * counted. `number`: the session's number of the namespace, minus one. */
bool tally_page_take(struct tally_page *p, unsigned number, struct lookup_counts *ret,
                     uint64_t *ret_declined);
