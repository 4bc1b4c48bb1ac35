/* SPDX-License-Identifier: Apache-2.0 */
/* Stops the server, and takes its parts down in the reverse order of their start.
 *
 * A clean stop (SIGTERM, SIGINT): the daemon accepts and reads nothing new, answers the requests
 * that it has read and writes the chunks that it has accepted, for at most limits.drain. Then it
 * closes all sessions, and waits for operations of a hung device for io.hang at most. */
#include "server-internal.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "benchmark/benchmark.h"
#include "checked.h"
#include "events/events.h"
#include "evict/admission.h"
#include "fair/user.h"
#include "learned/learned.h"
#include "report/sums.h"
#include "request/hits.h"
#include "units.h"

enum { POLL_MS = 100 };

uint64_t server_caches_pending(const struct server *s)
{
        uint64_t pending = 0;

        for (unsigned i = 0; i < s->service.n_tenants; i++)
                pending += cache_pending(s->tenants[i].cache);
        return pending;
}

/* Counts the accepted chunks that are not on disk yet. */
static uint64_t count_unwritten(const struct server *s, uint64_t *ret_bytes)
{
        struct cache_stats cache;
        uint64_t chunks;

        status_collect_cache(&s->service, &cache);
        chunks = cache.unwritten_chunks;
        *ret_bytes = cache.unwritten_bytes;
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_count_postponed(s->tenants[i].cache, &chunks, ret_bytes);
        return chunks;
}

void server_begin_drain(struct server *s)
{
        char chunks[UNITS_TEXT], most[UNITS_TEXT];
        uint64_t unwritten, bytes;

        if (s->draining)
                return;
        s->draining = s->sources.draining = true;
        s->service.stopping = true;
        s->listener = listener_free(s->listener);
        sessions_drain(s->sessions);
        if (s->service.lookups)
                lookups_stop(s->service.lookups);
        if (s->service.events)
                events_stop(s->service.events);
        hits_suspend(&s->service, true);
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_stop(s->tenants[i].cache);
        server_stop_remote(s);
        populate_stop(s->populate);
        keep_stop(s->keep.keep);
        unwritten = count_unwritten(s, &bytes);
        if (unwritten > 0) {
                units_count(unwritten, "chunk", chunks);
                units_ms(s->config->limits.drain_ms, most);
                notify_stopping("writing %s not on disk yet", chunks);
                log_info("stopping: %s not on disk yet; writing for at most %s (limits.drain)",
                         chunks, most);
        } else {
                notify_stopping("every chunk is on disk");
                log_info("stopping");
        }
        event_add(s->drain,
                  &(struct timeval){
                          .tv_sec = (time_t)(s->config->limits.drain_ms / 1000),
                          .tv_usec = (suseconds_t)(s->config->limits.drain_ms % 1000 * 1000) });
}

/* Returns whether everything has completed except the freeing of memory, which takes time but
 * cannot hang. */
static bool is_settled_except_memory(const struct server *s)
{
        return sessions_empty(s->sessions) && server_caches_pending(s) == 0 &&
               store_pending(s->service.store) == 0 &&
               kio_pending(s->service.io) <=
                       sessions_disposing(s->sessions) + sessions_stagings_closing(s->sessions);
}

static bool is_settled(const struct server *s)
{
        return sessions_stagings_closing(s->sessions) == 0 && is_settled_except_memory(s);
}

/* Exits without waiting for a device that has not answered for io.hang, and names the volume of the
 * oldest operation. The store is left as after a crash: it is not marked clean, and recovered at
 * the next startup. The kernel keeps the lock until the operations end. */
static void exit_without_device(struct server *s)
{
        char count[UNITS_TEXT], hang[UNITS_TEXT];
        const char *slowest = store_slowest_volume(s->service.store);

        log_error("stopping: %s did not complete within %s (io.hang)%s%s; exiting without marking "
                  "the store clean. Check the device; the next startup recovers the store",
                  units_count(MAX(kio_pending(s->service.io), UINT64_C(1)), "operation", count),
                  units_ms(s->config->io.hang_ms, hang), slowest ? ", the oldest on volume " : "",
                  slowest ? slowest : "");
        http_stop(s->http);
        _exit(EXIT_STATUS_IO);
}

/* Exits if a device hangs while the store is being closed, which blocks. */
static void on_close_late(int number)
{
        static const char text[] = "stopping: a device hangs while the store is closed; exiting "
                                   "without waiting for it. The next startup recovers the store\n";

        (void)!write(STDERR_FILENO, text, sizeof(text) - 1);
        _exit(EXIT_STATUS_IO);
}

void server_close_all(struct server *s)
{
        uint64_t unwritten_bytes, unwritten = count_unwritten(s, &unwritten_bytes);
        char chunks[UNITS_TEXT], bytes[UNITS_TEXT];

        if (unwritten > 0)
                log_warning("stopping: limits.drain has passed; %s accepted, %s in all, will be "
                            "lost unless their writes in flight complete%s",
                            units_count(unwritten, "chunk", chunks),
                            units_bytes(unwritten_bytes, bytes),
                            s->keep.ready ? " or the next daemon takes over the memory" : "");
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_forget_postponed(s->tenants[i].cache);
        sessions_stop(s->sessions, server_hold_leases, s);
        bench_stop(s->service.bench);
        learned_stop(s->learned);
        store_stop(s->service.store);
        s->drain_late = false;
        event_add(s->drain, &(struct timeval){ .tv_sec = (time_t)(s->config->io.hang_ms / 1000),
                                               .tv_usec = (suseconds_t)(s->config->io.hang_ms %
                                                                        1000 * 1000) });
        while (!is_settled(s)) {
                bool more = server_iterate(s);

                if (is_settled(s))
                        break;
                if (s->drain_late && !is_settled_except_memory(s))
                        exit_without_device(s);
                event_base_loop(s->base, EVLOOP_ONCE | (more ? EVLOOP_NONBLOCK : 0));
        }
}

static void free_event(struct event *e)
{
        if (e)
                event_free(e);
}

/* Closes the store. After a failed startup some operations may still be in flight. */
static void close_store(struct server *s)
{
        if (s->service.io)
                store_stop(s->service.store);
        while (s->service.io && store_pending(s->service.store) > 0)
                kio_wait(s->service.io, POLL_MS);
        store_close(s->service.store);
}

void server_fini(struct server *s)
{
        bool held_up = s->sessions && sessions_disposing(s->sessions) > 0;

        listener_free(s->listener);
        http_stop(s->http);
        populate_free(s->populate);
        if (!held_up)
                sessions_free(s->sessions);
        s->service.lookups = lookups_free(s->service.lookups);
        s->service.events = events_free(s->service.events);
        if (s->service.store) {
                if (s->draining) {
                        signal(SIGALRM, on_close_late);
                        alarm((unsigned)(s->config->io.hang_ms / 1000));
                }
                if (s->closed)
                        server_number_memory(s);
                for (unsigned i = 0; i < s->service.n_tenants; i++)
                        cache_unwatch(s->tenants[i].cache);
                close_store(s);
                alarm(0);
                if (s->closed)
                        server_hand_on_memory(s);
        }
        if (held_up) {
                log_warning("stopping: the closing of a file that a client passed hangs; exiting "
                            "without waiting for it");
                _exit(EXIT_SUCCESS);
        }
        kio_stop(s->service.io);
        bench_free(s->service.bench);
        learned_free(s->learned);
        free(s->learned_file);
        keep_free(s->keep.keep);
        keep_file_free(s->keep.file);
        cJSON_Delete(s->sources.reload_pending);
        cJSON_Delete(s->sources.config_files);
        notify_drop_kept(&s->inherited);
        for (unsigned i = 0; i < s->service.n_tenants; i++) {
                request_fini(&s->tenants[i]);
                tenant_close(&s->tenants[i]);
        }
        server_free_remote(s);
        admission_free(s->service.admission);
        namespace_counts_free(s->service.namespace_counts);
        stages_fini(&s->service.stages);
        quotas_free(s->service.quotas);
        assert(fair_users() == 0);
        free_event(s->done);
        free_event(s->wait);
        free_event(s->term);
        free_event(s->interrupt);
        free_event(s->hangup);
        free_event(s->watchdog);
        free_event(s->status_line);
        free_event(s->tick);
        free_event(s->expiry);
        free_event(s->drain);
        if (s->base)
                event_base_free(s->base);
        liveness_close(&s->liveness);
}
