/* SPDX-License-Identifier: Apache-2.0 */
/* The pages in which a session's client counts the keys that it has looked up by itself, and those
 * that it then declined to load (proto/README.md 5.5). The client may write any content at any
 * time; the daemon counts only as many keys as are possible. Loop thread. */
#pragma once

#include "lookup/tally.h"
#include "wire.h"

/* No client looks up keys faster: the hash of one key alone takes longer. */
enum { TALLY_PAGE_NS_PER_KEY = 4 };

struct tally_page {
        const struct wire_tally *counts;      /* the client writes here; NULL: there is no page */
        const struct wire_tally_loads *loads; /* likewise */
        struct tally_page_seen *seen;         /* as of the last reading, by namespace */
        uint64_t read_ns;                     /* when that was */
        uint64_t budget;                      /* keys that this reading may bring yet */
};

/* A page of zeros. *ret_fd: to be handed to the client and then closed. 0, -errno. */
int tally_page_open(struct tally_page *ret, uint64_t now_ns, int *ret_fd);
void tally_page_close(struct tally_page *p);
/* A reading begins. Then one tally_page_take() for each namespace of the session. */
void tally_page_read(struct tally_page *p, uint64_t now_ns);
/* What was looked up in the namespace since the reading before, and of how much a load was
 * declined. False: some of it is not possible, and is left out. `number`: as the session knows it,
 * less one. */
bool tally_page_take(struct tally_page *p, unsigned number, struct tally_keys *ret,
                     uint64_t *ret_declined);
