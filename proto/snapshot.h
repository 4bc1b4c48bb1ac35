/* SPDX-License-Identifier: Apache-2.0 */
/* The snapshot of a benchmark session: JSON of the schema kvcache.bench.v1, which the daemon
 * writes. A snapshot may come from an untrusted file, so the parser checks the type and range of
 * every member, that no required member is missing, and that none is repeated. Errors name the
 * member, as in "metrics[3].busy_secs", or the line and column of text that is not JSON. Members
 * unknown to this version are ignored. Any thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cleanup.h"
#include "transfer-counts.h"

#define SNAPSHOT_SCHEMA "kvcache.bench.v1"

enum {
        SNAPSHOT_TEXT = 128,
        SNAPSHOT_ERROR_BYTES = 512,
        SNAPSHOT_MAX_LAYOUTS = 256,
        SNAPSHOT_MAX_BYTES = 16 << 20,
};

struct snapshot_layout {
        unsigned layout; /* enum transfer_layout */
        uint64_t blocks, layers, outer, page_tokens, inner, dtype_bytes, alignment;
};

struct snapshot_metric {
        unsigned path, layout, technology; /* the enums of transfer.h */
        struct transfer_counts counts;     /* latency_ns is unused: `latency_secs` replaces it */
        double latency_secs, busy_secs;
};

struct snapshot {
        char name[SNAPSHOT_TEXT];
        char hostname[SNAPSHOT_TEXT], kernel[SNAPSHOT_TEXT], daemon_version[SNAPSHOT_TEXT];
        uint64_t cpus;
        bool active, enabled, idle;
        char created[SNAPSHOT_TEXT], updated[SNAPSHOT_TEXT];
        double enabled_secs;
        bool is_summed; /* each metric is a sum over all technologies; snapshot_parse() does not set
                           it */
        struct snapshot_layout *layouts;
        size_t n_layouts;
        struct snapshot_metric *metrics; /* sorted by path, layout, technology */
        size_t n_metrics;
};

struct snapshot *snapshot_free(struct snapshot *s);
DEFINE_CLEANUP(struct snapshot *, snapshot_free);

/* Parses a snapshot, called `what` in messages. Returns 0; -EBADMSG, and `ret_error` gives the
 * fault and its place; -ENOMEM. The caller frees `*ret` with snapshot_free(). */
int snapshot_parse(const char *text, size_t bytes, const char *what, struct snapshot **ret,
                   char ret_error[static SNAPSHOT_ERROR_BYTES]);
typedef int snapshot_parser(const char *text, size_t bytes, const char *what, struct snapshot **ret,
                            char ret_error[static SNAPSHOT_ERROR_BYTES]);
/* Reads the file `file`, or standard input if it is "-", and parses its text with `parse`.
 * Returns the result of `parse`, or -errno if the file cannot be read, with the reason in
 * `ret_error`. */
int snapshot_read(const char *file, snapshot_parser *parse, struct snapshot **ret,
                  char ret_error[static SNAPSHOT_ERROR_BYTES]);
/* Returns the snapshot in the form of the schema, from which snapshot_parse() makes an equal one.
 * If memory is short, returns NULL or an incomplete object. */
cJSON *snapshot_json(const struct snapshot *s);
/* Compares the names of path, layout and technology, which define the order of a snapshot. Returns
 * a number below, equal to or above 0, as strcmp() does. */
int snapshot_metric_compare(const struct snapshot_metric *a, const struct snapshot_metric *b);
/* Sets the name, kernel and number of processors of this host, and the version of the program that
 * counts. */
void snapshot_name_host(struct snapshot *s, const char *version);
/* Writes a time in the form of `created` and `updated`, with milliseconds:
 * "2026-11-23T15:04:05.678Z". */
void snapshot_name_time(uint64_t unix_ms, char ret[static SNAPSHOT_TEXT]);
#define SNAPSHOT_NAME_RULE "1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', without a leading dot"
bool snapshot_name_valid(const char *name);
