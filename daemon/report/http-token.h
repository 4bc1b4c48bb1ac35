/* SPDX-License-Identifier: Apache-2.0 */
/* The token of http.token_file, which requests for pages have to carry. See http-token.c. Loop
 * thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_TOKEN_MIN = 16, HTTP_TOKEN_MAX = 512 };

struct http_token {
        size_t n; /* 0: none is needed */
        char bytes[HTTP_TOKEN_MAX];
};

/* Of the file at `path`; "off": none is needed. -errno and one sentence, which has nothing of what
 * is in the file. -EINVAL: the file can be read, and has no token or the wrong permissions. */
int http_token_read(struct http_token *ret, const char *path, char ret_error[static 256]);
/* Does the value of an Authorization header (NULL: there is none) carry it? Takes as long for any
 * token that is wrong. */
bool http_token_matches(const struct http_token *t, const char *authorization);
/* Are they the same? */
bool http_token_equal(const struct http_token *a, const struct http_token *b);
