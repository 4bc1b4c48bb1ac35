/* SPDX-License-Identifier: Apache-2.0 */
/* The file of Dynamo's layout benchmark, bench_layout_transfers: an object {session_name,
 * session_duration_secs, metrics}, whose metrics are sums by path and layout. It has no technology,
 * no latencies, no errors, and no histograms. */
#pragma once

#include <stdio.h>

#include "snapshot.h"

/* Writes the object; technologies are summed. Returns 0 or -ENOMEM. */
int dynamo_export(const struct snapshot *s, FILE *out);
/* Parses the text of such a file into a snapshot, in which counters that the file lacks are 0
 * and `is_summed` is set. Parses any other text as snapshot_parse() does. Returns as
 * snapshot_parse(). */
int dynamo_parse(const char *text, size_t bytes, const char *what, struct snapshot **ret,
                 char ret_error[static SNAPSHOT_ERROR_BYTES]);
