/* SPDX-License-Identifier: Apache-2.0 */
#include "fake-bench.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "kvcache-transfer.h"

enum { MOST_DONE = 1 << 16 };

struct fake_bench fake_bench;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Unreaped completions of all handles, the oldest first. */
static struct {
        const struct kvcache *kv;
        struct kvcache_completion completion;
} done[MOST_DONE];
static size_t n_done;

void fake_bench_reset(void)
{
        fake_reset();
        n_done = 0;
        fake_bench = (struct fake_bench){ 0 };
}

int kvcache_submit(struct kvcache *kv, const struct kvcache_request *request)
{
        struct kvcache_completion completion = { .user_data = request->user_data,
                                                 .op = request->op,
                                                 .count = request->count };
        int r = kvcache_submit_and_wait(kv, request, &completion.value);

        if (r < 0)
                return r;
        pthread_mutex_lock(&lock);
        assert(n_done < MOST_DONE);
        done[n_done].kv = kv;
        done[n_done++].completion = completion;
        pthread_mutex_unlock(&lock);
        return 0;
}

int kvcache_reap_sized(struct kvcache *kv, struct kvcache_completion *ret, size_t completion_size,
                       size_t max, int timeout_ms)
{
        size_t n = 0, kept = 0;

        assert(completion_size == sizeof(*ret));
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < n_done; i++)
                if (done[i].kv == kv && n < max)
                        ret[n++] = done[i].completion;
                else
                        done[kept++] = done[i];
        n_done = kept;
        pthread_mutex_unlock(&lock);
        return (int)n;
}

/* The mapping ends with the process. */
int kvcache_buffer_register(struct kvcache *kv, const struct kvcache_buffer_options *options,
                            uint32_t *ret_buffer, void **ret_base)
{
        assert(options->size == sizeof(*options));
        *ret_base = mmap(NULL, options->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, options->fd, 0);
        *ret_buffer = 1;
        return *ret_base == MAP_FAILED ? -errno : 0;
}

int kvcache_count_transfer(struct kvcache *kv, const struct kvcache_transfer *transfer)
{
        assert(transfer->size == sizeof(*transfer));
        pthread_mutex_lock(&lock);
        fake_bench.transfers += transfer->transfers;
        pthread_mutex_unlock(&lock);
        return 0;
}

int kvcache_bench_session(struct kvcache *kv, enum kvcache_bench_action action, const char *name,
                          uint32_t flags, char **ret_json)
{
        fake_bench.action = action;
        fake_bench.flags = flags;
        snprintf(fake_bench.name, sizeof(fake_bench.name), "%s", name ? name : "");
        if (fake_bench.session_error < 0 || !fake_bench.session)
                return fake_bench.session_error < 0 ? fake_bench.session_error : -ESRCH;
        if (ret_json)
                *ret_json = strdup(fake_bench.session);
        return 0;
}
