/* SPDX-License-Identifier: Apache-2.0 */
/* Interprets the answers of S3. Servers differ: for a quota, RGW sends 403 and others 507; some
 * servers put a code into the body, others send a status only. A known code therefore takes
 * precedence over the status. The whole answer is untrusted; a code is at most 47 letters and
 * digits. */
#include "remote/s3-answer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"

/* Finds <Code>NoSuchKey</Code> and stores the code, or "". */
static void find_code(const char *body, char ret[static 48])
{
        const char *p = strstr(body, "<Code>");
        size_t n = 0;

        *ret = 0;
        if (!p)
                return;
        for (p += 6; isalnum((unsigned char)p[n]) && n < 47; n++)
                ret[n] = p[n];
        if (p[n] != '<')
                n = 0;
        ret[n] = 0;
}

bool s3_answer_refuses_condition(long status, const char *body)
{
        return status == 501 || (status == 400 && (strstr(body, "<Code>InvalidArgument<") ||
                                                   strstr(body, "<Code>NotImplemented<")));
}

bool s3_answer_is_error(const char *body, size_t n)
{
        return (n >= 6 && memcmp(body, "<Error", 6) == 0) ||
               (n >= 5 && memcmp(body, "<?xml", 5) == 0);
}

int s3_answer(enum backend_op_kind kind, long status, const char *body, const char *bucket,
              char ret_error[static 120])
{
        static const struct {
                const char *code;
                int result;
        } codes[] = {
                { "NoSuchKey", -ENOENT },
                { "QuotaExceeded", -ENOSPC }, /* from RGW, with 403 */
                { "XMinioStorageFull", -ENOSPC },
                { "SlowDown", -EBUSY },
                { "EntityTooLarge", -E2BIG },
                { "AuthorizationHeaderMalformed", -EACCES }, /* another region, with 400 */
                { "InvalidAccessKeyId", -EACCES },
                { "ExpiredToken", -EACCES },
                { "InvalidToken", -EACCES },
                { "RequestTimeout", -EBUSY },
        };
        static const struct {
                long status;
                int result;
        } statuses[] = { { 401, -EACCES }, { 403, -EACCES }, { 404, -ENOENT },
                         { 408, -EBUSY },  { 412, -EEXIST }, { 413, -E2BIG },
                         { 429, -EBUSY },  { 503, -EBUSY },  { 507, -ENOSPC } };
        char code[48];
        int r = -EIO;

        /* The caller handles successful reads, so only other operations can have succeeded here. */
        if (kind != BACKEND_READ && status >= 200 && status < 300 &&
            !s3_answer_is_error(body, strlen(body)))
                return 0;
        find_code(body, code);
        for (unsigned i = 0; i < ARRAY_SIZE(statuses); i++)
                if (statuses[i].status == status)
                        r = statuses[i].result;
        for (unsigned i = 0; i < ARRAY_SIZE(codes); i++)
                if (strcmp(codes[i].code, code) == 0)
                        r = codes[i].result;
        /* 409: another host is writing the same chunk. */
        if (status == 409 && kind == BACKEND_CREATE)
                r = -EEXIST;
        if (status == 404 && strcmp(code, "NoSuchBucket") == 0) {
                snprintf(ret_error, 120, "there is no bucket %.60s: create it", bucket);
                return -EIO;
        }
        if (r == -ENOENT && kind != BACKEND_READ && kind != BACKEND_DELETE)
                r = -EIO;
        if (r == -EEXIST && kind != BACKEND_CREATE)
                r = -EIO;
        if (r == -ENOENT || r == -EEXIST)
                return r;
        if (status >= 300 && status < 400)
                snprintf(ret_error, 120,
                         "the server redirects (%ld%s%.12s); set remote.endpoint and remote.region "
                         "to those of the bucket",
                         status, *code ? " " : "", code);
        else
                snprintf(ret_error, 120, "the server answered %ld%s%s", status, *code ? " " : "",
                         code);
        return r;
}
