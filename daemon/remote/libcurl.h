/* SPDX-License-Identifier: Apache-2.0 */
/* The part of libcurl.so.4's API that s3.c uses, with the numbers of its ABI. The library is loaded
 * at run time, so that the daemon builds and runs without it. Private to the S3 back end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef void CURL, CURLM;
struct curl_slist;

enum {
        CURLOPT_FOLLOWLOCATION = 52,
        CURLOPT_HTTPGET = 80,
        CURLOPT_HTTP_VERSION = 84,
        CURLOPT_BUFFERSIZE = 98,
        CURLOPT_NOSIGNAL = 99,
        CURLOPT_UPLOAD = 46,
        CURLOPT_TIMEOUT_MS = 155,
        CURLOPT_PROTOCOLS = 181,
        CURLOPT_TCP_KEEPALIVE = 213,
        CURLOPT_EXPECT_100_TIMEOUT_MS = 227,
        CURLOPT_UPLOAD_BUFFERSIZE = 280,
        CURLOPT_QUICK_EXIT = 322,
        CURLOPT_WRITEDATA = 10001,
        CURLOPT_URL = 10002,
        CURLOPT_RANGE = 10007,
        CURLOPT_READDATA = 10009,
        CURLOPT_ERRORBUFFER = 10010,
        CURLOPT_USERAGENT = 10018,
        CURLOPT_HTTPHEADER = 10023,
        CURLOPT_HEADERDATA = 10029,
        CURLOPT_CUSTOMREQUEST = 10036,
        CURLOPT_CAINFO = 10065,
        CURLOPT_PRIVATE = 10103,
        CURLOPT_SEEKDATA = 10168,
        CURLOPT_USERNAME = 10173,
        CURLOPT_PASSWORD = 10174,
        CURLOPT_AWS_SIGV4 = 10305,
        CURLOPT_WRITEFUNCTION = 20011,
        CURLOPT_READFUNCTION = 20012,
        CURLOPT_HEADERFUNCTION = 20079,
        CURLOPT_SEEKFUNCTION = 20167,
        CURLOPT_INFILESIZE_LARGE = 30115,

        CURLINFO_PRIVATE = 0x100015,
        CURLINFO_RESPONSE_CODE = 0x200002,

        CURLMOPT_PIPELINING = 3,
        CURLMOPT_MAXCONNECTS = 6,
        CURLMOPT_MAX_HOST_CONNECTIONS = 7,
        CURLMOPT_MAX_TOTAL_CONNECTIONS = 13,

        CURL_GLOBAL_DEFAULT = 3,
        CURL_HTTP_VERSION_1_1 = 2,
        CURL_PROTOCOL_HTTP = 1,
        CURL_PROTOCOL_HTTPS = 2,
        CURL_ERROR_SIZE = 256,
        CURL_READFUNC_ABORT = 0x10000000,
        CURLMSG_DONE = 1,

        CURLE_OK = 0,
        CURLE_COULDNT_RESOLVE_HOST = 6,
        CURLE_COULDNT_CONNECT = 7,
        CURLE_WRITE_ERROR = 23,
        CURLE_OUT_OF_MEMORY = 27,
        CURLE_OPERATION_TIMEDOUT = 28,
};

struct curl_message {
        int what; /* CURLMSG_DONE */
        CURL *easy;
        union {
                void *whatever;
                int result;
        } data;
};

/* The first fields of curl_version_info_data. */
struct curl_version {
        int age;
        const char *version;
        unsigned number; /* version of the library as 0xXXYYZZ */
        const char *host;
        int features;
        const char *ssl_version; /* NULL: built without TLS */
};

/* clang-format off */
#define LIBCURL_FUNCTIONS(X)                                                                       \
        X(global_init, int, (long flags))                                                          \
        X(version_info, const struct curl_version *, (int age))                                    \
        X(easy_init, CURL *, (void))                                                               \
        X(easy_cleanup, void, (CURL *easy))                                                        \
        X(easy_reset, void, (CURL *easy))                                                          \
        X(easy_setopt, int, (CURL *easy, int option, ...))                                         \
        X(easy_getinfo, int, (CURL *easy, int info, ...))                                          \
        X(easy_strerror, const char *, (int code))                                                 \
        X(slist_append, struct curl_slist *, (struct curl_slist *list, const char *text))          \
        X(slist_free_all, void, (struct curl_slist *list))                                         \
        X(multi_init, CURLM *, (void))                                                             \
        X(multi_cleanup, int, (CURLM *multi))                                                      \
        X(multi_setopt, int, (CURLM *multi, int option, ...))                                      \
        X(multi_add_handle, int, (CURLM *multi, CURL *easy))                                       \
        X(multi_remove_handle, int, (CURLM *multi, CURL *easy))                                    \
        X(multi_perform, int, (CURLM *multi, int *ret_running))                                    \
        X(multi_info_read, struct curl_message *, (CURLM *multi, int *ret_left))                   \
        X(multi_poll, int, (CURLM *multi, void *extra, unsigned n_extra, int timeout_ms,           \
                            int *ret_n))                                                           \
        X(multi_wakeup, int, (CURLM *multi))
/* clang-format on */

struct libcurl {
        void *dl;
#define X(name, type, arguments) type(*name) arguments;
        LIBCURL_FUNCTIONS(X)
#undef X
};

/* Loads the library. Returns 0, or -ELIBACC if no suitable one exists, with the package to install
 * in `ret_error`. `tls`: TLS is required. */
int libcurl_open(struct libcurl *ret, bool tls, char ret_error[static 256]);
