/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about keys as a client sees them: lookups, hints, prefetches, the shared tier, loans,
 * cancellation, recordings. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "benchmark/benchmark.h"
#include "checked.h"
#include "lookup/tally-page.h"
#include "request-fixture.h"
#include "request/recorder.h"
#include "transfer-page.h"

static uint64_t wait_end(void)
{
        return clock_mono_ns() + TIERS_WAIT_MS * UINT64_C(1000000);
}

/* Returns the i-th status of an op with 16-bit statuses. */
static enum wire_status status_of(const struct wire_reply *reply, unsigned i)
{
        assert_int_equal(reply->status, WIRE_OK);
        return ((const uint16_t *)(reply + 1))[i];
}

static uint8_t tiers_of(struct peer_end *c, uint32_t n, unsigned flags)
{
        batch_of_keys(c, WIRE_EXISTS, flags, n, 1);
        return *(const uint8_t *)(call_batch(c) + 1);
}

static struct wire_stat_result stat_of(struct peer_end *c, uint32_t n)
{
        batch_of_keys(c, WIRE_STAT, 0, n, 1);
        return *(const struct wire_stat_result *)(call_batch(c) + 1);
}

static void drop_from_memory(struct peer_end *c, uint32_t n, uint16_t count)
{
        batch_of_keys(c, WIRE_EVICT, 0, n, count)->tiers = WIRE_TIER_MEMORY;
        assert_int_equal(call_batch(c)->status, WIRE_OK);
}

static void put_some(struct peer_end *c, uint32_t n, unsigned count)
{
        for (uint32_t i = n; i < n + count; i++)
                assert_int_equal(put(c, i, WIRE_WRITTEN), WIRE_OK);
}

/* --- messages --- */

static void a_ping_has_the_bytes_that_were_sent(void **state)
{
        struct {
                struct wire_hdr hdr;
                char bytes[WIRE_MAX_PING];
        } msg = { .hdr.op = WIRE_PING, .bytes = "ping" };
        const struct wire_reply *r;
        struct peer_end c;

        connect_as(&c, ALICE);
        r = call(&c, &msg, sizeof(msg.hdr) + 4);
        assert_int_equal(r->hdr.len, sizeof(*r) + 4);
        assert_memory_equal(r + 1, "ping", 4);
        assert_int_equal(call(&c, &msg, sizeof(msg))->hdr.len, sizeof(*r) + WIRE_MAX_PING);
        hang_up(&c);
}

static void keys_of_a_namespace_that_is_not_open_are_refused(void **state)
{
        static const enum wire_op ops[] = { WIRE_PUT,   WIRE_GET,   WIRE_EXISTS, WIRE_MATCH,
                                            WIRE_TOUCH, WIRE_EVICT, WIRE_STAT,   WIRE_PREFETCH };
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 1);
        for (unsigned i = 0; i < ARRAY_SIZE(ops); i++) {
                struct wire_batch *b = batch_of_keys(&c, ops[i], 0, 1, 1);

                if (ops[i] == WIRE_EVICT)
                        b->tiers = WIRE_TIER_ALL;
                if (ops[i] == WIRE_PUT)
                        ((struct wire_put *)(b + 1))->length = LENGTH;
                b->namespace_id = 2;
                assert_says(call_batch(&c), WIRE_NO_NAMESPACE, "has not opened");
        }
        assert_int_equal(tiers_of(&c, 1, 0), WIRE_TIER_ALL);
        hang_up(&c);
}

static void a_message_over_its_users_limit_of_keys_does_nothing(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 3);
        rig_limit(QUOTA_KEYS, 2, QUOTA_NO_LIMIT);
        batch_of_keys(&c, WIRE_EVICT, 0, 1, 3)->tiers = WIRE_TIER_ALL;
        assert_says(call_batch(&c), WIRE_QUOTA, "this user or tenant has too many keys");
        rig_limit(QUOTA_KEYS, QUOTA_NO_LIMIT, 2);
        batch_of_keys(&c, WIRE_EVICT, 0, 1, 3)->tiers = WIRE_TIER_ALL;
        assert_says(call_batch(&c), WIRE_BUSY, "all clients together");
        rig_limit(QUOTA_KEYS, QUOTA_NO_LIMIT, QUOTA_NO_LIMIT);
        rig_limit(QUOTA_REQUEST_BYTES, 16, QUOTA_NO_LIMIT);
        batch_of_keys(&c, WIRE_EVICT, 0, 1, 3)->tiers = WIRE_TIER_ALL;
        assert_says(call_batch(&c), WIRE_QUOTA, "too much memory");
        rig_limit(QUOTA_REQUEST_BYTES, QUOTA_NO_LIMIT, QUOTA_NO_LIMIT);
        assert_int_equal(rig_used(QUOTA_KEYS), 0);
        for (uint32_t n = 1; n < 4; n++)
                assert_int_equal(tiers_of(&c, n, 0), WIRE_TIER_ALL);
        hang_up(&c);
}

/* --- lookups --- */

static void a_match_ends_at_the_first_key_that_is_missing(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 3);
        put_some(&c, 5, 2);
        batch_of_keys(&c, WIRE_MATCH, 0, 1, 6);
        assert_int_equal(call_batch(&c)->value, 3);
        batch_of_keys(&c, WIRE_MATCH, 0, 4, 3);
        assert_int_equal(call_batch(&c)->value, 0);
        batch_of_keys(&c, WIRE_MATCH, 0, 5, 2);
        assert_int_equal(call_batch(&c)->value, 2);
        hang_up(&c);
}

static void a_stat_describes_the_chunk_in_each_tier(void **state)
{
        struct wire_stat_result s;
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 1);
        assert_int_equal(stat_of(&c, 2).status, WIRE_MISS);
        s = stat_of(&c, 1);
        assert_int_equal(s.status, WIRE_OK);
        assert_int_equal(s.tiers, WIRE_TIER_ALL);
        assert_int_equal(s.length, LENGTH);
        assert_int_equal(s.leases, 0);
        assert_true(s.created_ms > 0);
        assert_true(s.memory.class != WIRE_CLASS_NONE);
        assert_true(s.disk.class != WIRE_CLASS_NONE);
        assert_int_equal(get(&c, 1).status, WIRE_OK);
        s = stat_of(&c, 1);
        assert_int_equal(s.leases, 1);
        assert_true(s.memory.flags & WIRE_STANDING_PINNED);
        hang_up(&c);
}

static void a_prefetch_brings_chunks_into_memory(void **state)
{
        struct peer_end c;
        uint64_t end = wait_end();

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 2);
        drop_from_memory(&c, 1, 2);
        assert_int_equal(tiers_of(&c, 1, 0), WIRE_TIER_DISK);
        batch_of_keys(&c, WIRE_PREFETCH, 0, 1, 3);
        call_batch(&c);
        while (tiers_of(&c, 1, 0) != WIRE_TIER_ALL || tiers_of(&c, 2, 0) != WIRE_TIER_ALL)
                assert_true(clock_mono_ns() < end);
        batch_of_keys(&c, WIRE_PREFETCH, 0, 3, 1);
        assert_int_equal(status_of(call_batch(&c), 0), WIRE_MISS);
        hang_up(&c);
}

/* --- hints --- */

static const struct wire_reply *hint(struct peer_end *c, enum wire_hint what, uint32_t return_s,
                                     uint32_t n, uint16_t count)
{
        struct wire_batch *b = batch_of_keys(c, WIRE_HINT, 0, n, count);

        b->hint = (uint8_t)what;
        b->return_s = return_s;
        return call_batch(c);
}

static void a_pinned_chunk_says_so_until_it_is_unpinned(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 2);
        assert_int_equal(status_of(hint(&c, WIRE_HINT_PIN, 0, 1, 1), 0), WIRE_OK);
        assert_true(stat_of(&c, 1).disk.flags & WIRE_STANDING_RETAINED);
        assert_int_equal(status_of(hint(&c, WIRE_HINT_PIN, 0, 7, 1), 0), WIRE_MISS);
        rig.tenants[0].pinned_limit = LENGTH;
        assert_int_equal(status_of(hint(&c, WIRE_HINT_PIN, 0, 2, 1), 0), WIRE_QUOTA);
        assert_int_equal(status_of(hint(&c, WIRE_HINT_UNPIN, 0, 1, 1), 0), WIRE_OK);
        assert_false(stat_of(&c, 1).disk.flags & WIRE_STANDING_RETAINED);
        assert_int_equal(rig.tenants[0].traffic.hints[HINTS_PINNED], 1);
        assert_int_equal(rig.tenants[0].traffic.hints[HINTS_PIN_REFUSED], 1);
        assert_int_equal(rig.tenants[0].traffic.hints[HINTS_UNPINNED], 1);
        hang_up(&c);
}

static struct announced_stats announced(void)
{
        struct announced_stats s;

        announced_get_stats(rig.tenants[0].announced, &s);
        return s;
}

static void the_end_of_a_chain_ends_its_announced_return(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 2);
        (void)hint(&c, WIRE_HINT_RETURN, 3600, 1, 2);
        assert_int_equal(announced().open, 1);
        (void)hint(&c, WIRE_HINT_FINAL, 0, 1, 2);
        assert_int_equal(announced().open, 0);
        assert_int_equal(announced().late + announced().early + announced().came_true, 0);
        hang_up(&c);
}

static void a_chain_that_is_final_has_a_status_for_each_key_in_order(void **state)
{
        const struct wire_reply *r;
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 2);
        r = hint(&c, WIRE_HINT_FINAL, 0, 1, 3);
        assert_int_equal(status_of(r, 0), WIRE_OK);
        assert_int_equal(status_of(r, 1), WIRE_OK);
        assert_int_equal(status_of(r, 2), WIRE_MISS);
        r = hint(&c, WIRE_HINT_RETURN, 30, 2, 2);
        assert_int_equal(status_of(r, 0), WIRE_OK);
        assert_int_equal(status_of(r, 1), WIRE_MISS);
        assert_true(rig.tenants[0].traffic.hints[HINTS_FINAL] +
                            rig.tenants[0].traffic.hints[HINTS_SHARED] >
                    0);
        hang_up(&c);
}

/* --- the shared tier --- */

static void chunks_of_the_shared_tier_are_found_and_fetched(void **state)
{
        struct wire_get_result got;
        const struct wire_reply *r;
        uint64_t end = wait_end();
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        rig_turns();
        put_some(&c, 1, 1);
        for (uint32_t n = 2; n < 4; n++)
                put_on_shared_tier("a", n, LENGTH);
        do { /* until the daemon has searched */
                batch_of_keys(&c, WIRE_MATCH, WIRE_F_REMOTE, 1, 5);
                r = call_batch(&c);
                assert_int_equal(r->value, 1);
                assert_true(clock_mono_ns() < end);
        } while (r->value64 & WIRE_MATCH_SEARCHING);
        assert_int_equal(r->value64, 2);
        assert_int_equal(tiers_of(&c, 2, WIRE_F_REMOTE), WIRE_TIER_REMOTE);
        assert_int_equal(tiers_of(&c, 2, 0), 0);
        got = get(&c, 2);
        assert_int_equal(got.status, WIRE_OK);
        assert_int_equal(got.tier, WIRE_TIER_REMOTE);
        assert_int_equal(((const uint8_t *)pool_base(rig.t.pool))[got.offset], 2);
        assert_int_equal(get(&c, 4).status, WIRE_MISS);
        hang_up(&c);
}

/* --- loans --- */

/* Opens of lent files fail. */
static atomic_bool open_fails;

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
        va_list more;
        mode_t mode;

        if (open_fails && strncmp(path, "/proc/self/fd/", 14) == 0) {
                errno = EMFILE;
                return -1;
        }
        va_start(more, flags);
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
        va_end(more);
        return __real_open64(path, flags, mode);
}

static void assert_lent_files(unsigned n)
{
        struct wire_report_request metrics = { .hdr.op = WIRE_REPORT, .what = WIRE_REPORT_METRICS };
        struct peer_end root;
        char line[64], *text;

        connect_as(&root, ROOT);
        text = call_for_text(&root, &metrics, sizeof(metrics));
        snprintf(line, sizeof(line), "\nkvcache_lent_files_total %u\n", n);
        assert_non_null(strstr(text, line));
        free(text);
        hang_up(&root);
}

static void a_chunk_on_disk_is_lent_if_the_daemon_may(void **state)
{
        struct wire_lent_file file = { .hdr.op = WIRE_LENT_FILE };
        struct wire_get_result got;
        struct wire_lease *loan;
        uint64_t end = wait_end();
        struct peer_end c;
        char byte = 0;
        int fd;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 1);
        drop_from_memory(&c, 1, 1);
        batch_of_keys(&c, WIRE_GET, WIRE_F_LEND, 1, 1);
        got = *(const struct wire_get_result *)(call_batch(&c) + 1);
        assert_int_equal(got.flags & WIRE_RESULT_LENT, 0);
        assert_int_equal(got.file, WIRE_LEND_DENIED);
        assert_says(call(&c, &file, sizeof(file)), WIRE_DENIED, "does not lend");
        rig.service.gds = SERVICE_GDS_ON;
        drop_from_memory(&c, 1, 1);
        assert_says(call(&c, &file, sizeof(file)), WIRE_STALE,
                    "no chunk of this data file is lent");
        do { /* a chunk is lent once it was read back */
                hang_up(&c);
                connect_as(&c, ALICE);
                enter(&c, "a");
                drop_from_memory(&c, 1, 1);
                batch_of_keys(&c, WIRE_GET, WIRE_F_LEND, 1, 1);
                got = *(const struct wire_get_result *)(call_batch(&c) + 1);
                assert_true(clock_mono_ns() < end);
                assert_int_equal(got.status, WIRE_OK);
        } while (!(got.flags & WIRE_RESULT_LENT) && got.file == WIRE_LEND_UNVERIFIED);
        if (!(got.flags & WIRE_RESULT_LENT)) {
                assert_int_equal(got.file, WIRE_LEND_VOLUME); /* a file system without leases */
                hang_up(&c);
                return;
        }
        assert_int_equal(got.length, LENGTH);
        assert_int_equal(rig_used(QUOTA_LOANS), 1);
        file.file = got.file;
        open_fails = true;
        assert_says(call(&c, &file, sizeof(file)), WIRE_FAILED, "cannot be opened");
        open_fails = false;
        assert_lent_files(0);
        call_for_fd(&c, &file, sizeof(file), &fd);
        assert_lent_files(1);
        assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT), 0);
        assert_int_equal(pread(fd, &byte, 1, (off_t)got.offset), 1);
        assert_int_equal(byte, 1);
        close(fd);
        loan = (struct wire_lease *)(batch(&c, WIRE_GIVE_BACK, 0, 1) + 1);
        *loan = got.lease;
        assert_int_equal(status_of(call_batch(&c), 0), WIRE_OK);
        loan = (struct wire_lease *)(batch(&c, WIRE_GIVE_BACK, 0, 1) + 1);
        *loan = got.lease;
        assert_int_equal(status_of(call_batch(&c), 0), WIRE_STALE);
        assert_int_equal(rig_used(QUOTA_LOANS), 0);
        hang_up(&c);
}

/* --- cancellation --- */

static void puts_that_wait_for_room_are_cancelled(void **state)
{
        enum { PUTS = 150 };
        struct wire_cancel cancel = { .hdr.op = WIRE_CANCEL, .tag = 12345 };
        const struct wire_reply *r;
        uint32_t cancelled, n = 0;
        struct wire_batch *b;
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        assert_int_equal(call(&c, &cancel, sizeof(cancel))->value, 0); /* no such batch */
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        b = batch_of_keys(&c, WIRE_PUT, 0, 1, PUTS);
        b->ack = WIRE_WRITTEN;
        for (unsigned i = 0; i < PUTS; i++)
                ((struct wire_put *)(b + 1))[i].length = LENGTH;
        send_message(&c, b, b->hdr.len);
        cancel.tag = c.tag;
        while (fault_hits() == 0)
                rig_turn(false);
        cancelled = call(&c, &cancel, sizeof(cancel))->value;
        assert_in_range(cancelled, 1, PUTS - 1);
        assert_int_equal(call(&c, &cancel, sizeof(cancel))->value, 0); /* a second time */
        fault_set(NULL);
        fault_release();
        r = receive_reply(&c, WIRE_PUT, NULL, NULL);
        assert_int_equal(r->count, PUTS);
        for (unsigned i = 0; i < PUTS; i++)
                n += ((const struct wire_put_result *)(r + 1))[i].status == WIRE_CANCELLED;
        assert_in_range(n, cancelled, PUTS - 1);
        hang_up(&c);
}

/* --- recordings --- */

static struct wire_record_entry read_entry(int fd, uint64_t *ret_ids, unsigned room)
{
        struct wire_record_entry e;

        assert_int_equal(recv(fd, &e, sizeof(e), MSG_WAITALL), sizeof(e));
        assert_in_range(e.count, 0, room);
        if (e.count > 0)
                assert_int_equal(recv(fd, ret_ids, e.count * sizeof(*ret_ids), MSG_WAITALL),
                                 e.count * sizeof(*ret_ids));
        return e;
}

static void a_recording_has_puts_and_the_keys_that_gets_found(void **state)
{
        struct wire_record record = { .hdr.op = WIRE_RECORD, .duration_s = 60 };
        struct wire_record_entry e;
        struct peer_end root, c;
        uint64_t put_id, ids[8];
        int fd;

        connect_as(&root, ROOT);
        connect_as(&c, ALICE);
        enter(&c, "a");
        call_for_fd(&root, &record, sizeof(record), &fd);
        assert_says(call(&root, &record, sizeof(record)), WIRE_EXISTS_ALREADY, "already running");
        put_some(&c, 1, 1);
        e = read_entry(fd, ids, ARRAY_SIZE(ids));
        assert_int_equal(e.kind, WIRE_RECORD_PUT);
        assert_int_equal(e.count, 1);
        assert_int_equal(e.parent, 0);
        put_id = ids[0];
        batch_of_keys(&c, WIRE_GET, 0, 1, 3)->parent = key_of(9);
        call_batch(&c);
        e = read_entry(fd, ids, ARRAY_SIZE(ids));
        assert_int_equal(e.kind, WIRE_RECORD_GET);
        assert_int_equal(e.count, 1); /* up to the first that was missing */
        assert_int_equal(ids[0], put_id);
        assert_true(e.parent != 0 && e.parent < UINT64_C(1) << 53);
        recorder_tick(&rig.service, clock_mono_ns() + UINT64_C(61000000000));
        e = read_entry(fd, ids, ARRAY_SIZE(ids));
        assert_int_equal(e.kind, WIRE_RECORD_END);
        assert_int_equal(e.lost, 0);
        assert_int_equal(recv(fd, ids, 1, 0), 0);
        close(fd);
        assert_null(rig.service.recorder);
        hang_up(&root);
        hang_up(&c);
}

static void a_recording_ends_with_its_reader_or_its_session(void **state)
{
        struct wire_record record = { .hdr.op = WIRE_RECORD, .duration_s = 60 };
        struct peer_end root;
        int fd;

        connect_as(&root, ROOT);
        call_for_fd(&root, &record, sizeof(record), &fd);
        close(fd);
        recorder_tick(&rig.service, clock_mono_ns());
        assert_null(rig.service.recorder);
        call_for_fd(&root, &record, sizeof(record), &fd);
        hang_up(&root);
        while (rig.service.recorder)
                rig_turn(true);
        close(fd);
        connect_as(&root, ROOT);
        rig_limit(QUOTA_REQUEST_BYTES, 16, QUOTA_NO_LIMIT);
        assert_says(call(&root, &record, sizeof(record)), WIRE_QUOTA, "too much memory");
        assert_null(rig.service.recorder);
        hang_up(&root);
}

/* --- descriptors of a session --- */

static void descriptors_of_a_session_are_handed_out_with_their_sizes(void **state)
{
        struct wire_hdr lookup = { .op = WIRE_LOOKUP, .flags = WIRE_F_TALLY },
                        transfers = { .op = WIRE_TRANSFERS }, index = { .op = WIRE_POOL_INDEX };
        int fds[WIRE_MAX_FDS];
        struct peer_end c;
        unsigned n_fds;

        connect_as(&c, ALICE);
        enter(&c, "a");
        send_message(&c, &lookup, sizeof(lookup));
        assert_true(receive_reply(&c, WIRE_LOOKUP, fds, &n_fds)->value64 > 0);
        assert_int_equal(n_fds, 2);
        close(fds[0]);
        close(fds[1]);
        assert_true(call_for_fd(&c, &transfers, sizeof(transfers), fds)->value64 > 0);
        close(fds[0]);
        assert_says(call(&c, &transfers, sizeof(transfers)), WIRE_EXISTS_ALREADY,
                    "has its page of counters");
        send_message(&c, &index, sizeof(index));
        assert_true(receive_reply(&c, WIRE_POOL_INDEX, fds, &n_fds)->value64 > 0);
        assert_int_equal(n_fds, 2);
        close(fds[0]);
        close(fds[1]);
        hang_up(&c);
        rig.fds += ARRAY_SIZE(rig.tenants); /* the lookup indexes stay */
}

static void pages_of_counters_are_charged_until_the_session_ends(void **state)
{
        struct wire_hdr lookup = { .op = WIRE_LOOKUP, .flags = WIRE_F_TALLY },
                        transfers = { .op = WIRE_TRANSFERS };
        int fds[WIRE_MAX_FDS];
        struct peer_end c;
        unsigned n_fds;

        connect_as(&c, ALICE);
        enter(&c, "a");
        send_message(&c, &lookup, sizeof(lookup));
        receive_reply(&c, WIRE_LOOKUP, fds, &n_fds);
        assert_int_equal(n_fds, 2);
        close(fds[0]);
        close(fds[1]);
        assert_int_equal(rig_used(QUOTA_REQUEST_BYTES), tally_page_bytes());
        assert_true(tally_page_bytes() > WIRE_TALLY_BYTES);
        call_for_fd(&c, &transfers, sizeof(transfers), fds);
        close(fds[0]);
        assert_int_equal(rig_used(QUOTA_REQUEST_BYTES), tally_page_bytes() + bench_page_bytes());
        assert_true(bench_page_bytes() > TRANSFER_PAGE_BYTES);
        hang_up(&c);
        while (rig_used(QUOTA_REQUEST_BYTES) > 0)
                rig_turn(true);
        rig.fds++; /* the lookup index stays */
}

/* Returns the least limit of a user's memory, in steps, that lets a put begin. */
static uint64_t least_limit(struct peer_end *c, enum wire_ack ack)
{
        uint64_t bytes = 0;

        do
                rig_limit(QUOTA_REQUEST_BYTES, bytes += 64, QUOTA_NO_LIMIT);
        while (put(c, 1, ack) == WIRE_QUOTA);
        return bytes;
}

static void a_put_that_waits_for_a_sync_takes_no_more_memory_than_another(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        put_some(&c, 1, 1);
        assert_int_equal(least_limit(&c, WIRE_DURABLE), least_limit(&c, WIRE_WRITTEN));
        hang_up(&c);
}

static void pages_of_counters_over_a_users_limit_are_refused(void **state)
{
        struct wire_hdr lookup = { .op = WIRE_LOOKUP, .flags = WIRE_F_TALLY },
                        transfers = { .op = WIRE_TRANSFERS };
        int fds[WIRE_MAX_FDS];
        struct peer_end c, d;
        unsigned n_fds;

        connect_as(&c, ALICE);
        connect_as(&d, ALICE);
        enter(&c, "a");
        enter(&d, "a");
        /* There is room for one page of each kind, and for a request. */
        rig_limit(QUOTA_REQUEST_BYTES, tally_page_bytes() + bench_page_bytes() + 1024,
                  QUOTA_NO_LIMIT);
        send_message(&c, &lookup, sizeof(lookup));
        receive_reply(&c, WIRE_LOOKUP, fds, &n_fds);
        assert_int_equal(n_fds, 2);
        close(fds[0]);
        close(fds[1]);
        call_for_fd(&c, &transfers, sizeof(transfers), fds);
        close(fds[0]);
        assert_says(call(&d, &transfers, sizeof(transfers)), WIRE_QUOTA, "too much memory");
        /* The index is lent without the page: only the counts are missing. */
        send_message(&d, &lookup, sizeof(lookup));
        assert_true(receive_reply(&d, WIRE_LOOKUP, fds, &n_fds)->value64 > 0);
        assert_int_equal(n_fds, 1);
        close(fds[0]);
        assert_int_equal(rig_used(QUOTA_REQUEST_BYTES), tally_page_bytes() + bench_page_bytes());
        /* A session may use the room that another one has freed. */
        hang_up(&c);
        while (rig_used(QUOTA_REQUEST_BYTES) > 0)
                rig_turn(true);
        call_for_fd(&d, &transfers, sizeof(transfers), fds);
        close(fds[0]);
        rig_limit(QUOTA_REQUEST_BYTES, QUOTA_NO_LIMIT, QUOTA_NO_LIMIT);
        hang_up(&d);
        rig.fds++;
}

static void a_staging_area_is_made_once_and_within_its_limit(void **state)
{
        struct wire_staging msg = { .hdr.op = WIRE_STAGING, .bytes = 17 * MIB };
        const struct wire_reply *r;
        struct peer_end c;
        int fd;

        connect_as(&c, ALICE);
        r = call(&c, &msg, sizeof(msg));
        assert_says(r, WIRE_TOO_LARGE, "memory.staging");
        assert_int_equal(r->value64, 16 * MIB);
        msg.bytes = 1;
        assert_int_equal(call_for_fd(&c, &msg, sizeof(msg), &fd)->value64, 4096);
        close(fd);
        assert_says(call(&c, &msg, sizeof(msg)), WIRE_INVALID, "already has a staging area");
        hang_up(&c);
}

#define TEST(name)   cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
#define SHARED(name) cmocka_unit_test_setup_teardown(name, rig_setup_remote, rig_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(a_ping_has_the_bytes_that_were_sent),
                TEST(keys_of_a_namespace_that_is_not_open_are_refused),
                TEST(a_message_over_its_users_limit_of_keys_does_nothing),
                TEST(a_match_ends_at_the_first_key_that_is_missing),
                TEST(a_stat_describes_the_chunk_in_each_tier),
                TEST(a_prefetch_brings_chunks_into_memory),
                TEST(a_pinned_chunk_says_so_until_it_is_unpinned),
                TEST(the_end_of_a_chain_ends_its_announced_return),
                TEST(a_chain_that_is_final_has_a_status_for_each_key_in_order),
                SHARED(chunks_of_the_shared_tier_are_found_and_fetched),
                TEST(a_chunk_on_disk_is_lent_if_the_daemon_may),
                TEST(puts_that_wait_for_room_are_cancelled),
                TEST(a_recording_has_puts_and_the_keys_that_gets_found),
                TEST(a_recording_ends_with_its_reader_or_its_session),
                TEST(descriptors_of_a_session_are_handed_out_with_their_sizes),
                TEST(pages_of_counters_are_charged_until_the_session_ends),
                TEST(pages_of_counters_over_a_users_limit_are_refused),
                TEST(a_put_that_waits_for_a_sync_takes_no_more_memory_than_another),
                TEST(a_staging_area_is_made_once_and_within_its_limit),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
