/* SPDX-License-Identifier: Apache-2.0 */
/* Implements http-pages.h. A page is rendered whole into memory, which its replies then share. Runs
 * on the loop thread; a text belongs to those that have a reference.
 *
 * Failures: without memory there is no text, and the server answers 500. */
#include "report/http-pages.h"

#include <ctype.h>
#include <errno.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <event2/http.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "report/history.h"
#include "report/page.h"

struct shared_text *shared_text_new(char *bytes, size_t n)
{
        struct shared_text *text = bytes ? malloc(sizeof(*text)) : NULL;

        if (!text) {
                free(bytes);
                return NULL;
        }
        *text = (struct shared_text){ .bytes = bytes, .n = n, .refs = 1 };
        return text;
}

void shared_text_unref(struct shared_text *text)
{
        if (!text || --text->refs > 0)
                return;
        free(text->bytes);
        free(text);
}

struct text {
        FILE *file;
        char *bytes;
        size_t n;
};

static FILE *text_open(struct text *t)
{
        *t = (struct text){};
        t->file = open_memstream(&t->bytes, &t->n);
        if (t->file) /* the stream needs no lock: a page is printed in many small calls by one
                      * thread */
                __fsetlocking(t->file, FSETLOCKING_BYCALLER);
        return t->file;
}

/* Returns the text, which the caller frees, or NULL if memory ran out. */
static char *text_close(struct text *t)
{
        bool failed = ferror(t->file) != 0;

        if (fclose(t->file) != 0 || failed) {
                free(t->bytes);
                return NULL;
        }
        return t->bytes;
}

/* Returns the quality that an Accept header gives to a media type, 0 to 1000, or -1 if it is
 * absent. The best of several entries counts. `parameter` must be part of the entry, unless it is
 * "". */
static int accept_quality(const char *accept, const char *type, const char *parameter)
{
        size_t type_length = strlen(type);
        int best = -1;

        while (accept && *accept) {
                const char *end = strchrnul(accept, ',');
                const char *p = accept + strspn(accept, " \t");

                if (strncasecmp(p, type, type_length) == 0 && strchr(" \t;,", p[type_length]) &&
                    memmem(p, (size_t)(end - p), parameter, strlen(parameter))) {
                        int quality = 1000;

                        for (p += type_length; p < end; p++) {
                                const char *q = p + 1 + strspn(p + 1, " \t"), *digit = q + 2;

                                if (*p != ';' || (*q != 'q' && *q != 'Q') || q[1] != '=')
                                        continue;
                                quality = *digit == '1' ? 1000 : 0;
                                if (*digit == '0' && digit[1] == '.') {
                                        int scale = 100;

                                        for (digit += 2; isdigit((unsigned char)*digit) && scale;
                                             digit++, scale /= 10)
                                                quality += (*digit - '0') * scale;
                                }
                        }
                        best = MAX(best, quality);
                }
                accept = *end ? end + 1 : end;
        }
        return best;
}

enum http_page http_page_of_metrics(const char *accept)
{
        int text = accept_quality(accept, "text/plain", "");
        int openmetrics = accept_quality(accept, "application/openmetrics-text", "");
        int protobuf =
                accept_quality(accept, "application/vnd.google.protobuf", "encoding=delimited");

        if (protobuf > 0 && protobuf >= MAX(openmetrics, text))
                return HTTP_PAGE_PROTOBUF;
        return openmetrics > 0 && openmetrics >= text ? HTTP_PAGE_OPENMETRICS : HTTP_PAGE_METRICS;
}

static struct shared_text *make_metrics(const struct http_pages *from, enum http_metrics format)
{
        struct text t;
        char *text = NULL;

        if (text_open(&t)) {
                from->print_metrics(from->userdata, format, t.file);
                text = text_close(&t);
        }
        return shared_text_new(text, t.n);
}

static char *status_text(const struct http_pages *from, size_t *ret_n)
{
        struct text t;
        char *text = NULL;

        if (text_open(&t)) {
                from->print_status(from->userdata, t.file);
                text = text_close(&t);
        }
        *ret_n = t.n;
        return text;
}

static struct shared_text *make_html(const struct http_pages *from, bool paused)
{
        _cleanup_(freep) char *status = NULL;
        struct page page = { .history = from->history,
                             .now_ns = clock_mono_ns(),
                             .unix_ms = clock_unix_ms(),
                             .paused = paused };
        struct text t = {};
        char *text = NULL;
        size_t n;

        page.status = status = status_text(from, &n);
        page.ready = from->is_ready(from->userdata, &page.readiness);
        page.healthy = from->is_healthy(from->userdata, &page.health);
        if (text_open(&t)) {
                page_print(t.file, &page);
                text = text_close(&t);
        }
        return shared_text_new(text, t.n);
}

static struct shared_text *make_history(const struct http_pages *from)
{
        struct text t;
        char *text = NULL;

        if (text_open(&t)) {
                history_print(from->history, clock_mono_ns(), t.file);
                text = text_close(&t);
        }
        return shared_text_new(text, t.n);
}

/* Takes the next parameter of a query. Returns false at its end. */
static bool take_parameter(const char **query, const char **ret, size_t *ret_n)
{
        if (!*query)
                return false;
        *ret = *query;
        *ret_n = strcspn(*query, "&");
        *query = (*query)[*ret_n] ? *query + *ret_n + 1 : NULL;
        return true;
}

bool http_page_of_namespace(const struct http_pages *from, const char *query,
                            struct http_wanted *ret)
{
        static const char name[] = "name=";
        _cleanup_(freep) char *value = NULL, *decoded = NULL;
        const char *parameter;
        size_t n;
        bool paused = false;

        while (take_parameter(&query, &parameter, &n)) {
                if (n == strlen("paused") && strncmp(parameter, "paused", n) == 0) {
                        paused = true;
                } else if (n >= strlen(name) && strncmp(parameter, name, strlen(name)) == 0 &&
                           !value) {
                        value = strndup(parameter + strlen(name), n - strlen(name));
                        if (!value)
                                return false;
                } else {
                        return false;
                }
        }
        decoded = value ? evhttp_uridecode(value, 0, &n) : NULL;
        ret->page = paused ? HTTP_PAGE_NAMESPACE_PAUSED : HTTP_PAGE_NAMESPACE;
        return decoded && from->find_namespace(from->userdata, decoded, n, &ret->id);
}

bool http_page_is_html(enum http_page page)
{
        return page == HTTP_PAGE_HTML || page == HTTP_PAGE_HTML_PAUSED ||
               page == HTTP_PAGE_NAMESPACE || page == HTTP_PAGE_NAMESPACE_PAUSED;
}

static int make_namespace(const struct http_pages *from, uint32_t id, bool paused,
                          struct shared_text **ret)
{
        _cleanup_(freep) char *text = NULL;
        bool is_there = false;
        struct text t;

        if (text_open(&t)) {
                is_there = from->print_namespace(from->userdata, id, paused, t.file);
                text = text_close(&t);
        }
        if (text && !is_there)
                return -ENOENT;
        *ret = shared_text_new(TAKE_PTR(text), t.n);
        return *ret ? 0 : -ENOMEM;
}

static struct shared_text *make_other(const struct http_pages *from, enum http_page page)
{
        size_t n;
        char *status;

        switch (page) {
        case HTTP_PAGE_HTML:
        case HTTP_PAGE_HTML_PAUSED:
                return make_html(from, page == HTTP_PAGE_HTML_PAUSED);
        case HTTP_PAGE_HISTORY:
                return make_history(from);
        case HTTP_PAGE_STATUS:
                status = status_text(from, &n);
                return shared_text_new(status, n);
        default:
                return make_metrics(from, page == HTTP_PAGE_PROTOBUF      ? HTTP_METRICS_PROTOBUF
                                          : page == HTTP_PAGE_OPENMETRICS ? HTTP_METRICS_OPENMETRICS
                                                                          : HTTP_METRICS_TEXT);
        }
}

int http_page_make(const struct http_pages *from, struct http_wanted wanted,
                   struct shared_text **ret)
{
        if (wanted.page == HTTP_PAGE_NAMESPACE || wanted.page == HTTP_PAGE_NAMESPACE_PAUSED)
                return make_namespace(from, wanted.id, wanted.page == HTTP_PAGE_NAMESPACE_PAUSED,
                                      ret);
        *ret = make_other(from, wanted.page);
        return *ret ? 0 : -ENOMEM;
}

const char *http_page_type(enum http_page page)
{
        static const char *const types[] = {
                [HTTP_PAGE_HTML] = "text/html; charset=utf-8",
                [HTTP_PAGE_HTML_PAUSED] = "text/html; charset=utf-8",
                [HTTP_PAGE_NAMESPACE] = "text/html; charset=utf-8",
                [HTTP_PAGE_NAMESPACE_PAUSED] = "text/html; charset=utf-8",
                [HTTP_PAGE_STATUS] = "application/json; charset=utf-8",
                [HTTP_PAGE_HISTORY] = "application/json; charset=utf-8",
                [HTTP_PAGE_METRICS] = "text/plain; version=0.0.4; charset=utf-8",
                [HTTP_PAGE_OPENMETRICS] =
                        "application/openmetrics-text; version=1.0.0; charset=utf-8",
                [HTTP_PAGE_PROTOBUF] =
                        ("application/vnd.google.protobuf; "
                         "proto=io.prometheus.client.MetricFamily; encoding=delimited"),
        };

        return types[page];
}
