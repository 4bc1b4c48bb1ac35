/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libcurl 7.88 or later. Earlier versions do not sign all headers of a request
 * (CURLOPT_AWS_SIGV4), nor take the payload's hash from S3's header for it, so that every request
 * would be refused. The library stays loaded until the process ends. */
#include "remote/libcurl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

enum { OLDEST = 0x075800 };

static int refuse(const struct libcurl *l, char ret_error[static 256], const char *what)
{
        snprintf(ret_error, 256,
                 "remote.backend: s3 needs libcurl.so.4, version 7.88 or later, with TLS: %s; "
                 "install libcurl4 (Debian 12, Ubuntu 24.04 or later)",
                 what);
        if (l->dl)
                dlclose(l->dl);
        return -ELIBACC;
}

int libcurl_open(struct libcurl *ret, bool tls, char ret_error[static 256])
{
        struct libcurl l = { .dl = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
        const struct curl_version *v;
        const char *missing = NULL;
        char text[100];
        int r;

        if (!l.dl) {
                snprintf(text, sizeof(text), "%.90s", dlerror());
                return refuse(&l, ret_error, text);
        }
#define X(name, type, arguments)                                                                   \
        *(void **)&l.name = dlsym(l.dl, "curl_" #name);                                            \
        if (!l.name && !missing)                                                                   \
                missing = "curl_" #name;
        LIBCURL_FUNCTIONS(X)
#undef X
        if (missing) {
                snprintf(text, sizeof(text), "the installed library has no %s()", missing);
                return refuse(&l, ret_error, text);
        }
        r = l.global_init(CURL_GLOBAL_DEFAULT);
        if (r != CURLE_OK) {
                snprintf(
                        ret_error, 256,
                        "remote.backend: s3: curl_global_init() of libcurl.so.4 returned %d; check "
                        "the installed libcurl and its TLS library",
                        r);
                dlclose(l.dl);
                return -ELIBACC;
        }
        v = l.version_info(0);
        if (v->number < OLDEST) {
                snprintf(text, sizeof(text), "the installed version is %.20s", v->version);
                return refuse(&l, ret_error, text);
        }
        if (tls && !v->ssl_version)
                return refuse(&l, ret_error, "the installed library has no TLS");
        *ret = l;
        return 0;
}
