/* SPDX-License-Identifier: Apache-2.0 */
/* The page that HTTP serves at "/", for people: health and what to do, memory and volumes, the last
 * fifteen minutes as plots, tenants, the largest namespaces, and at the end all of /status. It is
 * made of the JSON of /status and of the history, without a script; it reloads itself. Every name
 * and text in it is escaped. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct history;

struct page {
        const char *status; /* JSON, or NULL where it could not be had */
        bool ready, healthy;
        const char *readiness, *health; /* what /readyz and /healthz say, or NULL */
        const struct history *history;  /* NULL: no plots */
        uint64_t now_ns, unix_ms;       /* monotonic, as the history's; for people */
        bool paused;                    /* it does not reload itself */
};

enum { PAGE_RELOAD_S = 10, PAGE_NAMESPACES = 20 };

void page_print(FILE *out, const struct page *page);
/* The Content-Security-Policy that it is served with. */
extern const char page_policy[];
/* What to do about a reason of kvcache_degraded, as HTML; NULL: no such reason is known. */
const char *page_advice(const char *reason);
