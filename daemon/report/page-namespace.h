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
        NAMESPACE_NEXT_VISITED = 1024, /* chunks of a tenant that are visited */
        NAMESPACE_NEXT_SHOWN = 20,     /* chunks of one namespace that are shown */
};

/* The chunks of a namespace among the next to be evicted. */
struct namespace_next {
        struct namespace_leaving {
                uint32_t place; /* in the order of its size class and volume, from 1 */
                uint32_t length;
                double age_s;  /* since the last use */
                double chance; /* the chance of another use */
                struct key key;
        } first[NAMESPACE_NEXT_SHOWN]; /* the least place first */
        unsigned n_first, n;           /* n: all that were visited */
        uint64_t bytes;                /* of these */
};

struct page_namespace {
        const struct store_namespace *ns;
        struct namespace_id of;
        const char *host; /* or NULL */
        uint64_t counters[NAMESPACE_COUNTERS];
        unsigned sessions;
        uint64_t last_used_ms; /* 0: not since startup */
        const struct namespace_next *next;
        unsigned visited; /* chunks of its tenant among which `next` are */
        const struct namespace_history *history;
        uint64_t now_ns, unix_ms;
        bool paused;
};

void page_namespace_print(FILE *out, const struct page_namespace *page);
/* Prints the link to a namespace's page: its name, escaped. */
void page_namespace_print_link(FILE *out, const char *name, unsigned most_shown);
