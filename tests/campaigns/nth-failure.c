/* SPDX-License-Identifier: Apache-2.0 */
/* nth-failure: a store works while the N-th read, write or sync of its device, or the N-th system
 * call of startup, fails: with an errno or short, once or permanently, on both backends. One run is
 * one such store. Kinds of failure take turns; N is random.
 *
 * Every request ends with an allowed result. A failed put is not found, neither now nor after a
 * restart. Chunks that the store has at its end are found after the next start, which has no
 * faults. Transient failures (EINTR, EAGAIN, a short transfer, once) are invisible. No descriptor
 * leaks. */
#include <errno.h>
#include <string.h>

#include "../lib/open-fds.h"
#include "build-config.h"
#include "campaign.h"
#include "checked.h"
#include "fault.h"
#include "sim.h"

enum { STEPS = 120, KEYS = 200 };

static const int errors[] = { EIO, ENOSPC, EROFS, EINTR, EAGAIN, ENOMEM, 0 /* short */ };
enum place { PLACE_READ, PLACE_WRITE, PLACE_SYNC, PLACE_START, PLACE_END };

static struct {
        uint64_t hits, starts_refused;
} tally;

static void reopen(const char *when)
{
        char error[512] = "";

        if (world_open(error) < 0)
                campaign_fail(VERDICT_LOST, "the store does not open %s: %s", when, error);
}

static void work(unsigned steps)
{
        for (unsigned i = 0; i < steps; i++) {
                uint32_t k = (uint32_t)draw(KEYS);
                uint64_t x = draw(100);

                if (x < 8)
                        world_drop(k);
                else if (x < 10)
                        world_purge((int)draw(CAMPAIGN_NAMESPACES));
                else if (x < 14)
                        world_sync();
                else if (x < 18)
                        world_open_namespace((unsigned)draw(CAMPAIGN_NAMESPACES));
                else if (x < 40)
                        world_get(k, NULL);
                else
                        world_put(k, chance(3));
                world_iterate();
                if (chance(4))
                        world_settle();
        }
        world_settle();
}

static void ignore(uint32_t k, uint32_t version)
{
        if (version && version == world.items[k].failed)
                campaign_fail(VERDICT_WRONG, "key %u: version %u, whose put had failed, is a hit",
                              k, version);
}

static void fill(const struct kio_backend *inner)
{
        world_wipe();
        world.io = kio_stop(world.io); /* threads of the I/O layer read what fault_wrap() writes */
        world_init(fault_wrap(inner));
        reopen("when it is made");
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES / 2; n++)
                world_open_namespace(n);
        world_settle();
        work(STEPS / 4);
}

static void at_work(const struct fault_plan *plan, bool passes)
{
        struct store_stats stats;

        fault_set(plan);
        work(STEPS);
        world_get_all(ignore);
        tally.hits += fault_hits() > 0;
        fault_set(NULL);
        world_settle();
        world_get_all(ignore);
        store_get_stats(world.s, &stats);
        if (passes &&
            (stats.bypassed || stats.read_errors || stats.write_errors || stats.sync_errors))
                campaign_fail(VERDICT_LOST, "what passes by itself was taken for a failure");
        world_note_must(true);
        world_settle();
        world_close();
        reopen("after faults");
}

/* The N-th call of startup fails. If startup fails, nothing has happened. If it succeeds, a single
 * failure has cost nothing. */
static void at_start(uint64_t nth, uint64_t times, int error)
{
        char text[512] = "";
        bool reads_only = chance(2);
        int r;

        world_settle();
        world_note_must(true);
        world_close();
        sim_fail_calls(reads_only, reads_only ? 1 + nth % 8 : nth, times, error);
        r = world_open(text);
        tally.hits += sim_calls_failed() > 0;
        sim_fail_calls(false, 0, 0, 0);
        if (r < 0) {
                if (text[0] == '\0')
                        campaign_fail(VERDICT_LOST, "startup fails with %s and says nothing",
                                      strerror(-r));
                tally.starts_refused++;
                reopen("after one that was refused");
                return;
        }
        if (times == 1)
                return;
        /* Chunks that could not be read may be found next time, but not those purged meanwhile. */
        world_forgive();
        world_verify();
        world_purge(chance(2) ? -1 : (int)draw(CAMPAIGN_NAMESPACES));
        work(STEPS / 4);
        world_forgive();
        world_close();
        reopen("after one that could not read everything");
}

static void one(uint64_t number, const struct kio_backend *const *backends, unsigned n_backends)
{
        enum place place = (enum place)(number % PLACE_END);
        int error = errors[number / PLACE_END % ARRAY_SIZE(errors)];
        bool once = number / PLACE_END / ARRAY_SIZE(errors) % 2 == 0;
        const struct kio_backend *inner =
                backends[number / PLACE_END / ARRAY_SIZE(errors) / 2 % n_backends];
        uint64_t nth = 1 + draw(chance(2) ? 8 : 80);
        unsigned fds;

        /* Startup retries a call after EINTR until it succeeds. A permanent EINTR, which no file
         * system returns, would hang it. */
        if (place == PLACE_START && error == EINTR)
                once = true;
        fill(inner);
        fds = open_fds();
        if (place == PLACE_START) {
                at_start(nth, once ? 1 : UINT64_MAX, error ? error : EIO);
        } else {
                struct fault_plan plan = {
                        .ops = 1u << (place == PLACE_READ    ? KIO_READ
                                      : place == PLACE_WRITE ? KIO_WRITE
                                                             : KIO_SYNC),
                        .kind = error ? FAULT_ERROR : FAULT_SHORT,
                        .error = error,
                        .first = nth,
                        .count = once ? 1 : FAULT_FOR_EVER,
                };

                at_work(&plan, once && (error == 0 || error == EINTR || error == EAGAIN));
        }
        world_verify();
        if (world.namespaces[0].id && world_put(KEYS, true) == 0) {
                world_settle();
                if (world_get(KEYS, NULL) == 0 || world.items[KEYS].stable == 0)
                        campaign_fail(VERDICT_LOST, "the store does not take a chunk any more");
        }
        world_settle();
        if (open_fds() > fds + 8)
                campaign_fail(VERDICT_LOST, "%u descriptors were open, and %u are", fds,
                              open_fds());
        world_close();
}

int campaign_nth_failure(uint64_t count, uint64_t *seed)
{
        const struct kio_backend *backends[2] = { &kio_backend_posix };
        unsigned n_backends = 1;

        sim_pretend_disk();
#if HAVE_LIBURING
        struct kio *probe;
        char why[256];
        const struct kio_params params = { .workers = 1, .depth = 8, .probe_fd = -1 };

        if (kio_start_with(&probe, &params, &kio_backend_uring, why) == 0) {
                backends[n_backends++] = &kio_backend_uring;
                kio_stop(probe);
        } else {
                campaign_note("without io_uring: %s", why);
        }
#endif
        for (uint64_t i = 0; i < count; i++, ++*seed) {
                world.random = *seed;
                one(*seed, backends, n_backends);
                campaign_count(1);
        }
        campaign_note("the fault was met in %llu runs, %llu starts were refused on %u backends",
                      (unsigned long long)tally.hits, (unsigned long long)tally.starts_refused,
                      n_backends);
        return campaign_end();
}
