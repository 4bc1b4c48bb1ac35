/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a handle: options, descriptors, connect, close. Owns everything that struct kvcache
 * refers to. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "lib/abi.h"
#include "lib/admin.h"
#include "lib/buffers.h"
#include "lib/connection.h"
#include "lib/flow.h"
#include "lib/request.h"

enum { CONNECT_TIMEOUT_MS = 5000, REQUEST_TIMEOUT_MS = 30000 };

void kvcache_close(struct kvcache *kv)
{
        struct request *q;
        struct message *m;
        struct conn *c;
        bool forked;

        if (!kv)
                return;
        forked = handle_is_forked(kv);
        if (kv->attached > 0 && !forked) {
                kv->is_closed = true;
                return;
        }
        TAILQ_CONCAT(&kv->ready, &kv->requests, link);
        while ((q = TAILQ_FIRST(&kv->ready))) {
                TAILQ_REMOVE(&kv->ready, q, link);
                request_free(q);
        }
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                message_free(kv->inflight[i]);
        while ((m = TAILQ_FIRST(&kv->queue))) {
                TAILQ_REMOVE(&kv->queue, m, link);
                message_free(m);
        }
        conn_free(kv->conn, forked);
        while ((c = TAILQ_FIRST(&kv->ended))) {
                TAILQ_REMOVE(&kv->ended, c, link);
                conn_free(c, forked);
        }
        while (kv->n_buffers > 0)
                buffer_remove(kv, &kv->buffers[kv->n_buffers - 1], forked);
        admin_namespaces_free(kv);
        free(kv->events);
        lease_table_fini(&kv->leases);
        free(kv->releases);
        free(kv->socket_path);
        closep(&kv->epoll_fd);
        closep(&kv->timer_fd);
        munmap((void *)kv->fork_mark, (size_t)sysconf(_SC_PAGESIZE));
        free(kv);
}

static struct kvcache *new (void)
{
        struct kvcache *kv = calloc(1, sizeof(*kv));
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        uint32_t *mark;

        if (!kv)
                return NULL;
        kv->epoll_fd = kv->timer_fd = -1;
        kv->next_deadline = kv->timer_ns = INT64_MAX;
        TAILQ_INIT(&kv->ended);
        TAILQ_INIT(&kv->queue);
        TAILQ_INIT(&kv->requests);
        TAILQ_INIT(&kv->ready);

        mark = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mark == MAP_FAILED) {
                free(kv);
                return NULL;
        }
        *mark = HANDLE_FORK_MARK;
        kv->fork_mark = mark;
        if (madvise(mark, page, MADV_WIPEONFORK) < 0)
                kv->pid = getpid();
        return kv;
}

static int set_up(struct kvcache *kv, const struct kvcache_options *o)
{
        const char *name = o->client_name ? o->client_name : program_invocation_short_name;
        struct epoll_event e = { .events = EPOLLIN };

        if (o->flags & ~(uint32_t)(KVCACHE_POPULATE | KVCACHE_NO_LOOKUP | KVCACHE_NO_SPIN))
                return handle_fail(kv, -EINVAL, "unknown flags 0x%x", o->flags);
        if (o->connect_timeout_ms < 0 || o->request_timeout_ms < 0)
                return handle_fail(kv, -EINVAL,
                                   "connect_timeout_ms or request_timeout_ms is negative");
        kv->flags = o->flags;
        kv->spin.limit_ns = o->flags & KVCACHE_NO_SPIN ? 0 : spin_limit_of_host();
        kv->connect_timeout_ms = o->connect_timeout_ms ? o->connect_timeout_ms : CONNECT_TIMEOUT_MS;
        kv->request_timeout_ms = o->request_timeout_ms ? o->request_timeout_ms : REQUEST_TIMEOUT_MS;
        kv->staging_bytes = o->staging_bytes;
        for (size_t i = 0; i < sizeof(kv->client_name) - 1 && name[i]; i++)
                kv->client_name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
        if (o->socket_path) {
                kv->socket_path = strdup(o->socket_path);
                if (!kv->socket_path)
                        return handle_no_memory(kv);
        }

        kv->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        kv->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (kv->epoll_fd < 0 || kv->timer_fd < 0 ||
            epoll_ctl(kv->epoll_fd, EPOLL_CTL_ADD, kv->timer_fd, &e) < 0)
                return handle_fail_errno(kv, -errno, "cannot create the handle's epoll or timerfd");
        return 0;
}

int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes)
{
        struct kvcache_options o = { 0 };
        struct kvcache *kv = new ();
        int r;

        if (!kv)
                r = -ENOMEM;
        else if (!ret || (options && !abi_size_is_valid(options->size, ABI_OPTIONS_MIN)))
                r = handle_fail(
                        kv, -EINVAL,
                        "the pointer to the result is NULL, or the options' size is not set");
        else if (options && abi_copy_in(&o, sizeof(o), options, options->size) < 0)
                r = handle_is_newer(kv, "options");
        else
                r = set_up(kv, &o);
        if (r == 0)
                r = conn_open(kv);
        if (r == 0) {
                *ret = kv;
                return 0;
        }
        if (ret_error && error_bytes > 0)
                snprintf(ret_error, error_bytes, "%s", kv ? kv->error : "out of memory");
        kvcache_close(kv);
        return r;
}

int kvcache_fd(const struct kvcache *kv)
{
        if (!kv)
                return -EINVAL;
        if (handle_is_forked(kv))
                return -ECHILD;
        if (!kv->fd_is_known) {
                struct kvcache *own = (struct kvcache *)kv;

                own->fd_is_known = true;
                handle_leave(own);
        }
        return kv->epoll_fd;
}

int kvcache_get_info(struct kvcache *kv, struct kvcache_info *ret)
{
        struct kvcache_info info;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!ret || !abi_size_is_valid(ret->size, ABI_INFO_MIN))
                return handle_fail(kv, -EINVAL, "the info is NULL, or its size is not set");
        flow_check_idle(kv);
        r = conn_ready(kv);
        handle_leave(kv);
        if (r < 0)
                return r;
        info = (struct kvcache_info){
                .size = ret->size,
                .protocol_version = kv->conn->version,
                .pool_bytes = kv->conn->pool_bytes,
                .max_chunk_bytes = kv->conn->max_chunk,
                .staging_bytes = kv->conn->staging.bytes,
                .reconnects = kv->sessions - 1,
                .lookup_bytes = kv->conn->lookup.bytes,
                .lookups_local = kv->lookups_local,
                .pool_index_bytes = kv->conn->hits.bytes,
                .gets_local = kv->gets_local,
                .lends = (kv->conn->features & WIRE_FEATURE_LENDS) != 0,
                .takes_files = (kv->conn->features & WIRE_FEATURE_FILES) != 0,
                .shared_tier = (kv->conn->features & WIRE_FEATURE_REMOTE) != 0,
        };
        memcpy(info.instance, kv->conn->instance, sizeof(info.instance));
        abi_copy_out(ret, ret->size, &info, sizeof(info));
        return 0;
}
