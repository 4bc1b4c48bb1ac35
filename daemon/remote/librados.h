/* SPDX-License-Identifier: Apache-2.0 */
/* The part of librados.so.2's C API that rados.c and rados-sweep.c use. The library is loaded at
 * run time, so that the daemon builds and runs without it. Private to these files. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>

typedef void *rados_t, *rados_ioctx_t, *rados_completion_t, *rados_list_ctx_t;
typedef void *rados_read_op_t, *rados_write_op_t;
typedef void (*rados_callback_t)(rados_completion_t completion, void *userdata);

enum {
        RADOS_CREATE_EXCLUSIVE = 1,
        /* Lets writes to a full cluster or pool fail instead of waiting for space. */
        RADOS_OPERATION_FULL_TRY = 64,
        RADOS_LOCK_FLAG_MAY_RENEW = 1,
};

/* clang-format off */
#define LIBRADOS_FUNCTIONS(X)                                                                      \
        X(create, int, (rados_t *ret, const char *id))                                             \
        X(conf_read_file, int, (rados_t cluster, const char *path))                                \
        X(conf_set, int, (rados_t cluster, const char *option, const char *value))                 \
        X(connect, int, (rados_t cluster))                                                         \
        X(shutdown, void, (rados_t cluster))                                                       \
        X(ioctx_create, int, (rados_t cluster, const char *pool, rados_ioctx_t *ret))              \
        X(ioctx_destroy, void, (rados_ioctx_t io))                                                 \
        X(ioctx_set_namespace, void, (rados_ioctx_t io, const char *name))                         \
        X(aio_create_completion2, int, (void *userdata, rados_callback_t complete,                 \
                                        rados_completion_t *ret))                                  \
        X(aio_get_return_value, int, (rados_completion_t c))                                       \
        X(aio_wait_for_complete, int, (rados_completion_t c))                                      \
        X(aio_release, void, (rados_completion_t c))                                               \
        X(aio_cancel, int, (rados_ioctx_t io, rados_completion_t c))                               \
        X(aio_stat, int, (rados_ioctx_t io, const char *oid, rados_completion_t c,                 \
                          uint64_t *ret_size, time_t *ret_mtime))                                  \
        X(create_write_op, rados_write_op_t, (void))                                               \
        X(release_write_op, void, (rados_write_op_t op))                                           \
        X(write_op_create, void, (rados_write_op_t op, int exclusive, const char *category))       \
        X(write_op_assert_exists, void, (rados_write_op_t op))                                     \
        X(write_op_assert_version, void, (rados_write_op_t op, uint64_t version))                  \
        X(write_op_write_full, void, (rados_write_op_t op, const char *buffer, size_t n))          \
        X(write_op_write, void, (rados_write_op_t op, const char *buffer, size_t n,                \
                                 uint64_t offset))                                                 \
        X(write_op_setxattr, void, (rados_write_op_t op, const char *name, const char *value,      \
                                    size_t n))                                                     \
        X(write_op_remove, void, (rados_write_op_t op))                                            \
        X(write_op_operate, int, (rados_write_op_t op, rados_ioctx_t io, const char *oid,          \
                                  time_t *mtime, int flags))                                       \
        X(aio_write_op_operate, int, (rados_write_op_t op, rados_ioctx_t io,                       \
                                      rados_completion_t c, const char *oid, time_t *mtime,        \
                                      int flags))                                                  \
        X(create_read_op, rados_read_op_t, (void))                                                 \
        X(release_read_op, void, (rados_read_op_t op))                                             \
        X(read_op_stat, void, (rados_read_op_t op, uint64_t *ret_size, time_t *ret_mtime,          \
                               int *ret_result))                                                   \
        X(read_op_read, void, (rados_read_op_t op, uint64_t offset, size_t n, char *buffer,        \
                               size_t *ret_n, int *ret_result))                                    \
        X(aio_read_op_operate, int, (rados_read_op_t op, rados_ioctx_t io, rados_completion_t c,   \
                                     const char *oid, int flags))                                  \
        X(stat, int, (rados_ioctx_t io, const char *oid, uint64_t *ret_size, time_t *ret_mtime))   \
        X(get_last_version, uint64_t, (rados_ioctx_t io))                                          \
        X(lock_exclusive, int, (rados_ioctx_t io, const char *oid, const char *name,               \
                                const char *cookie, const char *description,                       \
                                struct timeval *duration, uint8_t flags))                          \
        X(unlock, int, (rados_ioctx_t io, const char *oid, const char *name, const char *cookie))  \
        X(list_lockers, ssize_t, (rados_ioctx_t io, const char *oid, const char *name,             \
                                  int *ret_exclusive, char *tag, size_t *tag_n, char *clients,     \
                                  size_t *clients_n, char *cookies, size_t *cookies_n,             \
                                  char *addresses, size_t *addresses_n))                           \
        X(break_lock, int, (rados_ioctx_t io, const char *oid, const char *name,                   \
                            const char *client, const char *cookie))                               \
        X(nobjects_list_open, int, (rados_ioctx_t io, rados_list_ctx_t *ret))                      \
        X(nobjects_list_next, int, (rados_list_ctx_t list, const char **ret_entry,                 \
                                    const char **ret_key, const char **ret_namespace))             \
        X(nobjects_list_close, void, (rados_list_ctx_t list))
/* clang-format on */

struct librados {
        void *dl;
#define X(name, type, arguments) type(*name) arguments;
        LIBRADOS_FUNCTIONS(X)
#undef X
};

/* Loads the library. Returns 0, or -ELIBACC if it is missing or too old, with the package to
 * install in `ret_error`. */
int librados_open(struct librados *ret, char ret_error[static 256]);
