/* SPDX-License-Identifier: Apache-2.0 */
/* The page for people that HTTP serves at "/": health with advice, memory and volumes, plots of the
 * last fifteen minutes, tenants, the largest namespaces, and finally all of /status. It is made
 * from the JSON of /status and the history, without a script, and reloads itself. Every text in it
 * is escaped. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct history;

struct page {
        const char *status; /* JSON, or NULL if it could not be created */
        bool ready, healthy;
        const char *readiness, *health; /* texts of /readyz and /healthz, or NULL */
        const struct history *history;  /* history to plot; NULL: the page has no plots */
        uint64_t now_ns, unix_ms;       /* monotonic, as in the history; and for display */
        bool paused;                    /* the page does not reload itself */
};

enum { PAGE_NAMESPACES = 20 };

/* Prints the page as a complete HTML document. */
void page_print(FILE *out, const struct page *page);
