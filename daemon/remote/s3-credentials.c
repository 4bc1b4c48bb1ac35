/* SPDX-License-Identifier: Apache-2.0 */
/* Reads credentials. A file is read completely and parsed before its keys are used, so that half a
 * file changes nothing. Keys exist only in the back end's memory and are wiped at its end; messages
 * never contain them. */
#include "remote/s3-credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cleanup.h"

enum { FILE_MAX = 16384 };

#define REFRESH_NS 1000000000u

struct keys {
        char key[256], secret[256], token[4096];
};

static int refuse(char ret_error[static 256], int r, const char *path, const char *what)
{
        snprintf(ret_error, 256, "remote.credentials: %.100s: %s", path, what);
        return r;
}

/* Copies the value of a line without trailing blanks. Returns false if it is empty, too long, or
 * contains a character that is invalid in a header. */
static bool copy_value(const char *value, char *ret, size_t size)
{
        size_t n = strcspn(value, "\n");

        while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t' || value[n - 1] == '\r'))
                n--;
        if (n == 0 || n >= size)
                return false;
        for (size_t i = 0; i < n; i++)
                if ((unsigned char)value[i] <= ' ' || (unsigned char)value[i] > '~')
                        return false;
        memcpy(ret, value, n);
        ret[n] = 0;
        return true;
}

/* Parses the text of a file with credentials. Returns NULL, or a description of the error. */
static const char *parse(const char *text, struct keys *ret)
{
        struct {
                const char *name;
                char *value;
                size_t size;
        } wanted[] = { { "aws_access_key_id", ret->key, sizeof(ret->key) },
                       { "aws_secret_access_key", ret->secret, sizeof(ret->secret) },
                       { "aws_session_token", ret->token, sizeof(ret->token) } };
        bool here = true;

        *ret = (struct keys){ 0 };
        for (const char *line = text; line && *line;
             line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
                line += strspn(line, " \t");
                if (*line == '[') {
                        here = strncmp(line, "[default]", 9) == 0;
                        continue;
                }
                for (unsigned i = 0; here && i < 3; i++) {
                        size_t n = strlen(wanted[i].name);
                        const char *p = line + n;

                        if (strncmp(line, wanted[i].name, n) != 0)
                                continue;
                        p += strspn(p, " \t");
                        if (*p++ != '=')
                                continue;
                        p += strspn(p, " \t");
                        if (!copy_value(p, wanted[i].value, wanted[i].size))
                                return "the value of a key is empty, too long, or has a space or a "
                                       "character that is not printable ASCII";
                }
        }
        if (!*ret->key)
                return "the file has no aws_access_key_id (in [default], if it has sections)";
        return *ret->secret ? NULL : "the file has no aws_secret_access_key";
}

static int read_file(struct s3_credentials *c, char ret_error[static 256])
{
        _cleanup_(closep) int fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        char text[FILE_MAX + 1];
        struct keys keys;
        struct stat st;
        const char *wrong;
        ssize_t n;

        if (fd < 0 || fstat(fd, &st) < 0)
                return refuse(ret_error, -errno, c->path, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return refuse(ret_error, -EINVAL, c->path, "the file is not a regular file");
        if (st.st_mode & S_IRWXO)
                return refuse(ret_error, -EPERM, c->path,
                              "other users may read or change the file: chmod 0640");
        n = pread(fd, text, FILE_MAX, 0);
        if (n < 0)
                return refuse(ret_error, -errno, c->path, strerror(errno));
        text[n] = 0;
        wrong = st.st_size > FILE_MAX ? "the file is too large" : parse(text, &keys);
        explicit_bzero(text, sizeof(text));
        if (wrong)
                return refuse(ret_error, -EINVAL, c->path, wrong);
        memcpy(c->key, keys.key, sizeof(c->key));
        memcpy(c->secret, keys.secret, sizeof(c->secret));
        memcpy(c->token, keys.token, sizeof(c->token));
        explicit_bzero(&keys, sizeof(keys));
        c->read = st;
        return 0;
}

static int read_environment(struct s3_credentials *c, char ret_error[static 256])
{
        static const char *const names[] = { "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                                             "AWS_SESSION_TOKEN" };
        char *to[] = { c->key, c->secret, c->token };
        const size_t sizes[] = { sizeof(c->key), sizeof(c->secret), sizeof(c->token) };

        for (unsigned i = 0; i < 3; i++) {
                const char *value = getenv(names[i]);

                if (i == 2 && (!value || !*value))
                        return 0;
                if (!value || !copy_value(value, to[i], sizes[i])) {
                        snprintf(ret_error, 256,
                                 "remote.credentials is not set, and the environment variable %s "
                                 "%s: set one of them",
                                 names[i],
                                 value ? "is empty, too long, or has a space or a character that "
                                         "is not printable ASCII"
                                       : "is not set either");
                        return -EINVAL;
                }
        }
        return 0;
}

int s3_credentials_init(struct s3_credentials *c, const char *path, char ret_error[static 256])
{
        *c = (struct s3_credentials){ 0 };
        if (!path)
                return read_environment(c, ret_error);
        c->path = strdup(path);
        return c->path ? read_file(c, ret_error) : -ENOMEM;
}

void s3_credentials_fini(struct s3_credentials *c)
{
        free(c->path);
        explicit_bzero(c, sizeof(*c));
}

void s3_credentials_refresh(struct s3_credentials *c, uint64_t now_ns)
{
        char error[256];
        struct stat st;

        if (!c->path || now_ns - c->checked_ns < REFRESH_NS)
                return;
        c->checked_ns = now_ns;
        if (stat(c->path, &st) < 0 ||
            (st.st_ino == c->read.st_ino && st.st_size == c->read.st_size &&
             st.st_mtim.tv_sec == c->read.st_mtim.tv_sec &&
             st.st_mtim.tv_nsec == c->read.st_mtim.tv_nsec))
                return;
        (void)read_file(c, error);
}
