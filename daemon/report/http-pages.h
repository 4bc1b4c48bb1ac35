/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of the HTTP server: where their contents come from, which one a request gets, and their
 * texts. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct history;

enum http_metrics { HTTP_METRICS_TEXT, HTTP_METRICS_OPENMETRICS, HTTP_METRICS_PROTOBUF };

/* The contents of the pages. */
struct http_pages {
        void (*print_metrics)(void *userdata, enum http_metrics format, FILE *out);
        void (*print_status)(void *userdata, FILE *out); /* JSON */
        /* Return the state for /readyz and /healthz, and its text in lines without a final newline;
         * NULL: use a single word. Borrowed until the next call. */
        bool (*is_ready)(void *userdata, const char **ret_text);
        bool (*is_healthy)(void *userdata, const char **ret_text);
        const struct history *history; /* NULL: /history is not served */
        void *userdata;
};

enum http_page {
        HTTP_PAGE_HTML,
        HTTP_PAGE_HTML_PAUSED,
        HTTP_PAGE_STATUS,
        HTTP_PAGE_HISTORY,
        HTTP_PAGE_METRICS,
        HTTP_PAGE_OPENMETRICS,
        HTTP_PAGE_PROTOBUF,
};

/* A text that several replies share. */
struct shared_text {
        char *bytes;
        size_t n;
        unsigned refs;
};

/* Takes `bytes`, and frees them on failure. Returns NULL without memory, or if bytes is NULL. */
struct shared_text *shared_text_new(char *bytes, size_t n);
/* Ends a reference. No effect on NULL. */
void shared_text_unref(struct shared_text *text);

/* Returns the page of metrics in the format that an Accept header prefers. NULL: no header. */
enum http_page http_page_of_metrics(const char *accept);
/* Returns the media type of a page. */
const char *http_page_type(enum http_page page);
/* Renders a page. Returns NULL without memory. */
struct shared_text *http_page_make(const struct http_pages *from, enum http_page page);
