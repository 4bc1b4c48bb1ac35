/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous: many requests in flight, and one epoll loop that waits for them and for other
 * events.
 *
 * cc async-epoll.c $(pkg-config --cflags --libs kvcache) && ./a.out [SOCKET] */
#include <kvcache.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { REQUESTS = 16, PER_REQUEST = 4, BLOCK_BYTES = 16 * 1024 };

/* A request owns the memory that it names until its completion is reaped. */
struct flight {
        struct kvcache_entry entries[PER_REQUEST];
        struct kvcache_result results[PER_REQUEST];
};

static struct flight flights[REQUESTS];
static unsigned char block[BLOCK_BYTES];

static int submit_all(struct kvcache *kv, uint32_t ns)
{
        memset(block, 0x42, sizeof(block));
        for (unsigned n = 0; n < REQUESTS; n++) {
                struct flight *f = &flights[n];
                struct kvcache_request request;
                int r;

                for (unsigned i = 0; i < PER_REQUEST; i++) {
                        memcpy(f->entries[i].key.bytes, "async", 5);
                        f->entries[i].key.bytes[30] = (unsigned char)(n + 1);
                        f->entries[i].key.bytes[31] = (unsigned char)(i + 1);
                        f->entries[i].data = block;
                        f->entries[i].length = BLOCK_BYTES;
                }
                kvcache_prep_put(&request, ns, f->entries, PER_REQUEST, KVCACHE_ACCEPTED,
                                 f->results);
                request.user_data = n; /* identifies the request's completion */
                r = kvcache_submit(kv, &request);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Waits for all requests. Returns the number of blocks that were stored, or a negative errno. */
static int wait_all(struct kvcache *kv, int epoll_fd)
{
        int kept = 0;

        while (kvcache_inflight(kv) > 0) {
                struct kvcache_completion done[8];
                struct epoll_event event;
                int n;

                /* The program's other descriptors would be in this epoll instance, too. */
                if (epoll_wait(epoll_fd, &event, 1, -1) < 0 && errno != EINTR)
                        return -errno;
                do {
                        n = kvcache_reap(kv, done, 8, 0);
                        for (int i = 0; i < n; i++) {
                                struct flight *f = &flights[done[i].user_data];

                                for (unsigned k = 0; k < PER_REQUEST; k++)
                                        kept += kvcache_status_ok(f->results[k].status);
                        }
                } while (n == 8);
                if (n < 0)
                        return n;
        }
        return kept;
}

int main(int argc, char **argv)
{
        struct kvcache_options options = { .size = sizeof(options),
                                           .socket_path = argc > 1 ? argv[1] : NULL };
        struct kvcache_namespace_options ns_options = {
                .size = sizeof(ns_options),
                .name = "example-async",
                .fingerprint = "dtype=bf16\nmodel=demo\n",
        };
        struct epoll_event event = { .events = EPOLLIN };
        struct kvcache *kv;
        char why[256];
        uint32_t ns;
        int r, epoll_fd;

        if (kvcache_connect(&kv, &options, why, sizeof(why)) < 0) {
                fprintf(stderr, "cannot connect: %s\n", why);
                return 1;
        }
        epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        r = kvcache_namespace_open(kv, &ns_options, &ns);
        if (r == 0 &&
            (epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, kvcache_fd(kv), &event) < 0))
                r = -errno;
        if (r == 0)
                r = submit_all(kv, ns);
        if (r == 0)
                r = wait_all(kv, epoll_fd);
        if (r < 0)
                fprintf(stderr, "opening the namespace or storing the blocks failed: %s\n",
                        *kvcache_error(kv) ? kvcache_error(kv) : strerror(-r));
        else
                printf("%d of %d blocks were kept\n", r, REQUESTS * PER_REQUEST);
        kvcache_close(kv);
        if (epoll_fd >= 0)
                close(epoll_fd);
        return r != REQUESTS * PER_REQUEST;
}
