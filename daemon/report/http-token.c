/* SPDX-License-Identifier: Apache-2.0 */
/* The token that a page request must carry: "Authorization: Bearer TOKEN" (RFC 6750).
 *
 * Runs on the loop thread, at startup and at a reload, and reads one small file; keeps nothing. The
 * file is one line of printable characters without a space. Symbolic links are followed, because
 * Kubernetes mounts secrets that way; the target is checked. It must be a regular file that belongs
 * to root or the daemon's user, that others can neither read nor write, and that its group cannot
 * write.
 *
 * Failures: a sentence with the file and the remedy, but nothing of its contents. */
#include "report/http-token.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/small-file.h"
#include "cleanup.h"

static int refuse(char ret_error[static 256], int r, const char *path, const char *what)
{
        snprintf(ret_error, 256, "http.token_file: %.100s: %s", path, what);
        return r;
}

static int check_file(int fd, const char *path, char ret_error[static 256])
{
        struct stat st;
        char text[120];

        if (fstat(fd, &st) < 0)
                return refuse(ret_error, -errno, path, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return refuse(ret_error, -EINVAL, path, "the file is not a regular file");
        /* Root may run this check for the daemon's user. */
        if (geteuid() != 0 && st.st_uid != 0 && st.st_uid != geteuid())
                return refuse(ret_error, -EINVAL, path,
                              "the file belongs to another user, who could change the token; give "
                              "it to root or the daemon's user");
        if (!(st.st_mode & (S_IWGRP | S_IRWXO)))
                return 0;
        snprintf(text, sizeof(text), "mode %04o lets other users %s the file: chmod 0640",
                 (unsigned)st.st_mode & 07777, st.st_mode & S_IROTH ? "read" : "change");
        return refuse(ret_error, -EINVAL, path, text);
}

int http_token_read(struct http_token *ret, const char *path, char ret_error[static 256])
{
        _cleanup_(closep) int fd = -1;
        char bytes[HTTP_TOKEN_MAX +
                   2]; /* two more bytes: a newline, and one byte that reveals a longer text */
        size_t n, length;
        int64_t got;
        int r;

        if (strcmp(path, "off") == 0) {
                *ret = (struct http_token){ 0 };
                return 0;
        }
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0)
                return refuse(ret_error, -errno, path, strerror(errno));
        r = check_file(fd, path, ret_error);
        if (r < 0)
                return r;
        got = small_file_read(fd, bytes, sizeof(bytes));
        if (got < 0)
                return refuse(ret_error, (int)got, path, strerror((int)-got));
        n = (size_t)got;
        length = n > 0 && bytes[n - 1] == '\n' ? n - 1 : n;
        if (length == 0)
                r = refuse(ret_error, -EINVAL, path,
                           "the file is empty; create a token with openssl rand -hex 32");
        else if (length < HTTP_TOKEN_MIN || length > HTTP_TOKEN_MAX)
                r = refuse(ret_error, -EINVAL, path,
                           length < HTTP_TOKEN_MIN ? "the token is shorter than 16 characters; "
                                                     "create one with openssl rand -hex 32"
                                                   : "the token is longer than 512 characters");
        for (size_t i = 0; i < length && r == 0; i++)
                if (bytes[i] <= ' ' || bytes[i] > '~')
                        r = refuse(ret_error, -EINVAL, path,
                                   "a token is one line of printable ASCII characters without a "
                                   "space");
        if (r == 0) {
                *ret = (struct http_token){ .n = length };
                memcpy(ret->bytes, bytes, length);
        }
        explicit_bzero(bytes, sizeof(bytes));
        return r;
}

/* Compares all bytes even after a difference, so that the time does not reveal the number of right
 * bytes. */
static bool equal(const char a[static HTTP_TOKEN_MAX], size_t a_n,
                  const char b[static HTTP_TOKEN_MAX], size_t b_n)
{
        volatile unsigned char differs = a_n != b_n;

        for (size_t i = 0; i < HTTP_TOKEN_MAX; i++)
                differs |= (unsigned char)(a[i] ^ b[i]);
        return !differs;
}

bool http_token_matches(const struct http_token *t, const char *authorization)
{
        static const char scheme[] = "Bearer ";
        char given[HTTP_TOKEN_MAX] = "";
        bool matches;
        size_t n;

        if (t->n == 0)
                return true;
        if (!authorization || strncasecmp(authorization, scheme, strlen(scheme)) != 0)
                return false;
        authorization += strlen(scheme);
        authorization += strspn(authorization, " ");
        n = strlen(authorization);
        while (n > 0 && (authorization[n - 1] == ' ' || authorization[n - 1] == '\t'))
                n--;
        if (n == 0 || n > sizeof(given))
                return false;
        memcpy(given, authorization, n);
        matches = equal(t->bytes, t->n, given, n);
        explicit_bzero(given, sizeof(given));
        return matches;
}

bool http_token_equal(const struct http_token *a, const struct http_token *b)
{
        return equal(a->bytes, a->n, b->bytes, b->n);
}
