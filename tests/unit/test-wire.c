/* SPDX-License-Identifier: Apache-2.0 */
/* Valid messages of a client are accepted, and a single wrong bit in their form is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "checked.h"
#include "fingerprint.h"
#include "wire.h"

/* A request under construction. Messages are copied to memory of their exact size, so that the
 * address sanitizer detects a read past the end. */
union message {
        struct wire_hdr hdr;
        struct wire_hello hello;
        struct wire_batch batch;
        struct wire_namespace namespace;
        struct wire_staging staging;
        struct wire_list list;
        struct wire_purge purge;
        struct wire_report_request report;
        struct wire_verify verify;
        struct wire_device device;
        struct wire_bench bench;
        struct wire_record record;
        struct wire_events events;
        struct wire_sweep sweep;
        struct wire_register register_buffer;
        struct wire_unregister unregister_buffer;
        struct wire_namespaces namespaces;
        struct wire_namespace_remove remove;
        uint8_t bytes[WIRE_MAX_MESSAGE + 64];
        uint64_t align;
};

static const char *check_bytes(const union message *m, size_t bytes)
{
        void *copy = malloc(bytes > 0 ? bytes : 1);
        const char *r;

        assert_non_null(copy);
        memcpy(copy, m, bytes);
        r = wire_check_request(copy, bytes);
        free(copy);
        return r;
}

static const char *check(const union message *m)
{
        return check_bytes(m, m->hdr.len);
}

#define assert_accepted(m)                                                                         \
        do {                                                                                       \
                const char *why_ = check(m);                                                       \
                if (why_)                                                                          \
                        fail_msg("refused: %s", why_);                                             \
        } while (0)
#define assert_refused(m) assert_non_null(check(m))
#define assert_accepted_if(condition, m)                                                           \
        do {                                                                                       \
                if (condition)                                                                     \
                        assert_accepted(m);                                                        \
                else                                                                               \
                        assert_refused(m);                                                         \
        } while (0)

static void hello(union message *m)
{
        memset(m, 0, sizeof(*m));
        m->hello = (struct wire_hello){
                .hdr = { .len = sizeof(m->hello), .op = WIRE_HELLO, .tag = 1 },
                .magic = WIRE_MAGIC,
                .version_min = 1,
                .version_max = 1,
                .client = "test-wire",
        };
}

static void batch(union message *m, unsigned op, unsigned flags, unsigned count, unsigned releases)
{
        memset(m, 0, sizeof(*m));
        m->batch = (struct wire_batch){
                .hdr = { .op = (uint16_t)op, .flags = (uint16_t)flags, .tag = 7 },
                .namespace_id = 3,
                .count = (uint16_t)count,
                .releases = (uint16_t)releases,
                .hint = op == WIRE_HINT ? WIRE_HINT_FINAL : 0,
                .tiers = op == WIRE_EVICT ? WIRE_TIER_ALL : 0,
        };
        m->hdr.len = (uint32_t)(sizeof(m->batch) + count * wire_entry_bytes(op) +
                                releases * sizeof(struct wire_lease));
}

static void open_namespace(union message *m, const char *name, const char *fingerprint)
{
        size_t n = strlen(name), f = strlen(fingerprint);

        memset(m, 0, sizeof(*m));
        m->namespace = (struct wire_namespace){
                .hdr = { .len = (uint32_t)(sizeof(m->namespace) + n + f), .op = WIRE_NAMESPACE },
                .name_length = (uint16_t)n,
                .fingerprint_length = (uint16_t)f,
        };
        memcpy(&m->namespace + 1, name, n);
        memcpy((char *)(&m->namespace + 1) + n, fingerprint, f);
}

static const unsigned batch_ops[] = { WIRE_GIVE_BACK, WIRE_PUT,      WIRE_GET,   WIRE_RELEASE,
                                      WIRE_EXISTS,    WIRE_MATCH,    WIRE_TOUCH, WIRE_EVICT,
                                      WIRE_STAT,      WIRE_PREFETCH, WIRE_HINT };

/* Returns the flags of an op, repeated here from the specification's table. */
static unsigned flags_of(unsigned op)
{
        switch (op) {
        case WIRE_NAMESPACE:
                return WIRE_F_ATTACH | WIRE_F_SET;
        case WIRE_PUT:
                return WIRE_F_MORE | WIRE_F_NOWAIT | WIRE_F_LEASE | WIRE_F_PIECES;
        case WIRE_GET:
                return WIRE_F_MORE | WIRE_F_NOWAIT | WIRE_F_INTO | WIRE_F_PIECES | WIRE_F_LEND;
        case WIRE_TOUCH:
        case WIRE_PREFETCH:
                return WIRE_F_MORE;
        case WIRE_PURGE:
                return WIRE_F_ALL | WIRE_F_REMOTE;
        case WIRE_EXISTS:
        case WIRE_MATCH:
        case WIRE_STAT:
                return WIRE_F_REMOTE;
        case WIRE_LOOKUP:
                return WIRE_F_TALLY;
        case WIRE_REGISTER:
                return WIRE_F_FILE;
        case WIRE_NAMESPACE_REMOVE:
                return WIRE_F_PURGE;
        case WIRE_RELEASE:
                return WIRE_F_NO_REPLY;
        default:
                return 0;
        }
}

static void list_namespaces(union message *m, const char *name, const char *tenant, unsigned max)
{
        size_t n = strlen(name), t = strlen(tenant);

        memset(m, 0, sizeof(*m));
        m->namespaces = (struct wire_namespaces){
                .hdr = { .len = (uint32_t)(sizeof(m->namespaces) + n + t), .op = WIRE_NAMESPACES },
                .max = (uint16_t)max,
                .name_length = (uint8_t)n,
                .tenant_length = (uint8_t)t,
        };
        memcpy(&m->namespaces + 1, name, n);
        memcpy((char *)(&m->namespaces + 1) + n, tenant, t);
}

static void remove_namespace(union message *m, const char *name, const char *tenant)
{
        size_t n = strlen(name), t = strlen(tenant);

        memset(m, 0, sizeof(*m));
        m->remove = (struct wire_namespace_remove){
                .hdr = { .len = (uint32_t)(sizeof(m->remove) + n + t),
                         .op = WIRE_NAMESPACE_REMOVE },
                .name_length = (uint8_t)n,
                .tenant_length = (uint8_t)t,
        };
        memcpy(&m->remove + 1, name, n);
        memcpy((char *)(&m->remove + 1) + n, tenant, t);
}

/* Makes a minimal valid request of each op. */
static void minimal(union message *m, unsigned op)
{
        switch (op) {
        case WIRE_HELLO:
                hello(m);
                break;
        case WIRE_PING:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(m->hdr), .op = WIRE_PING };
                break;
        case WIRE_NAMESPACE:
                open_namespace(m, "n", "");
                break;
        case WIRE_STAGING:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(m->staging), .op = WIRE_STAGING };
                break;
        case WIRE_LIST:
                memset(m, 0, sizeof(*m));
                m->list = (struct wire_list){ .hdr = { .len = sizeof(m->list), .op = WIRE_LIST },
                                              .max = 1 };
                break;
        case WIRE_PURGE:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(m->purge), .op = WIRE_PURGE };
                break;
        case WIRE_REPORT:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(m->report), .op = WIRE_REPORT };
                break;
        case WIRE_VERIFY:
                memset(m, 0, sizeof(*m));
                m->verify = (struct wire_verify){ .hdr = { .len = sizeof(m->verify),
                                                           .op = WIRE_VERIFY },
                                                  .max_chunks = 1,
                                                  .max_bytes = 1 };
                break;
        case WIRE_DEVICE:
                memset(m, 0, sizeof(*m));
                m->device = (struct wire_device){ .hdr = { .len = sizeof(m->device),
                                                           .op = WIRE_DEVICE },
                                                  .action = WIRE_DEVICE_SUSPEND };
                break;
        case WIRE_BENCH:
                memset(m, 0, sizeof(*m));
                m->bench =
                        (struct wire_bench){ .hdr = { .len = sizeof(m->bench), .op = WIRE_BENCH },
                                             .action = WIRE_BENCH_STATUS };
                break;
        case WIRE_RECORD:
                memset(m, 0, sizeof(*m));
                m->record = (struct wire_record){
                        .hdr = { .len = sizeof(m->record), .op = WIRE_RECORD }, .duration_s = 1
                };
                break;
        case WIRE_SWEEP:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(m->sweep), .op = WIRE_SWEEP };
                break;
        case WIRE_EVENTS:
                memset(m, 0, sizeof(*m));
                m->events = (struct wire_events){
                        .hdr = { .len = sizeof(m->events), .op = WIRE_EVENTS }, .max = 1
                };
                break;
        case WIRE_REGISTER:
                memset(m, 0, sizeof(*m));
                m->register_buffer =
                        (struct wire_register){ .hdr = { .len = sizeof(m->register_buffer),
                                                         .op = WIRE_REGISTER },
                                                .bytes = 4096 };
                break;
        case WIRE_UNREGISTER:
                memset(m, 0, sizeof(*m));
                m->unregister_buffer =
                        (struct wire_unregister){ .hdr = { .len = sizeof(m->unregister_buffer),
                                                           .op = WIRE_UNREGISTER },
                                                  .region = 1 };
                break;
        case WIRE_NAMESPACES:
                list_namespaces(m, "", "", 1);
                break;
        case WIRE_NAMESPACE_REMOVE:
                remove_namespace(m, "n", "");
                break;
        case WIRE_LOOKUP:
        case WIRE_TRANSFERS:
        case WIRE_RELOAD:
        case WIRE_POOL_INDEX:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(m->hdr), .op = (uint16_t)op };
                break;
        case WIRE_LENT_FILE:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(struct wire_lent_file),
                                            .op = WIRE_LENT_FILE };
                break;
        case WIRE_CANCEL:
                memset(m, 0, sizeof(*m));
                m->hdr = (struct wire_hdr){ .len = sizeof(struct wire_cancel), .op = WIRE_CANCEL };
                break;
        default:
                batch(m, op, 0, op == WIRE_RELEASE ? 0 : 1, 0);
        }
}

static union message m;

/* Sets where the pieces of a key stand, in a PUT or a GET. */
static void set_pieces(union message *msg, unsigned entry, uint64_t first, uint32_t n,
                       uint32_t length)
{
        if (msg->hdr.op == WIRE_PUT) {
                struct wire_put *put = (struct wire_put *)(&msg->batch + 1) + entry;

                put->offset = first;
                put->region = n;
                put->length = length;
        } else {
                struct wire_get *get = (struct wire_get *)(&msg->batch + 1) + entry;

                get->into_offset = first;
                get->into_region = n;
                get->into_length = length;
        }
}

/* Makes `count` keys with `each` pieces each, of 10, 11, 12, ... bytes, in regions 0, 1, 2, ... */
static void pieced(union message *msg, unsigned op, unsigned count, unsigned each,
                   unsigned releases)
{
        struct wire_piece *piece;

        batch(msg, op, WIRE_F_PIECES | (op == WIRE_GET ? WIRE_F_INTO : 0), count, releases);
        msg->batch.pieces = (uint16_t)(count * each);
        msg->hdr.len += (uint32_t)(count * each * sizeof(*piece));
        piece = (struct wire_piece *)((struct wire_put *)(&msg->batch + 1) + count);
        for (unsigned i = 0; i < count; i++) {
                uint32_t length = 0;

                for (unsigned k = 0; k < each; k++, piece++) {
                        *piece = (struct wire_piece){ .offset = 4096 * k,
                                                      .length = 10 + k,
                                                      .region = k };
                        length += piece->length;
                }
                set_pieces(msg, i, i * each, each, length);
        }
}

/* Makes a minimal message with these flags, and everything that they require. */
static void with_flags(union message *msg, unsigned op, unsigned flags)
{
        if (!(flags & WIRE_F_PIECES)) {
                minimal(msg, op);
                msg->hdr.flags = (uint16_t)flags;
        } else if (op == WIRE_PUT || op == WIRE_GET) {
                pieced(msg, op, 1, 1, 0);
                msg->hdr.flags = (uint16_t)(flags | (op == WIRE_GET ? WIRE_F_INTO : 0));
        } else {
                minimal(msg, op);
                msg->hdr.flags = (uint16_t)flags;
        }
}

static void a_minimal_request_of_each_op_is_accepted(void **state)
{
        for (unsigned op = WIRE_HELLO; op < WIRE_OP_END; op++) {
                minimal(&m, op);
                assert_accepted(&m);
                m.hdr.tag = UINT64_MAX;
                assert_accepted(&m);
        }
}

static void a_get_may_ask_for_leases_only_with_a_target(void **state)
{
        pieced(&m, WIRE_GET, 1, 1, 0);
        assert_accepted(&m);
        m.hdr.flags |= WIRE_F_LEASE;
        assert_accepted(&m);
        minimal(&m, WIRE_GET);
        m.hdr.flags = WIRE_F_LEASE;
        assert_refused(&m);
        m.hdr.flags = WIRE_F_LEASE | WIRE_F_LEND;
        assert_refused(&m);
}

static void a_get_that_borrows_has_neither_target_nor_range(void **state)
{
        struct wire_get *get = (struct wire_get *)(&m.batch + 1);

        minimal(&m, WIRE_GET);
        m.hdr.flags = WIRE_F_LEND | WIRE_F_MORE | WIRE_F_NOWAIT;
        assert_accepted(&m);
        get->range_offset = 1;
        assert_refused(&m);
        get->range_offset = 0;
        get->range_length = 1;
        assert_refused(&m);
        minimal(&m, WIRE_GET);
        m.hdr.flags = WIRE_F_LEND | WIRE_F_INTO;
        assert_refused(&m);
        pieced(&m, WIRE_GET, 1, 1, 0);
        m.hdr.flags |= WIRE_F_LEND;
        assert_refused(&m);
        for (unsigned op = WIRE_HELLO; op < WIRE_OP_END; op++)
                assert_int_equal(wire_op_has_keys(op), wire_op_is_batch(op) && op != WIRE_RELEASE &&
                                                               op != WIRE_GIVE_BACK);
}

static void each_op_takes_its_own_flags_and_no_other(void **state)
{
        for (unsigned op = WIRE_HELLO; op < WIRE_OP_END; op++) {
                for (unsigned bit = 0; bit < 16; bit++) {
                        with_flags(&m, op, 1u << bit);
                        assert_accepted_if(flags_of(op) & (1u << bit), &m);
                }
                /* All other flags together are accepted. LEND excludes a target, and SET excludes
                 * attaching. */
                with_flags(&m, op, flags_of(op) & ~(unsigned)(WIRE_F_LEND | WIRE_F_SET));
                assert_accepted(&m);
        }
}

static void unknown_ops_and_replies_are_refused(void **state)
{
        for (unsigned op = 0; op <= UINT16_MAX; op++) {
                if (op >= WIRE_HELLO && op < WIRE_OP_END)
                        continue;
                memset(&m.hdr, 0, sizeof(m.hdr));
                m.hdr = (struct wire_hdr){ .len = sizeof(m.hdr), .op = (uint16_t)op };
                assert_non_null(wire_check_request(&m, sizeof(m.hdr)));
        }
}

static void every_other_length_is_refused(void **state)
{
        for (unsigned op = WIRE_HELLO; op < WIRE_OP_END; op++) {
                size_t good;

                minimal(&m, op);
                good = m.hdr.len;
                for (size_t n = 0; n < good + 100; n++) {
                        bool ping = op == WIRE_PING && n >= sizeof(m.hdr);

                        if (n == good || ping)
                                continue;
                        /* A message that is longer or shorter than its length field is refused,
                         * also if that agrees. */
                        m.hdr.len = (uint32_t)good;
                        assert_non_null(check_bytes(&m, n));
                        m.hdr.len = (uint32_t)n;
                        assert_non_null(check_bytes(&m, n));
                }
        }
        assert_non_null(wire_check_request(&m, 0));
}

static void a_message_longer_than_the_limit_is_refused(void **state)
{
        minimal(&m, WIRE_PING);
        m.hdr.len = WIRE_MAX_MESSAGE + 1;
        assert_refused(&m);
        batch(&m, WIRE_PUT, 0, WIRE_MAX_KEYS, WIRE_MAX_RELEASES);
        assert_true(m.hdr.len > WIRE_MAX_MESSAGE);
        assert_refused(&m);
        batch(&m, WIRE_PUT, 0, WIRE_MAX_KEYS, (WIRE_MAX_MESSAGE - 64 - 56 * WIRE_MAX_KEYS) / 8);
        assert_int_equal(m.hdr.len, WIRE_MAX_MESSAGE);
        assert_accepted(&m);
}

static void a_ping_carries_up_to_its_limit(void **state)
{
        minimal(&m, WIRE_PING);
        m.hdr.len = sizeof(m.hdr) + WIRE_MAX_PING;
        memset(m.bytes + sizeof(m.hdr), 0xff, WIRE_MAX_PING);
        assert_accepted(&m);
        m.hdr.len++;
        assert_refused(&m);
}

static void batches_are_counted_exactly(void **state)
{
        for (size_t i = 0; i < ARRAY_SIZE(batch_ops); i++) {
                unsigned op = batch_ops[i], most = op == WIRE_RELEASE ? 0 : WIRE_MAX_KEYS;

                batch(&m, op, 0, most, 100);
                assert_accepted(&m);
                m.batch.count++;
                assert_refused(&m);
                m.hdr.len += (uint32_t)wire_entry_bytes(op);
                if (m.hdr.len < WIRE_MAX_MESSAGE)
                        assert_refused(&m);

                batch(&m, op, 0, most > 0 ? 3 : 0, 5);
                m.batch.releases--;
                assert_refused(&m);
                m.batch.releases += 2;
                assert_refused(&m);
                m.batch.releases = UINT16_MAX;
                assert_refused(&m);

                batch(&m, op, 0, most > 0 ? 2 : 0, 2);
                m.hdr.len--;
                assert_refused(&m);

                if (op != WIRE_RELEASE) {
                        batch(&m, op, 0, 0, 4);
                        assert_refused(&m);
                }
                batch(&m, op, 0, most > 0, WIRE_MAX_RELEASES);
                assert_accepted(&m);
                batch(&m, op, 0, most > 0, WIRE_MAX_RELEASES + 1);
                assert_refused(&m);
        }
        /* Keys for releases and releases for keys: equal length, other counts. */
        batch(&m, WIRE_EXISTS, 0, 2, 4);
        m.batch.count = 1;
        m.batch.releases = 8;
        assert_accepted(&m);
        m.batch.releases = 7;
        assert_refused(&m);
}

static void fields_that_an_op_does_not_use_are_zero(void **state)
{
        for (size_t i = 0; i < ARRAY_SIZE(batch_ops); i++) {
                unsigned op = batch_ops[i];
                bool parent =
                        op == WIRE_PUT || op == WIRE_GET || op == WIRE_TOUCH || op == WIRE_PREFETCH;

                minimal(&m, op);
                m.batch.pieces = 0x100;
                assert_refused(&m);

                for (unsigned at = 0; at < KEY_BYTES; at++) {
                        minimal(&m, op);
                        m.batch.parent.bytes[at] = 1;
                        assert_accepted_if(parent, &m);
                }
                for (unsigned ack = 1; ack < 256; ack++) {
                        minimal(&m, op);
                        m.batch.ack = (uint8_t)ack;
                        assert_accepted_if((op == WIRE_PUT && ack <= WIRE_DURABLE) ||
                                                   (op == WIRE_HINT && ack < WIRE_HINT_END &&
                                                    ack != WIRE_HINT_RETURN),
                                           &m);
                }
                for (unsigned tiers = 0; tiers < 256; tiers++) {
                        minimal(&m, op);
                        m.batch.tiers = (uint8_t)tiers;
                        assert_accepted_if(op == WIRE_PUT ? tiers <= WIRE_EXPECTS_FINAL ||
                                                                    tiers >= WIRE_EXPECTS_RETURN
                                           : op == WIRE_EVICT ? tiers == WIRE_TIER_MEMORY ||
                                                                        tiers == WIRE_TIER_ALL
                                                              : tiers == 0,
                                           &m);
                }
                minimal(&m, op);
                m.batch.timeout_ms = op == WIRE_HINT ? 0 : UINT32_MAX;
                m.batch.namespace_id = UINT32_MAX;
                assert_accepted(&m);
        }
}

/* Only the hint of a return has a time, which must not be 0, and may have a parent. */
static void a_hint_has_a_time_if_and_only_if_it_is_of_a_return(void **state)
{
        for (unsigned hint = 0; hint < 256; hint++)
                for (unsigned time = 0; time < 3; time++) {
                        minimal(&m, WIRE_HINT);
                        m.batch.hint = (uint8_t)hint;
                        m.batch.return_s = time == 2 ? UINT32_MAX : time;
                        assert_accepted_if(hint == WIRE_HINT_RETURN
                                                   ? time > 0
                                                   : time == 0 && hint != 0 && hint < WIRE_HINT_END,
                                           &m);
                }
        for (unsigned hint = 1; hint < WIRE_HINT_END; hint++) {
                minimal(&m, WIRE_HINT);
                m.batch.hint = (uint8_t)hint;
                m.batch.return_s = hint == WIRE_HINT_RETURN;
                m.batch.parent.bytes[31] = 1;
                assert_accepted_if(hint == WIRE_HINT_RETURN, &m);
        }
        minimal(&m, WIRE_HINT);
        m.batch.hdr.flags = WIRE_F_MORE;
        assert_refused(&m);
        minimal(&m, WIRE_HINT);
        m.batch.count = 0;
        assert_refused(&m);
}

static void a_put_keeps_its_reserved_words_zero_in_every_entry(void **state)
{
        struct wire_put *entries = (struct wire_put *)(&m.batch + 1);

        for (unsigned i = 0; i < 3; i++) {
                batch(&m, WIRE_PUT, 0, 3, 1);
                for (unsigned k = 0; k < 3; k++) {
                        memset(&entries[k].key, 0xab, sizeof(entries[k].key));
                        entries[k].offset = UINT64_MAX;
                        entries[k].length = UINT32_MAX;
                        entries[k].cost_us = UINT32_MAX;
                }
                assert_accepted(&m);
                entries[i].reserved = 0x80000000;
                assert_refused(&m);
        }
}

static void a_get_names_a_target_only_with_the_flag(void **state)
{
        struct wire_get *entries = (struct wire_get *)(&m.batch + 1);

        for (unsigned field = 0; field < 3; field++) {
                batch(&m, WIRE_GET, 0, 4, 0);
                entries[3].range_offset = entries[3].range_length = UINT32_MAX;
                assert_accepted(&m);
                if (field == 0)
                        entries[3].into_offset = UINT64_C(1) << 63;
                else if (field == 1)
                        entries[3].into_length = 1;
                else
                        entries[3].into_region = 1;
                assert_refused(&m);
                m.hdr.flags = WIRE_F_INTO;
                assert_accepted(&m);
        }
}

static const unsigned pieced_ops[] = { WIRE_PUT, WIRE_GET };

static void pieces_are_counted_exactly(void **state)
{
        for (size_t i = 0; i < ARRAY_SIZE(pieced_ops); i++) {
                unsigned op = pieced_ops[i];

                pieced(&m, op, 3, 5, 2);
                assert_accepted(&m);
                assert_ptr_equal(wire_batch_pieces(&m.batch), m.bytes + 64 + 3 * 56);
                assert_ptr_equal(wire_batch_releases(&m.batch), m.bytes + 64 + 3 * 56 + 15 * 16);
                m.batch.pieces--;
                assert_refused(&m);
                m.batch.pieces += 2;
                assert_refused(&m);
                m.batch.pieces = UINT16_MAX;
                assert_refused(&m);
                m.batch.pieces = 0;
                assert_refused(&m);

                /* The same bytes are leases here, and the keys have no pieces. */
                pieced(&m, op, 1, 1, 0);
                m.batch.pieces = 0;
                m.batch.releases = 2;
                assert_refused(&m);

                /* Uses the maximum number of pieces in a message. */
                pieced(&m, op, 1, 4088, 0);
                assert_true(m.hdr.len <= WIRE_MAX_MESSAGE);
                assert_accepted(&m);
                pieced(&m, op, 1, 4089, 0);
                assert_refused(&m);
        }
}

static void pieces_come_with_their_flag_and_only_with_it(void **state)
{
        for (size_t i = 0; i < ARRAY_SIZE(batch_ops); i++) {
                unsigned op = batch_ops[i];

                if (op == WIRE_PUT || op == WIRE_GET) {
                        pieced(&m, op, 2, 2, 0);
                        m.hdr.flags &= (uint16_t)~WIRE_F_PIECES;
                        assert_refused(&m);
                        continue;
                }
                batch(&m, op, 0, op == WIRE_RELEASE ? 0 : 1, 0);
                m.batch.pieces = 1;
                m.hdr.len += sizeof(struct wire_piece);
                assert_refused(&m);
                m.hdr.flags = WIRE_F_PIECES;
                assert_refused(&m);
        }
        /* A get that leases names no memory, in pieces or otherwise. */
        pieced(&m, WIRE_GET, 2, 2, 0);
        m.hdr.flags = WIRE_F_PIECES;
        assert_refused(&m);
        /* With the flag but without pieces, there is nothing that a key could name. */
        batch(&m, WIRE_PUT, WIRE_F_PIECES, 1, 0);
        assert_refused(&m);
        set_pieces(&m, 0, 0, 1, 1);
        assert_refused(&m);
}

static void a_key_names_pieces_of_its_message_and_no_others(void **state)
{
        static const struct {
                uint64_t first;
                uint32_t n, length; /* pieces have 10, 11 and 12 bytes */
                bool good;
        } cases[] = {
                { 0, 3, 33, true },
                { 0, 1, 10, true },
                { 2, 1, 12, true },
                { 1, 2, 23, true },
                { 0, 0, 0, false },
                { 3, 0, 0, false },
                { 0, 0, 10, false },
                { 0, 4, 33, false },
                { 3, 1, 0, false },
                { 2, 2, 12, false },
                { 4, 1, 10, false },
                { 0, 3, 32, false },
                { 0, 3, 34, false },
                { 0, 3, 0, false },
                { 0, UINT32_MAX, 33, false },
                { UINT64_MAX, 1, 10, false },
                { UINT64_MAX, 2, 10, false },
                { UINT64_MAX - 1, 3, 33, false },
                { UINT64_C(1) << 32, 1, 10, false },
                { (UINT64_C(1) << 60) + 1, 1, 11, false }, /* times 16 it would be 16 */
        };

        for (size_t o = 0; o < ARRAY_SIZE(pieced_ops); o++)
                for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
                        for (unsigned entry = 0; entry < 3; entry++) {
                                bool accepted;

                                /* Each key except one names the same three pieces. */
                                pieced(&m, pieced_ops[o], 3, 1, 1);
                                for (unsigned k = 0; k < 3; k++) {
                                        ((struct wire_piece *)wire_batch_pieces(&m.batch))[k]
                                                .length = 10 + k;
                                        set_pieces(&m, k, 0, 3, 33);
                                }
                                set_pieces(&m, entry, cases[i].first, cases[i].n, cases[i].length);
                                accepted = check(&m) == NULL;
                                if (accepted != cases[i].good)
                                        fail_msg("op %u, case %zu: %s", pieced_ops[o], i,
                                                 accepted ? "accepted" : check(&m));
                        }
}

static void no_piece_is_empty_and_their_sum_does_not_overflow(void **state)
{
        for (size_t i = 0; i < ARRAY_SIZE(pieced_ops); i++) {
                struct wire_piece *piece;

                pieced(&m, pieced_ops[i], 1, 3, 0);
                piece = (struct wire_piece *)wire_batch_pieces(&m.batch);
                for (unsigned empty = 0; empty < 3; empty++) {
                        uint32_t length = piece[empty].length;

                        piece[empty].length = 0;
                        set_pieces(&m, 0, 0, 3, 33 - length);
                        assert_refused(&m);
                        /* No key names the piece, but it is checked nevertheless. */
                        set_pieces(&m, 0, (empty + 1) % 3, 1, 10 + (empty + 1) % 3);
                        assert_refused(&m);
                        piece[empty].length = length;
                        assert_accepted(&m);
                }

                piece[0].length = piece[1].length = UINT32_MAX;
                piece[2].length = 12;
                set_pieces(&m, 0, 0, 3, 10); /* the sum, modulo 2^32 */
                assert_refused(&m);
                /* Pieces before those of a key do not count in its sum. */
                set_pieces(&m, 0, 2, 1, 12);
                assert_accepted(&m);
                piece[2].length = 2;
                set_pieces(&m, 0, 0, 3, 0);
                assert_refused(&m);
                /* Where a piece lies is for the daemon to judge, not for the form. */
                piece[0].offset = UINT64_MAX;
                piece[0].region = UINT32_MAX;
                set_pieces(&m, 0, 0, 1, UINT32_MAX);
                assert_accepted(&m);

                /* The longest sum there is. */
                pieced(&m, pieced_ops[i], 1, 4088, 0);
                piece = (struct wire_piece *)wire_batch_pieces(&m.batch);
                for (unsigned k = 0; k < 4088; k++)
                        piece[k].length = UINT32_MAX;
                set_pieces(&m, 0, 0, 4088, UINT32_MAX);
                assert_refused(&m);
                set_pieces(&m, 0, 0, 4088, (uint32_t)-4088); /* modulo 2^32 */
                assert_refused(&m);
                set_pieces(&m, 0, 4087, 1, UINT32_MAX);
                assert_accepted(&m);
                set_pieces(&m, 0, 4087, 2, UINT32_MAX);
                assert_refused(&m);
        }
}

/* Makes `count` keys that share `pieces` pieces of random lengths. */
static struct wire_piece *shared(union message *msg, unsigned op, unsigned count, unsigned pieces,
                                 unsigned *seed)
{
        struct wire_piece *piece;

        batch(msg, op, WIRE_F_PIECES | (op == WIRE_GET ? WIRE_F_INTO : 0), count, 0);
        msg->batch.pieces = (uint16_t)pieces;
        msg->hdr.len += (uint32_t)(pieces * sizeof(*piece));
        assert_true(msg->hdr.len <= WIRE_MAX_MESSAGE);
        piece = (struct wire_piece *)wire_batch_pieces(&msg->batch);
        for (unsigned k = 0; k < pieces; k++)
                piece[k].length = 1 + (uint32_t)rand_r(seed) % 100000;
        return piece;
}

static uint32_t sum_of(const struct wire_piece *piece, unsigned first, unsigned n)
{
        uint32_t sum = 0;

        while (n-- > 0)
                sum += piece[first + n].length;
        return sum;
}

static void keys_share_pieces_and_each_is_held_to_its_own(void **state)
{
        enum { KEYS = 40, PIECES = 30 };
        unsigned seed = 1;

        for (unsigned round = 0; round < 2000; round++) {
                unsigned wrong = (unsigned)rand_r(&seed) % KEYS, first[KEYS], n[KEYS];
                const struct wire_piece *piece =
                        shared(&m, pieced_ops[round % 2], KEYS, PIECES, &seed);
                uint32_t length;

                for (unsigned i = 0; i < KEYS; i++) {
                        first[i] = (unsigned)rand_r(&seed) % PIECES;
                        n[i] = 1 + (unsigned)rand_r(&seed) % (PIECES - first[i]);
                        set_pieces(&m, i, first[i], n[i], sum_of(piece, first[i], n[i]));
                }
                assert_accepted(&m);

                length = sum_of(piece, first[wrong], n[wrong]);
                set_pieces(&m, wrong, first[wrong], n[wrong], length + 1);
                assert_refused(&m);
                set_pieces(&m, wrong, first[wrong], n[wrong], length - 1);
                assert_refused(&m);
                set_pieces(&m, wrong, first[wrong], n[wrong] - 1, length);
                assert_refused(&m);
                set_pieces(&m, wrong, first[wrong], 0, 0);
                assert_refused(&m);
                set_pieces(&m, wrong, first[wrong], PIECES - first[wrong] + 1, length);
                assert_refused(&m);
                set_pieces(&m, wrong, UINT64_MAX - first[wrong], n[wrong], length);
                assert_refused(&m);
        }
}

/* Returns the least time of several attempts at checking the message. */
static uint64_t check_ns(const union message *msg)
{
        uint64_t least = UINT64_MAX;

        for (unsigned try = 0; try < 20; try++) {
                struct timespec from, to;
                uint64_t ns;

                assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from), 0);
                for (unsigned i = 0; i < 20; i++)
                        assert_null(wire_check_request(msg, msg->hdr.len));
                assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to), 0);
                ns = (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000 + (uint64_t)to.tv_nsec -
                     (uint64_t)from.tv_nsec;
                least = MIN(least, ns);
        }
        return least;
}

/* About 580 keys fit into a message together with 2,000 pieces, and each may name them all.
 * Checking that takes no longer than if each named one. Comparing the two works on any machine
 * and with any sanitizer; checking each key's pieces separately would take hundreds of times as
 * long. */
static void shared_pieces_are_looked_at_once(void **state)
{
        enum { KEYS = 584, PIECES = 2046 };
        static union message one;

        for (size_t i = 0; i < ARRAY_SIZE(pieced_ops); i++) {
                unsigned seed = 1;
                const struct wire_piece *piece = shared(&m, pieced_ops[i], KEYS, PIECES, &seed);
                uint64_t least, most;

                one = m;
                for (unsigned k = 0; k < KEYS; k++) {
                        set_pieces(&m, k, 0, PIECES, sum_of(piece, 0, PIECES));
                        set_pieces(&one, k, k, 1, sum_of(piece, k, 1));
                }
                assert_accepted(&m);
                assert_accepted(&one);
                least = check_ns(&one);
                most = check_ns(&m);
                if (most > 20 * least)
                        fail_msg("op %u: %lu ns, and %lu ns with one piece a key", pieced_ops[i],
                                 (unsigned long)most, (unsigned long)least);

                /* The last key is checked as well. */
                set_pieces(&m, KEYS - 1, 0, PIECES, sum_of(piece, 0, PIECES) - 1);
                assert_refused(&m);
        }
}

static void a_stretch_to_register_has_an_end(void **state)
{
        static const struct {
                uint64_t offset, bytes;
                bool good;
        } cases[] = {
                { 0, 4096, true },
                { 4096, UINT64_C(1) << 40, true },
                { 1, 1, true }, /* the page size is the file's: the daemon's to judge */
                { 0, UINT64_MAX, true },
                { UINT64_MAX - 1, 1, true },
                { 0, 0, false },
                { 4096, 0, false },
                { UINT64_MAX, 1, false },
                { 1, UINT64_MAX, false },
                { UINT64_C(1) << 63, UINT64_C(1) << 63, false },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                minimal(&m, WIRE_REGISTER);
                m.register_buffer.offset = cases[i].offset;
                m.register_buffer.bytes = cases[i].bytes;
                assert_accepted_if(cases[i].good, &m);
        }
        minimal(&m, WIRE_UNREGISTER);
        m.unregister_buffer.region = UINT32_MAX; /* no such region: that is answered */
        assert_accepted(&m);
        m.unregister_buffer.reserved = 1;
        assert_refused(&m);
}

static void only_register_carries_a_descriptor(void **state)
{
        for (unsigned op = 0; op < WIRE_OP_END + 10u; op++)
                assert_int_equal(wire_request_fds(op), op == WIRE_REGISTER);
        assert_int_equal(wire_request_fds(WIRE_REGISTER | WIRE_REPLY), 0);
        assert_int_equal(wire_request_fds(UINT32_MAX), 0);
}

static void hello_is_exact(void **state)
{
        hello(&m);
        m.hello.magic ^= 1;
        assert_refused(&m);
        hello(&m);
        m.hello.version_min = 0;
        assert_refused(&m);
        hello(&m);
        m.hello.version_min = 2;
        assert_refused(&m);
        hello(&m);
        m.hello.features = 1;
        assert_refused(&m);

        /* Clients to come: their range and their offers must not end the session. */
        hello(&m);
        m.hello.version_max = UINT16_MAX;
        m.hello.features = UINT64_MAX;
        assert_accepted(&m);
        m.hello.version_min = UINT16_MAX;
        assert_accepted(&m);
}

static void a_client_name_is_printable_and_padded(void **state)
{
        hello(&m);
        memset(m.hello.client, 0, sizeof(m.hello.client));
        assert_accepted(&m);
        memset(m.hello.client, 'x', sizeof(m.hello.client) - 1);
        assert_accepted(&m);
        m.hello.client[WIRE_CLIENT_NAME - 1] = 'x';
        assert_refused(&m);
        hello(&m);
        m.hello.client[WIRE_CLIENT_NAME - 1] = 'x';
        assert_refused(&m);
        for (unsigned c = 1; c < 256; c++) {
                hello(&m);
                m.hello.client[2] = (char)c;
                assert_accepted_if(c >= ' ' && c <= '~', &m);
        }
}

static void namespaces_are_exact(void **state)
{
        char name[WIRE_MAX_NAME + 2], fingerprint[WIRE_MAX_FINGERPRINT + 2];

        memset(name, 'n', sizeof(name));
        memset(fingerprint, 'f', sizeof(fingerprint));
        name[WIRE_MAX_NAME] = fingerprint[WIRE_MAX_FINGERPRINT] = '\0';
        open_namespace(&m, name, fingerprint);
        m.namespace.chunk_bytes = UINT64_MAX;
        assert_accepted(&m);
        m.namespace.name_length--;
        assert_refused(&m);
        /* The border between the two may lie anywhere. */
        m.namespace.fingerprint_length++;
        assert_refused(&m);
        open_namespace(&m, "llama", "a=1\n");
        m.namespace.name_length++;
        m.namespace.fingerprint_length--;
        assert_accepted(&m);

        name[WIRE_MAX_NAME] = 'n';
        name[WIRE_MAX_NAME + 1] = '\0';
        open_namespace(&m, name, "");
        assert_refused(&m);
        fingerprint[WIRE_MAX_FINGERPRINT] = 'f';
        fingerprint[WIRE_MAX_FINGERPRINT + 1] = '\0';
        open_namespace(&m, "n", fingerprint);
        assert_refused(&m);
        open_namespace(&m, "", "a=1\n");
        assert_refused(&m);
        open_namespace(&m, "n", "a=1\n");
        m.namespace.lifetime_s = UINT32_MAX;
        assert_accepted(&m);
        m.namespace.hdr.flags = WIRE_F_ATTACH;
        assert_refused(&m); /* an existing namespace has its own lifetime */
        m.namespace.lifetime_s = 0;
        assert_accepted(&m);
        m.namespace.hdr.flags = WIRE_F_SET << 1;
        assert_refused(&m);
        /* A fingerprint that is not canonical gets an answer, and does not end the session. */
        open_namespace(&m, "n", "nonsense");
        assert_accepted(&m);
}

static void a_lifetime_is_set_by_names_alone(void **state)
{
        char tenant[WIRE_MAX_TENANT + 2];

        memset(tenant, 't', sizeof(tenant));
        tenant[WIRE_MAX_TENANT] = '\0';
        open_namespace(&m, "n", tenant);
        m.namespace.hdr.flags = WIRE_F_SET;
        assert_accepted(&m);
        m.namespace.lifetime_s = UINT32_MAX;
        assert_accepted(&m);
        m.namespace.tenant_length--;
        assert_refused(&m);
        m.namespace.tenant_length++;
        m.namespace.chunk_bytes = 1;
        assert_refused(&m);
        m.namespace.chunk_bytes = 0;
        m.namespace.hdr.flags |= WIRE_F_ATTACH;
        assert_refused(&m);
        tenant[WIRE_MAX_TENANT] = 't';
        tenant[WIRE_MAX_TENANT + 1] = '\0';
        open_namespace(&m, "n", tenant);
        m.namespace.hdr.flags = WIRE_F_SET;
        assert_refused(&m);
        open_namespace(&m, "n", "a\n");
        m.namespace.hdr.flags = WIRE_F_SET;
        assert_refused(&m);
        open_namespace(&m, "", "t");
        m.namespace.hdr.flags = WIRE_F_SET;
        assert_refused(&m);
}

static void a_namespace_name_is_printable(void **state)
{
        for (unsigned c = 0; c < 256; c++) {
                open_namespace(&m, "llama-3.1-8b/tp8-rank0", "");
                m.bytes[sizeof(m.namespace) + 5] = (uint8_t)c;
                assert_accepted_if(c >= ' ' && c <= '~', &m);
        }
        assert_int_equal(wire_name_check("a b", 3), 0);
        assert_int_equal(wire_name_check("", 0), -EINVAL);
        assert_int_equal(wire_name_check("a\0b", 3), -EINVAL);
}

static void namespaces_are_named_within_bounds(void **state)
{
        char name[WIRE_MAX_NAME + 1] = "", tenant[WIRE_MAX_TENANT + 2] = "";

        memset(name, 'n', WIRE_MAX_NAME);
        memset(tenant, 't', WIRE_MAX_TENANT);
        list_namespaces(&m, name, tenant, 1);
        assert_accepted(&m);
        m.namespaces.max = 2; /* of one */
        assert_refused(&m);
        m.namespaces.max = 1;
        m.namespaces.cursor = 1;
        assert_refused(&m);
        list_namespaces(&m, "", tenant, WIRE_MAX_NAMESPACES);
        m.namespaces.cursor = UINT64_MAX;
        assert_accepted(&m);
        m.namespaces.max++;
        assert_refused(&m);
        m.namespaces.max = 0;
        assert_refused(&m);
        list_namespaces(&m, "", tenant, 1);
        m.namespaces.reserved = 1;
        assert_refused(&m);
        remove_namespace(&m, name, tenant);
        assert_accepted(&m);
        m.remove.reserved0 = 1;
        assert_refused(&m);
        m.remove.reserved0 = 0;
        m.remove.reserved1 = 1;
        assert_refused(&m);
        remove_namespace(&m, "", "t");
        assert_refused(&m);

        tenant[WIRE_MAX_TENANT] = 't';
        list_namespaces(&m, name, tenant, 1);
        assert_refused(&m);
        remove_namespace(&m, name, tenant);
        assert_refused(&m);
        for (unsigned c = 0; c < 256; c++) {
                char one[2] = { (char)c, 0 };

                list_namespaces(&m, "n", "t", 1);
                ((uint8_t *)(&m.namespaces + 1))[0] = (uint8_t)c;
                assert_int_equal(!check(&m), c >= 0x20 && c <= 0x7e);
                if (c == 0)
                        continue;
                remove_namespace(&m, "n", one);
                assert_int_equal(!check(&m), c >= 0x20 && c <= 0x7e);
        }
        for (int wrong = -1; wrong <= 1; wrong += 2) {
                list_namespaces(&m, "nn", "tt", 1);
                m.namespaces.name_length = (uint8_t)(2 + wrong);
                assert_refused(&m);
                list_namespaces(&m, "nn", "tt", 1);
                m.hdr.len += (uint32_t)wrong;
                assert_refused(&m);
                remove_namespace(&m, "nn", "tt");
                m.remove.tenant_length = (uint8_t)(2 + wrong);
                assert_refused(&m);
                remove_namespace(&m, "nn", "tt");
                m.hdr.len += (uint32_t)wrong;
                assert_refused(&m);
        }
        list_namespaces(&m, "", "", 1);
        m.hdr.len--;
        assert_refused(&m);
        remove_namespace(&m, "n", "");
        m.hdr.len -= 2;
        assert_refused(&m);
}

/* Asserts that a field of `m` may be `most`, and neither more nor 0; leaves it at `most`. */
#define ASSERT_FROM_1_TO(field, most)                                                              \
        do {                                                                                       \
                (field) = (most);                                                                  \
                assert_accepted(&m);                                                               \
                (field)++;                                                                         \
                assert_refused(&m);                                                                \
                (field) = 0;                                                                       \
                assert_refused(&m);                                                                \
                (field) = (most);                                                                  \
        } while (0)

/* Asserts that a reserved field of `m`, which is valid, must be 0; leaves it so. */
#define ASSERT_RESERVED(field)                                                                     \
        do {                                                                                       \
                assert_accepted(&m);                                                               \
                (field) = 1;                                                                       \
                assert_refused(&m);                                                                \
                (field) = 0;                                                                       \
        } while (0)

static void lists_purges_and_reports_are_in_range(void **state)
{
        minimal(&m, WIRE_LIST);
        m.list.cursor = UINT64_MAX;
        ASSERT_FROM_1_TO(m.list.max, WIRE_MAX_KEYS);

        minimal(&m, WIRE_PURGE);
        m.purge.namespace_id = 5;
        assert_accepted(&m);
        m.hdr.flags = WIRE_F_ALL;
        assert_refused(&m);
        m.purge.namespace_id = 0;
        ASSERT_RESERVED(m.purge.reserved);

        for (unsigned what = 0; what < 10; what++) {
                minimal(&m, WIRE_REPORT);
                m.report.what = what;
                assert_accepted_if(what < WIRE_REPORT_END, &m);
        }
        minimal(&m, WIRE_REPORT);
        ASSERT_RESERVED(m.report.reserved);

        minimal(&m, WIRE_VERIFY);
        m.verify.volume = m.verify.segment = m.verify.slot = UINT32_MAX;
        m.verify.max_bytes = UINT64_MAX;
        ASSERT_FROM_1_TO(m.verify.max_chunks, WIRE_MAX_VERIFY_CHUNKS);
        minimal(&m, WIRE_VERIFY);
        m.verify.max_bytes = 0;
        assert_refused(&m);

        minimal(&m, WIRE_DEVICE);
        m.device.volume = UINT32_MAX;
        ASSERT_FROM_1_TO(m.device.action, WIRE_DEVICE_RESUME);

        minimal(&m, WIRE_RECORD);
        ASSERT_FROM_1_TO(m.record.duration_s, WIRE_MAX_RECORD_S);
        ASSERT_RESERVED(m.record.reserved);
}

static void bench(unsigned action, unsigned name, unsigned options)
{
        minimal(&m, WIRE_BENCH);
        m.bench.action = (uint8_t)action;
        m.bench.name_length = (uint8_t)name;
        m.bench.options = (uint16_t)options;
        m.hdr.len += name;
}

static void a_session_is_named_where_one_is_meant(void **state)
{
        for (unsigned action = 0; action < 256; action++)
                for (unsigned name = 0; name < 256; name++) {
                        bool known = action >= WIRE_BENCH_INIT && action <= WIRE_BENCH_DELETE;

                        bench(action, name, 0);
                        assert_accepted_if(known && name <= WIRE_BENCH_NAME &&
                                                   (action != WIRE_BENCH_INIT || name > 0) &&
                                                   (action != WIRE_BENCH_LIST || name == 0),
                                           &m);
                        m.hdr.len++;
                        assert_refused(&m);
                }
        for (unsigned options = 0; options < 8; options++)
                for (unsigned action = WIRE_BENCH_INIT; action <= WIRE_BENCH_DELETE; action++) {
                        bench(action, action != WIRE_BENCH_LIST, options);
                        assert_accepted_if(
                                options == 0 || (action == WIRE_BENCH_INIT && options <= 2), &m);
                }
        bench(WIRE_BENCH_STATUS, 1, 0);
        ASSERT_RESERVED(m.bench.reserved);
}

static void a_sweep_has_one_option(void **state)
{
        for (unsigned bit = 0; bit < 32; bit++) {
                minimal(&m, WIRE_SWEEP);
                m.sweep.limit = UINT64_MAX;
                m.sweep.options = 1u << bit;
                assert_accepted_if(bit == 0, &m);
        }
        minimal(&m, WIRE_SWEEP);
        ASSERT_RESERVED(m.sweep.reserved);
}

static void events_are_asked_for_within_bounds(void **state)
{
        minimal(&m, WIRE_EVENTS);
        m.events.epoch = m.events.from = UINT64_MAX;
        m.events.wait_ms = WIRE_MAX_EVENTS_WAIT_MS;
        ASSERT_FROM_1_TO(m.events.max, WIRE_MAX_KEYS);
        m.events.wait_ms++;
        assert_refused(&m);
        minimal(&m, WIRE_EVENTS);
        ASSERT_RESERVED(m.events.reserved);
        minimal(&m, WIRE_EVENTS);
        m.events.kind = WIRE_EVENTS_SNAPSHOT;
        m.events.from = UINT64_MAX;
        assert_accepted(&m);
        m.events.wait_ms = 1;
        assert_refused(&m);
        m.events.wait_ms = 0;
        m.events.epoch = 1;
        assert_refused(&m);
        minimal(&m, WIRE_EVENTS);
        m.events.kind = WIRE_EVENTS_END;
        assert_refused(&m);
}

static void releases_follow_the_entries(void **state)
{
        for (size_t i = 0; i < ARRAY_SIZE(batch_ops); i++) {
                unsigned count = batch_ops[i] == WIRE_RELEASE ? 0 : 3;

                batch(&m, batch_ops[i], 0, count, 2);
                assert_accepted(&m);
                assert_ptr_equal(wire_batch_releases(&m.batch),
                                 m.bytes + m.hdr.len - 2 * sizeof(struct wire_lease));
        }
}

static void a_reply_to_the_largest_request_fits_a_message(void **state)
{
        for (unsigned op = 0; op < WIRE_OP_END + 10u; op++)
                assert_true(sizeof(struct wire_reply) + WIRE_MAX_KEYS * wire_result_bytes(op) <=
                            WIRE_MAX_MESSAGE);
        assert_true(sizeof(struct wire_reply) + WIRE_MAX_KEYS * sizeof(struct wire_list_result) <=
                    WIRE_MAX_MESSAGE);
        assert_int_equal(wire_entry_bytes(WIRE_PUT), 56);
        assert_int_equal(wire_entry_bytes(WIRE_GET), 56);
        assert_int_equal(wire_entry_bytes(WIRE_STAT), 32);
        assert_int_equal(wire_entry_bytes(WIRE_RELEASE), 0);
        assert_int_equal(wire_entry_bytes(WIRE_LIST), 0);
        assert_int_equal(wire_entry_bytes(WIRE_REPLY | WIRE_PUT), 0);
        assert_int_equal(wire_result_bytes(WIRE_PUT), 24);
        assert_int_equal(wire_result_bytes(WIRE_GET), 32);
        assert_int_equal(wire_result_bytes(WIRE_EXISTS), 1);
        assert_int_equal(wire_result_bytes(WIRE_TOUCH), 2);
        assert_int_equal(wire_result_bytes(WIRE_EVICT), 2);
        assert_int_equal(wire_result_bytes(WIRE_PREFETCH), 2);
        assert_int_equal(wire_entry_bytes(WIRE_HINT), 32);
        assert_int_equal(wire_result_bytes(WIRE_HINT), 2);
        assert_int_equal(wire_result_bytes(WIRE_STAT), 40);
        assert_int_equal(wire_result_bytes(WIRE_MATCH), 0);
        assert_int_equal(wire_result_bytes(UINT32_MAX), 0);
}

static void everything_has_a_name(void **state)
{
        for (unsigned op = WIRE_HELLO; op < WIRE_OP_END; op++) {
                assert_string_not_equal(wire_op_name(op), "unknown");
                assert_string_equal(wire_op_name(op | WIRE_REPLY), wire_op_name(op));
                for (unsigned other = WIRE_HELLO; other < op; other++)
                        assert_string_not_equal(wire_op_name(op), wire_op_name(other));
        }
        for (unsigned status = 0; status < WIRE_STATUS_END; status++)
                assert_string_not_equal(wire_status_name(status), "unknown");
        assert_string_equal(wire_op_name(WIRE_PUT), "PUT");
        assert_string_equal(wire_status_name(WIRE_BUSY), "busy");
        assert_string_equal(wire_op_name(0), "unknown");
        assert_string_equal(wire_op_name(WIRE_OP_END), "unknown");
        assert_string_equal(wire_op_name(UINT32_MAX), "unknown");
        assert_string_equal(wire_status_name(WIRE_STATUS_END), "unknown");
        assert_string_equal(wire_status_name(UINT32_MAX), "unknown");
}

/* For any bytes the check returns, and an accepted message contains its own counts. */
static void noise_is_survived(void **state)
{
        unsigned seed = 1, accepted = 0;

        for (int round = 0; round < 20000; round++) {
                unsigned flips = 1 + (unsigned)rand_r(&seed) % 4;
                unsigned op = WIRE_HELLO + (unsigned)rand_r(&seed) % (WIRE_OP_END - 1);
                size_t bytes;

                if (round % 2 == 0 && (op == WIRE_PUT || op == WIRE_GET))
                        pieced(&m, op, 2, 2, 1);
                else
                        minimal(&m, op);
                bytes = m.hdr.len;
                while (flips-- > 0)
                        m.bytes[(unsigned)rand_r(&seed) % bytes] ^=
                                (uint8_t)(1u << (unsigned)rand_r(&seed) % 8);
                if (check_bytes(&m, bytes))
                        continue;
                accepted++;
                assert_int_equal(m.hdr.len, bytes);
                assert_true(m.hdr.op >= WIRE_HELLO && m.hdr.op < WIRE_OP_END);
                assert_int_equal(m.hdr.flags & ~flags_of(m.hdr.op), 0);
                for (size_t i = 0; i < ARRAY_SIZE(batch_ops); i++)
                        if (m.hdr.op == batch_ops[i])
                                assert_ptr_equal(wire_batch_releases(&m.batch) + m.batch.releases,
                                                 m.bytes + bytes);
        }
        assert_true(accepted > 1000);
}

#define FP(text) wire_fingerprint_check(text, sizeof(text) - 1)

static void canonical_fingerprints_are_recognized(void **state)
{
        assert_int_equal(FP(""), 0);
        assert_int_equal(FP("model=llama\n"), 0);
        assert_int_equal(FP("dtype=bf16\nlayers=32\nmodel=meta/Llama 3.1 (8B) = x\n"), 0);
        assert_int_equal(FP("a=\n"), 0);
        /* Keys ascend as bytes, a prefix first: not the lines, where '=' would come after '.'. */
        assert_int_equal(FP("a=1\na.b=2\na_b=3\nb-0=4\n"), 0);
        assert_int_equal(FP("a.b=2\na=1\n"), -EINVAL);

        assert_int_equal(FP("\n"), -EINVAL);
        assert_int_equal(FP("a=1"), -EINVAL);
        assert_int_equal(FP("a\n"), -EINVAL);
        assert_int_equal(FP("=1\n"), -EINVAL);
        assert_int_equal(FP("A=1\n"), -EINVAL);
        assert_int_equal(FP("a b=1\n"), -EINVAL);
        assert_int_equal(FP("a=1\n\n"), -EINVAL);
        assert_int_equal(FP("a=1\nb\n"), -EINVAL);
        assert_int_equal(FP("b=1\na=1\n"), -EINVAL);
        assert_int_equal(FP("a=1\na=2\n"), -EINVAL);
        assert_int_equal(FP("a=1\r\n"), -EINVAL);
        assert_int_equal(FP("a=\t\n"), -EINVAL);
        assert_int_equal(FP("a=\0\n"), -EINVAL);
        assert_int_equal(FP("a=\x80\n"), -EINVAL);
        assert_int_equal(FP("a\0=1\n"), -EINVAL);
}

static void a_fingerprint_has_a_limit(void **state)
{
        static char text[WIRE_MAX_FINGERPRINT + 1];

        memset(text, 'v', sizeof(text));
        text[0] = 'k';
        text[1] = '=';
        text[WIRE_MAX_FINGERPRINT - 1] = '\n';
        assert_int_equal(wire_fingerprint_check(text, WIRE_MAX_FINGERPRINT), 0);
        text[WIRE_MAX_FINGERPRINT - 1] = 'v';
        text[WIRE_MAX_FINGERPRINT] = '\n';
        assert_int_equal(wire_fingerprint_check(text, WIRE_MAX_FINGERPRINT + 1), -EINVAL);
}

static void assert_diff(const char *a, const char *b, const char *expected)
{
        char got[128];

        memset(got, 'x', sizeof(got));
        assert_int_equal(wire_fingerprint_diff(a, strlen(a), b, strlen(b), got, sizeof(got)),
                         expected != NULL);
        assert_string_equal(got, expected ? expected : "");
}

static void a_difference_is_named(void **state)
{
        assert_diff("", "", NULL);
        assert_diff("a=1\nb=2\n", "a=1\nb=2\n", NULL);
        assert_diff("dtype=fp8\nmodel=x\n", "dtype=bf16\nmodel=x\n",
                    "dtype: fp8 in the namespace, bf16 requested");
        assert_diff("a=1\nb=2\n", "a=1\nb=3\n", "b: 2 in the namespace, 3 requested");
        assert_diff("a=1\n", "a=1\nb=3\n", "b: none in the namespace, 3 requested");
        assert_diff("a=1\nb=3\n", "a=1\n", "b: 3 in the namespace, none requested");
        assert_diff("b=3\n", "a=1\nb=3\n", "a: none in the namespace, 1 requested");
        assert_diff("", "z=\n", "z: none in the namespace,  requested");
        assert_diff("a=12\n", "a=1\n", "a: 12 in the namespace, 1 requested");
        /* Texts that are not canonical, as read from a damaged disk. */
        assert_diff("a=1\n", "a=1", "the text differs");
        assert_diff("junk", "rubbish", "the text differs");
}

static void a_difference_never_writes_past_its_room(void **state)
{
        char got[16];

        for (size_t room = 0; room < sizeof(got); room++) {
                memset(got, 'x', sizeof(got));
                assert_true(
                        wire_fingerprint_diff("dtype=fp8\n", 10, "dtype=bf16\n", 11, got, room));
                if (room > 0)
                        assert_non_null(memchr(got, '\0', room));
                for (size_t i = room; i < sizeof(got); i++)
                        assert_int_equal(got[i], 'x');
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_minimal_request_of_each_op_is_accepted),
                cmocka_unit_test(each_op_takes_its_own_flags_and_no_other),
                cmocka_unit_test(a_get_may_ask_for_leases_only_with_a_target),
                cmocka_unit_test(a_get_that_borrows_has_neither_target_nor_range),
                cmocka_unit_test(unknown_ops_and_replies_are_refused),
                cmocka_unit_test(every_other_length_is_refused),
                cmocka_unit_test(a_message_longer_than_the_limit_is_refused),
                cmocka_unit_test(a_ping_carries_up_to_its_limit),
                cmocka_unit_test(batches_are_counted_exactly),
                cmocka_unit_test(fields_that_an_op_does_not_use_are_zero),
                cmocka_unit_test(a_hint_has_a_time_if_and_only_if_it_is_of_a_return),
                cmocka_unit_test(a_put_keeps_its_reserved_words_zero_in_every_entry),
                cmocka_unit_test(a_get_names_a_target_only_with_the_flag),
                cmocka_unit_test(pieces_are_counted_exactly),
                cmocka_unit_test(pieces_come_with_their_flag_and_only_with_it),
                cmocka_unit_test(a_key_names_pieces_of_its_message_and_no_others),
                cmocka_unit_test(no_piece_is_empty_and_their_sum_does_not_overflow),
                cmocka_unit_test(keys_share_pieces_and_each_is_held_to_its_own),
                cmocka_unit_test(shared_pieces_are_looked_at_once),
                cmocka_unit_test(a_stretch_to_register_has_an_end),
                cmocka_unit_test(only_register_carries_a_descriptor),
                cmocka_unit_test(hello_is_exact),
                cmocka_unit_test(a_client_name_is_printable_and_padded),
                cmocka_unit_test(namespaces_are_exact),
                cmocka_unit_test(a_lifetime_is_set_by_names_alone),
                cmocka_unit_test(a_namespace_name_is_printable),
                cmocka_unit_test(namespaces_are_named_within_bounds),
                cmocka_unit_test(lists_purges_and_reports_are_in_range),
                cmocka_unit_test(a_session_is_named_where_one_is_meant),
                cmocka_unit_test(a_sweep_has_one_option),
                cmocka_unit_test(events_are_asked_for_within_bounds),
                cmocka_unit_test(releases_follow_the_entries),
                cmocka_unit_test(a_reply_to_the_largest_request_fits_a_message),
                cmocka_unit_test(everything_has_a_name),
                cmocka_unit_test(noise_is_survived),
                cmocka_unit_test(canonical_fingerprints_are_recognized),
                cmocka_unit_test(a_fingerprint_has_a_limit),
                cmocka_unit_test(a_difference_is_named),
                cmocka_unit_test(a_difference_never_writes_past_its_room),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
