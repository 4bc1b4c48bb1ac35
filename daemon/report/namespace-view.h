/* SPDX-License-Identifier: Apache-2.0 */
/* Single namespaces for their pages at "/namespace" and for WIRE_REPORT_NAMESPACES: their counters,
 * their history, and the chunks that are evicted next. The work for a page does not depend on the
 * number of chunks. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct client;
struct status_sources;

/* Takes a sample of the history if one is due. Call it after history_tick(), which counts the
 * lookups that clients answered themselves. */
void namespace_view_tick(const struct status_sources *from, uint64_t now_ns);

/* Callbacks for http, whose `userdata` is a struct status_sources. HTTP shows names of namespaces
 * only if there is one tenant; with several, there is none to find. */

/* Finds a namespace by its name. Returns false if HTTP shows none of that name. */
bool namespace_view_find(void *userdata, const char *name, size_t length, uint32_t *ret_id);
/* Prints the page of a namespace as a complete HTML document, without any key. Returns false if the
 * namespace was removed after namespace_view_find(). */
bool namespace_view_print_page(void *userdata, uint32_t id, bool paused, FILE *out);

/* Prints one JSON object with the namespaces that have a history, the largest first, in less than
 * 256 KiB. The first namespace that has no room, or for which memory is short, and all after it are
 * left out and counted. A client that is no admin sees its own tenant only. */
void namespace_view_print_json(const struct status_sources *from, const struct client *viewer,
                               FILE *out);
