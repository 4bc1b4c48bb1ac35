/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libcurl 7.88 or later. Earlier versions do not sign all headers of a request
 * (CURLOPT_AWS_SIGV4), nor take the payload's hash from S3's header for it, so that every request
 * would be refused. The library stays loaded until the process ends. */
#include "remote/libcurl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

enum { OLDEST = 0x075800 };

#define INSTALL "install libcurl4 (Debian 12, Ubuntu 24.04 or later)"

static int refuse(const struct libcurl *l, char ret_error[static 256], const char *what,
                  const char *remedy)
{
        snprintf(ret_error, 256,
                 "remote.backend: s3 needs libcurl.so.4, version 7.88 or later, with TLS: %s; %s",
                 what, remedy);
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
                return refuse(&l, ret_error, text, INSTALL);
        }
#define X(name, type, arguments)                                                                   \
        *(void **)&l.name = dlsym(l.dl, "curl_" #name);                                            \
        if (!l.name && !missing)                                                                   \
                missing = "curl_" #name;
        LIBCURL_FUNCTIONS(X)
#undef X
        if (missing) {
                snprintf(text, sizeof(text), "the installed library has no %s()", missing);
                return refuse(&l, ret_error, text, INSTALL);
        }
        r = l.global_init(CURL_GLOBAL_DEFAULT);
        if (r != CURLE_OK) {
                snprintf(text, sizeof(text), "curl_global_init() returned %d", r);
                return refuse(&l, ret_error, text, "check the TLS library that libcurl uses");
        }
        v = l.version_info(0);
        if (v->number < OLDEST) {
                snprintf(text, sizeof(text), "the installed version is %.20s", v->version);
                return refuse(&l, ret_error, text, INSTALL);
        }
        if (tls && !v->ssl_version)
                return refuse(&l, ret_error, "the installed library has no TLS", INSTALL);
        *ret = l;
        return 0;
}
