/* SPDX-License-Identifier: Apache-2.0 */
/* The token of http.token_file, which page requests must carry; see http-token.c. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { HTTP_TOKEN_MIN = 16, HTTP_TOKEN_MAX = 512 };

struct http_token {
        size_t n; /* 0: no token is required */
        char bytes[HTTP_TOKEN_MAX];
};

/* Reads the token from `path`; "off" means that none is required. Returns 0, or -errno and a
 * sentence that contains nothing of the file. -EINVAL: the file can be opened, but is no regular
 * file, has no valid token, or has a wrong owner or mode. */
int http_token_read(struct http_token *ret, const char *path, char ret_error[static 256]);
/* Returns whether the value of an Authorization header (NULL: no header) contains the token. Wrong
 * tokens take the same time, regardless of the number of right bytes. */
bool http_token_matches(const struct http_token *t, const char *authorization);
/* Returns whether two tokens are equal. */
bool http_token_equal(const struct http_token *a, const struct http_token *b);
