/* SPDX-License-Identifier: Apache-2.0 */
/* The pages of the HTTP server: where their contents come from, which one a request gets, and their
 * texts. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct history;

enum http_metrics { HTTP_METRICS_TEXT, HTTP_METRICS_OPENMETRICS, HTTP_METRICS_PROTOBUF };

/* The contents of the pages. */
struct http_pages {
        void (*print_metrics)(void *userdata, enum http_metrics format, FILE *out);
        void (*print_status)(void *userdata, FILE *out); /* prints the status as JSON */
        /* Find a namespace that may be shown, and print its page. print_namespace() returns false
         * if it was removed meanwhile. NULL: /namespace is not served. */
        bool (*find_namespace)(void *userdata, const char *name, size_t length, uint32_t *ret_id);
        bool (*print_namespace)(void *userdata, uint32_t id, bool paused, FILE *out);
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
        HTTP_PAGE_NAMESPACE,
        HTTP_PAGE_NAMESPACE_PAUSED,
        HTTP_PAGE_STATUS,
        HTTP_PAGE_HISTORY,
        HTTP_PAGE_METRICS,
        HTTP_PAGE_OPENMETRICS,
        HTTP_PAGE_PROTOBUF,
};

/* A requested page. `id` is the number of the namespace that a namespace's page shows, and 0 for
 * all other pages. */
struct http_wanted {
        enum http_page page;
        uint32_t id;
};

/* A text that several replies share. */
struct shared_text {
        char *bytes;
        size_t n;
        unsigned refs;
};

/* Returns a text with one reference, which takes over `bytes`; frees `bytes` on failure. Returns
 * NULL without memory, or if `bytes` is NULL. */
struct shared_text *shared_text_new(char *bytes, size_t n);
/* Ends a reference. No effect on NULL. */
void shared_text_unref(struct shared_text *text);

/* Returns the page of metrics in the format that an Accept header prefers. NULL: no header. */
enum http_page http_page_of_metrics(const char *accept);
/* Returns the media type of a page. */
const char *http_page_type(enum http_page page);
/* Parses the query of /namespace, "name=NAME" or "name=NAME&paused", and finds the page. Returns
 * false if the query is malformed, no namespace of that name is shown, or memory is short. */
bool http_page_of_namespace(const struct http_pages *from, const char *query,
                            struct http_wanted *ret);
/* Returns whether a page is HTML, for people. */
bool http_page_is_html(enum http_page page);
/* Renders a page. Returns 0, -ENOMEM, or -ENOENT if its namespace was removed meanwhile. */
int http_page_make(const struct http_pages *from, struct http_wanted wanted,
                   struct shared_text **ret);
