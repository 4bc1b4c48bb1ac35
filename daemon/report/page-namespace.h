/* SPDX-License-Identifier: Apache-2.0 */
/* The page of one namespace: its counters, plots of the last fifteen minutes, and the chunks that
 * are evicted next. Like the page at "/", it has no script, and every text in it is escaped. It
 * shows no key. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "key.h"
#include "report/namespace-history.h"

struct store_namespace;

enum {
        NAMESPACE_NEXT_VISITED = 1024, /* most chunks of a tenant that are examined */
        NAMESPACE_NEXT_SHOWN = 20,     /* chunks of one namespace that are shown */
};

/* The chunks of a namespace among the next to be evicted. */
struct namespace_next {
        struct namespace_leaving {
                uint32_t place; /* place in the eviction order of its size class and volume, from
                                 * 1 */
                uint32_t length;
                double age_s;  /* seconds since the last use */
                double chance; /* estimated chance of another use */
                struct key key;
        } first[NAMESPACE_NEXT_SHOWN]; /* the chunks with the least places, in order */
        unsigned n_first, n;           /* n: chunks of the namespace that were found, not only those
                                        * in `first` */
        uint64_t bytes;                /* bytes of these `n` chunks */
};

struct page_namespace {
        const struct store_namespace *ns;
        struct namespace_id of;
        const char *host; /* name of the host, or NULL */
        uint64_t counters[NAMESPACE_COUNTERS];
        unsigned sessions;
        uint64_t last_used_ms; /* Unix time in ms; 0: not used since startup */
        const struct namespace_next *next;
        unsigned visited; /* chunks of the tenant that were examined for `next` */
        const struct namespace_history *history;
        uint64_t now_ns, unix_ms;
        bool paused;
};

void page_namespace_print(FILE *out, const struct page_namespace *page);
/* Prints the link to a namespace's page: its name, escaped. */
void page_namespace_print_link(FILE *out, const char *name, unsigned most_shown);
