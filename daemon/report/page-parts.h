/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the page at "/" that have files of their own. Private to page*.c. Each part reads
 * the JSON of /status, and shows a member that is missing or of the wrong type as "–" or omits it.
 * The length of a part is bounded, whatever the status contains. */
#pragma once

#include <stdio.h>

#include "report/json-read.h"
#include "report/page-frame.h"

struct page;

enum { NAME_SHOWN = PAGE_NAME_SHOWN, REASON_SHOWN = 500 };
#define GAP " · "

/* Prints whether the daemon is ready and healthy, and each reason why not, with advice. `status`
 * may be NULL. */
void page_print_health(FILE *out, const struct page *page, const cJSON *status);
/* Returns advice for a reason of kvcache_degraded as HTML, or NULL if the reason is unknown. */
const char *page_advice(const char *reason);
/* Prints the memory pool, the volumes and the shared tier. */
void page_print_space(FILE *out, const cJSON *status);
/* Prints the first sixteen tenants, if there are several, and the largest namespaces. */
void page_print_tenants(FILE *out, const cJSON *status);
void page_print_namespaces(FILE *out, const cJSON *status);

/* Prints that `n` more items are not shown, without the end of the paragraph. Prints nothing if `n`
 * is not positive. */
void page_print_more(FILE *out, double n);
