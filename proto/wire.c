/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the form of messages, and names their parts. See wire.h and README.md.
 *
 * Both sides run this; it owns nothing. wire_check_request() checks only the form, and a fault that
 * it reports ends the session. Faults that depend on state (the namespace is not open, a place lies
 * outside the staging area, the fingerprint is not canonical) are found later and become a
 * status. */
#include "wire.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "checked.h"
#include "text.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "messages are little-endian and used in place");

enum {
        MAX_PIECES = WIRE_MAX_MESSAGE / sizeof(struct wire_piece)
}; /* upper bound of the pieces in a message */

/* One row per op; a number without a name is not an op. */
static const struct op_info {
        const char *name;
        uint16_t flags;      /* allowed in a request */
        uint8_t entry_bytes; /* size of an entry of a batch op */
        uint8_t result_bytes;
        uint8_t fds;
        bool batch;
        bool parent;
} ops[WIRE_OP_END] = {
        [WIRE_HELLO] = { .name = "HELLO" },
        [WIRE_PING] = { .name = "PING" },
        [WIRE_NAMESPACE] = { .name = "NAMESPACE", .flags = WIRE_F_ATTACH | WIRE_F_SET },
        [WIRE_STAGING] = { .name = "STAGING" },
        [WIRE_PUT] = { .name = "PUT",
                       .flags = WIRE_F_MORE | WIRE_F_NOWAIT | WIRE_F_LEASE | WIRE_F_PIECES,
                       .entry_bytes = sizeof(struct wire_put),
                       .result_bytes = sizeof(struct wire_put_result),
                       .batch = true,
                       .parent = true },
        [WIRE_GET] = { .name = "GET",
                       .flags = WIRE_F_MORE | WIRE_F_NOWAIT | WIRE_F_INTO | WIRE_F_PIECES |
                                WIRE_F_LEND | WIRE_F_LEASE,
                       .entry_bytes = sizeof(struct wire_get),
                       .result_bytes = sizeof(struct wire_get_result),
                       .batch = true,
                       .parent = true },
        [WIRE_RELEASE] = { .name = "RELEASE", .flags = WIRE_F_NO_REPLY, .batch = true },
        [WIRE_EXISTS] = { .name = "EXISTS",
                          .flags = WIRE_F_REMOTE,
                          .entry_bytes = sizeof(struct key),
                          .result_bytes = 1,
                          .batch = true },
        [WIRE_MATCH] = { .name = "MATCH",
                         .flags = WIRE_F_REMOTE,
                         .entry_bytes = sizeof(struct key),
                         .batch = true },
        [WIRE_TOUCH] = { .name = "TOUCH",
                         .flags = WIRE_F_MORE,
                         .entry_bytes = sizeof(struct key),
                         .result_bytes = sizeof(uint16_t),
                         .batch = true,
                         .parent = true },
        [WIRE_EVICT] = { .name = "EVICT",
                         .entry_bytes = sizeof(struct key),
                         .result_bytes = sizeof(uint16_t),
                         .batch = true },
        [WIRE_STAT] = { .name = "STAT",
                        .flags = WIRE_F_REMOTE,
                        .entry_bytes = sizeof(struct key),
                        .result_bytes = sizeof(struct wire_stat_result),
                        .batch = true },
        [WIRE_LIST] = { .name = "LIST" },
        [WIRE_PURGE] = { .name = "PURGE", .flags = WIRE_F_ALL | WIRE_F_REMOTE },
        [WIRE_REPORT] = { .name = "REPORT" },
        [WIRE_VERIFY] = { .name = "VERIFY" },
        [WIRE_DEVICE] = { .name = "DEVICE" },
        [WIRE_REGISTER] = { .name = "REGISTER", .flags = WIRE_F_FILE, .fds = 1 },
        [WIRE_UNREGISTER] = { .name = "UNREGISTER" },
        [WIRE_LOOKUP] = { .name = "LOOKUP", .flags = WIRE_F_TALLY },
        [WIRE_PREFETCH] = { .name = "PREFETCH",
                            .flags = WIRE_F_MORE,
                            .entry_bytes = sizeof(struct key),
                            .result_bytes = sizeof(uint16_t),
                            .batch = true,
                            .parent = true },
        [WIRE_NAMESPACES] = { .name = "NAMESPACES" },
        [WIRE_NAMESPACE_REMOVE] = { .name = "NAMESPACE_REMOVE", .flags = WIRE_F_PURGE },
        [WIRE_CANCEL] = { .name = "CANCEL" },
        [WIRE_LENT_FILE] = { .name = "LENT_FILE" },
        [WIRE_GIVE_BACK] = { .name = "GIVE_BACK",
                             .entry_bytes = sizeof(struct wire_lease),
                             .result_bytes = sizeof(uint16_t),
                             .batch = true },
        [WIRE_BENCH] = { .name = "BENCH" },
        [WIRE_TRANSFERS] = { .name = "TRANSFERS" },
        [WIRE_RECORD] = { .name = "RECORD" },
        [WIRE_RELOAD] = { .name = "RELOAD" },
        [WIRE_SWEEP] = { .name = "SWEEP" },
        [WIRE_POOL_INDEX] = { .name = "POOL_INDEX" },
        [WIRE_EVENTS] = { .name = "EVENTS" },
        [WIRE_HINT] = { .name = "HINT",
                        .entry_bytes = sizeof(struct key),
                        .result_bytes = sizeof(uint16_t),
                        .batch = true },
};

static const char *const status_names[WIRE_STATUS_END] = {
        [WIRE_OK] = "ok",
        [WIRE_MISS] = "miss",
        [WIRE_EXISTS_ALREADY] = "exists",
        [WIRE_BUSY] = "busy",
        [WIRE_TOO_LARGE] = "too large",
        [WIRE_NOT_DURABLE] = "not durable",
        [WIRE_FAILED] = "failed",
        [WIRE_INVALID] = "invalid",
        [WIRE_STALE] = "stale",
        [WIRE_DENIED] = "denied",
        [WIRE_QUOTA] = "quota",
        [WIRE_MISMATCH] = "mismatch",
        [WIRE_NO_NAMESPACE] = "no namespace",
        [WIRE_VERSION] = "version",
        [WIRE_SHUTDOWN] = "shutdown",
        [WIRE_NO_SPACE] = "no space",
        [WIRE_NOT_EMPTY] = "not empty",
        [WIRE_CANCELLED] = "cancelled",
};

size_t wire_entry_bytes(unsigned op)
{
        return op < WIRE_OP_END ? ops[op].entry_bytes : 0;
}

size_t wire_result_bytes(unsigned op)
{
        return op < WIRE_OP_END ? ops[op].result_bytes : 0;
}

bool wire_op_is_batch(unsigned op)
{
        return op < WIRE_OP_END && ops[op].batch;
}

bool wire_op_is_chained(unsigned op)
{
        return op < WIRE_OP_END && ops[op].parent;
}

bool wire_op_has_keys(unsigned op)
{
        return op < WIRE_OP_END && ops[op].entry_bytes >= sizeof(struct key);
}

unsigned wire_request_fds(unsigned op)
{
        return op < WIRE_OP_END ? ops[op].fds : 0;
}

const char *wire_op_name(unsigned op)
{
        op &= ~(unsigned)WIRE_REPLY;
        return op < WIRE_OP_END && ops[op].name ? ops[op].name : "unknown";
}

const char *wire_status_name(unsigned status)
{
        return status < WIRE_STATUS_END ? status_names[status] : "unknown";
}

static bool all_zero(const void *p, size_t n)
{
        const uint8_t *b = p;

        while (n > 0)
                if (b[--n] != 0)
                        return false;
        return true;
}

int wire_name_check(const char *name, size_t bytes)
{
        return bytes > 0 && bytes <= WIRE_MAX_NAME && text_is_ascii(name, bytes) ? 0 : -EINVAL;
}

const struct wire_piece *wire_batch_pieces(const struct wire_batch *b)
{
        return (const struct wire_piece *)((const char *)(b + 1) +
                                           b->count * wire_entry_bytes(b->hdr.op));
}

const struct wire_lease *wire_batch_releases(const struct wire_batch *b)
{
        return (const struct wire_lease *)(wire_batch_pieces(b) + b->pieces);
}

/* --- one check per op, after the header and its flags were checked --- */

static const char *check_hello(const struct wire_hello *m, size_t bytes)
{
        size_t name;

        if (bytes != sizeof(*m))
                return "HELLO of a wrong length";
        if (m->magic != WIRE_MAGIC)
                return "HELLO without the magic";
        if (m->version_min == 0 || m->version_min > m->version_max)
                return "HELLO with an impossible range of versions";
        /* A later client may offer features that this version does not know; they are ignored. */
        if (m->features != 0 && m->version_max <= WIRE_VERSION_MAX)
                return "HELLO with unknown features";
        name = strnlen(m->client, sizeof(m->client));
        if (name == sizeof(m->client) || !text_is_ascii(m->client, name) ||
            !all_zero(m->client + name, sizeof(m->client) - name))
                return "HELLO with a client name that is not printable and NUL-padded";
        return NULL;
}

/* Checks the names of a namespace and of a tenant, either of which may be empty. */
static const char *check_names(const char *texts, size_t bytes, size_t name, size_t tenant)
{
        if (tenant > WIRE_MAX_TENANT)
                return "too long a name of a tenant";
        if (bytes != name + tenant)
                return "names of a wrong length";
        return text_is_ascii(texts, bytes) ? NULL : "a name that is not printable";
}

/* Checks a NAMESPACE that sets a lifetime and opens nothing. */
static const char *check_namespace_set(const struct wire_namespace *m, size_t bytes)
{
        if (m->hdr.flags & WIRE_F_ATTACH || m->chunk_bytes != 0)
                return "NAMESPACE to set a lifetime that opens one as well";
        return check_names((const char *)(m + 1), bytes - sizeof(*m), m->name_length,
                           m->tenant_length);
}

static const char *check_namespace(const struct wire_namespace *m, size_t bytes)
{
        if (bytes < sizeof(*m))
                return "NAMESPACE shorter than its head";
        if (m->name_length == 0 || m->name_length > WIRE_MAX_NAME)
                return "NAMESPACE with a name of an impossible length";
        if (m->hdr.flags & WIRE_F_SET)
                return check_namespace_set(m, bytes);
        if (m->fingerprint_length > WIRE_MAX_FINGERPRINT)
                return "NAMESPACE with too long a fingerprint";
        if (m->lifetime_s != 0 && m->hdr.flags & WIRE_F_ATTACH)
                return "NAMESPACE to attach to, with a lifetime";
        if (bytes != sizeof(*m) + m->name_length + m->fingerprint_length)
                return "NAMESPACE of a wrong length";
        if (wire_name_check((const char *)(m + 1), m->name_length) < 0)
                return "NAMESPACE with a name that is not printable";
        return NULL;
}

/* Checks the pieces of a PUT, or of a GET with a target. Reads each piece and each key once,
 * even if keys share pieces, so that the check takes linear time. */
static const char *check_pieces(const struct wire_batch *m)
{
        const struct wire_piece *piece = wire_batch_pieces(m);
        const struct wire_put *put = (const struct wire_put *)(m + 1);
        const struct wire_get *get = (const struct wire_get *)(m + 1);
        bool puts = m->hdr.op == WIRE_PUT;
        uint64_t before[MAX_PIECES + 1]; /* total size of the pieces before this one */

        before[0] = 0;
        for (unsigned i = 0; i < m->pieces; i++) {
                if (piece[i].length == 0)
                        return "batch with an empty piece";
                before[i + 1] = before[i] + piece[i].length;
        }
        for (unsigned i = 0; i < m->count; i++) {
                uint64_t first = puts ? put[i].offset : get[i].into_offset;
                uint32_t n = puts ? put[i].region : get[i].into_region;
                uint32_t length = puts ? put[i].length : get[i].into_length;

                if (n == 0 || !range_within(first, n, m->pieces))
                        return "batch with a key whose pieces it does not have";
                if (before[first + n] - before[first] != length)
                        return "batch with pieces of another length than their key";
        }
        return NULL;
}

static const char *check_puts(const struct wire_batch *m)
{
        const struct wire_put *put = (const struct wire_put *)(m + 1);

        for (unsigned i = 0; i < m->count; i++)
                if (put[i].reserved != 0)
                        return "PUT with reserved bits";
        return m->hdr.flags & WIRE_F_PIECES ? check_pieces(m) : NULL;
}

static const char *check_gets(const struct wire_batch *m)
{
        const struct wire_get *get = (const struct wire_get *)(m + 1);

        if ((m->hdr.flags & WIRE_F_INTO) && (m->hdr.flags & WIRE_F_LEND))
                return "GET that borrows and has a target";
        if ((m->hdr.flags & WIRE_F_LEASE) && !(m->hdr.flags & WIRE_F_INTO))
                return "GET with the flag for a lease and without a target";
        if (m->hdr.flags & WIRE_F_INTO)
                return m->hdr.flags & WIRE_F_PIECES ? check_pieces(m) : NULL;
        if (m->hdr.flags & WIRE_F_PIECES)
                return "GET with pieces and without the flag for a target";
        for (unsigned i = 0; i < m->count; i++)
                if (get[i].into_offset != 0 || get[i].into_length != 0 || get[i].into_region != 0)
                        return "GET with a target and without the flag for it";
        for (unsigned i = 0; i < m->count && (m->hdr.flags & WIRE_F_LEND); i++)
                if (get[i].range_offset != 0 || get[i].range_length != 0)
                        return "GET that borrows a range";
        return NULL;
}

static const char *check_hint(const struct wire_batch *m)
{
        if (m->hint == 0 || m->hint >= WIRE_HINT_END)
                return "HINT of an unknown kind";
        if ((m->hint == WIRE_HINT_RETURN) != (m->return_s != 0))
                return "HINT with a time that does not fit its kind";
        if (m->tiers != 0 || (m->hint != WIRE_HINT_RETURN && !key_is_root(&m->parent)))
                return "HINT with fields of other batches";
        return NULL;
}

static const char *check_batch(const struct wire_batch *m, size_t bytes)
{
        const struct op_info *op;

        if (bytes < sizeof(*m))
                return "batch shorter than its head";
        op = &ops[m->hdr.op];
        if (m->count > WIRE_MAX_KEYS || m->releases > WIRE_MAX_RELEASES)
                return "batch with too many entries";
        if (m->hdr.op == WIRE_RELEASE ? m->count != 0 : m->count == 0)
                return "batch with an impossible number of entries";
        if (bytes != sizeof(*m) + (size_t)m->count * op->entry_bytes +
                             m->pieces * sizeof(struct wire_piece) +
                             m->releases * sizeof(struct wire_lease))
                return "batch of a wrong length";
        if (m->pieces != 0 && !(m->hdr.flags & WIRE_F_PIECES))
                return "batch with pieces and without the flag for them";
        if (m->hdr.op == WIRE_HINT)
                return check_hint(m);
        if (m->hdr.op == WIRE_PUT ? m->ack > WIRE_DURABLE : m->ack != 0)
                return "batch with an unknown acknowledgement";
        if (m->hdr.op == WIRE_PUT
                    ? m->expects > WIRE_EXPECTS_FINAL && m->expects < WIRE_EXPECTS_RETURN
            : m->hdr.op == WIRE_EVICT ? m->tiers != WIRE_TIER_MEMORY && m->tiers != WIRE_TIER_ALL
                                      : m->tiers != 0)
                return "batch with unknown tiers or an unknown expectation";
        if (!op->parent && !key_is_root(&m->parent))
                return "batch with a parent where none belongs";

        if (m->hdr.op == WIRE_PUT)
                return check_puts(m);
        return m->hdr.op == WIRE_GET ? check_gets(m) : NULL;
}

static const char *check_list(const struct wire_list *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "LIST of a wrong length";
        if (m->max == 0 || m->max > WIRE_MAX_KEYS)
                return "LIST of an impossible number of entries";
        return NULL;
}

static const char *check_purge(const struct wire_purge *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "PURGE of a wrong length";
        if (m->reserved != 0)
                return "PURGE with reserved bits";
        if ((m->hdr.flags & WIRE_F_ALL) && m->namespace_id != 0)
                return "PURGE of everything that names a namespace";
        return NULL;
}

static const char *check_report(const struct wire_report_request *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "REPORT of a wrong length";
        if (m->what >= WIRE_REPORT_END)
                return "REPORT about something unknown";
        if (m->reserved != 0)
                return "REPORT with reserved bits";
        return NULL;
}

static const char *check_verify(const struct wire_verify *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "VERIFY of a wrong length";
        if (m->max_chunks == 0 || m->max_chunks > WIRE_MAX_VERIFY_CHUNKS || m->max_bytes == 0)
                return "VERIFY of an impossible stretch";
        return NULL;
}

static const char *check_device(const struct wire_device *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "DEVICE of a wrong length";
        if (m->action != WIRE_DEVICE_SUSPEND && m->action != WIRE_DEVICE_RESUME)
                return "DEVICE with an unknown action";
        return NULL;
}

static const char *check_namespaces(const struct wire_namespaces *m, size_t bytes)
{
        if (bytes < sizeof(*m))
                return "NAMESPACES shorter than its head";
        if (m->max == 0 || m->max > (m->name_length ? 1 : WIRE_MAX_NAMESPACES))
                return "NAMESPACES of an impossible number of entries";
        if (m->reserved != 0 || (m->name_length > 0 && m->cursor != 0))
                return "NAMESPACES with reserved bits";
        return check_names((const char *)(m + 1), bytes - sizeof(*m), m->name_length,
                           m->tenant_length);
}

static const char *check_namespace_remove(const struct wire_namespace_remove *m, size_t bytes)
{
        if (bytes < sizeof(*m))
                return "NAMESPACE_REMOVE shorter than its head";
        if (m->reserved0 != 0 || m->reserved1 != 0)
                return "NAMESPACE_REMOVE with reserved bits";
        if (m->name_length == 0)
                return "NAMESPACE_REMOVE without a name";
        return check_names((const char *)(m + 1), bytes - sizeof(*m), m->name_length,
                           m->tenant_length);
}

static const char *check_register(const struct wire_register *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "REGISTER of a wrong length";
        if (m->bytes == 0 || m->offset + m->bytes < m->bytes)
                return "REGISTER of an impossible stretch";
        return NULL;
}

static const char *check_unregister(const struct wire_unregister *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "UNREGISTER of a wrong length";
        return m->reserved != 0 ? "UNREGISTER with reserved bits" : NULL;
}

static const char *check_lent_file(const struct wire_lent_file *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "LENT_FILE of a wrong length";
        return m->reserved != 0 ? "LENT_FILE with reserved bits" : NULL;
}

static const char *check_bench(const struct wire_bench *m, size_t bytes)
{
        if (bytes < sizeof(*m) || bytes != sizeof(*m) + m->name_length ||
            m->name_length > WIRE_BENCH_NAME)
                return "BENCH of a wrong length";
        if (m->action == 0 || m->action >= WIRE_BENCH_ACTION_END)
                return "BENCH with an unknown action";
        if (m->action == WIRE_BENCH_INIT ? m->options > WIRE_BENCH_FORCE : m->options != 0)
                return "BENCH with options that its action does not take";
        if (m->action == WIRE_BENCH_INIT ? m->name_length == 0
                                         : m->action == WIRE_BENCH_LIST && m->name_length != 0)
                return "BENCH with a name where none belongs, or without one";
        return m->reserved != 0 ? "BENCH with reserved bits" : NULL;
}

static const char *check_record(const struct wire_record *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "RECORD of a wrong length";
        if (m->duration_s == 0 || m->duration_s > WIRE_MAX_RECORD_S)
                return "RECORD of an impossible duration";
        return m->reserved != 0 ? "RECORD with reserved bits" : NULL;
}

static const char *check_sweep(const struct wire_sweep *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "SWEEP of a wrong length";
        if (m->options & ~(uint32_t)WIRE_SWEEP_DRY_RUN)
                return "SWEEP with unknown options";
        return m->reserved != 0 ? "SWEEP with reserved bits" : NULL;
}

static const char *check_events(const struct wire_events *m, size_t bytes)
{
        if (bytes != sizeof(*m))
                return "EVENTS of a wrong length";
        if (m->kind >= WIRE_EVENTS_END)
                return "EVENTS of an unknown kind";
        if (m->max == 0 || m->max > WIRE_MAX_KEYS)
                return "EVENTS of an impossible number of entries";
        if (m->wait_ms > WIRE_MAX_EVENTS_WAIT_MS)
                return "EVENTS with too long a wait";
        if (m->kind == WIRE_EVENTS_SNAPSHOT && (m->epoch != 0 || m->wait_ms != 0))
                return "EVENTS for a snapshot with an epoch or a wait";
        return m->reserved != 0 ? "EVENTS with reserved bits" : NULL;
}

const char *wire_check_request(const void *msg, size_t bytes)
{
        const struct wire_hdr *hdr = msg;

        if (bytes < sizeof(*hdr))
                return "message shorter than a header";
        if (bytes > WIRE_MAX_MESSAGE)
                return "message longer than allowed";
        if (hdr->len != bytes)
                return "message of another length than it says";
        if (hdr->op >= WIRE_OP_END || !ops[hdr->op].name)
                return "message with an unknown op";
        if (hdr->flags & ~ops[hdr->op].flags)
                return "message with a flag that its op does not take";
        if (ops[hdr->op].batch)
                return check_batch(msg, bytes);

        switch (hdr->op) {
        case WIRE_HELLO:
                return check_hello(msg, bytes);
        case WIRE_PING:
                return bytes > sizeof(*hdr) + WIRE_MAX_PING ? "PING with too long a payload" : NULL;
        case WIRE_NAMESPACE:
                return check_namespace(msg, bytes);
        case WIRE_STAGING:
                return bytes != sizeof(struct wire_staging) ? "STAGING of a wrong length" : NULL;
        case WIRE_LIST:
                return check_list(msg, bytes);
        case WIRE_PURGE:
                return check_purge(msg, bytes);
        case WIRE_REPORT:
                return check_report(msg, bytes);
        case WIRE_VERIFY:
                return check_verify(msg, bytes);
        case WIRE_DEVICE:
                return check_device(msg, bytes);
        case WIRE_BENCH:
                return check_bench(msg, bytes);
        case WIRE_RECORD:
                return check_record(msg, bytes);
        case WIRE_REGISTER:
                return check_register(msg, bytes);
        case WIRE_UNREGISTER:
                return check_unregister(msg, bytes);
        case WIRE_NAMESPACES:
                return check_namespaces(msg, bytes);
        case WIRE_NAMESPACE_REMOVE:
                return check_namespace_remove(msg, bytes);
        case WIRE_LOOKUP:
                return bytes != sizeof(*hdr) ? "LOOKUP of a wrong length" : NULL;
        case WIRE_POOL_INDEX:
                return bytes != sizeof(*hdr) ? "POOL_INDEX of a wrong length" : NULL;
        case WIRE_TRANSFERS:
                return bytes != sizeof(*hdr) ? "TRANSFERS of a wrong length" : NULL;
        case WIRE_RELOAD:
                return bytes != sizeof(*hdr) ? "RELOAD of a wrong length" : NULL;
        case WIRE_SWEEP:
                return check_sweep(msg, bytes);
        case WIRE_EVENTS:
                return check_events(msg, bytes);
        case WIRE_LENT_FILE:
                return check_lent_file(msg, bytes);
        case WIRE_CANCEL:
                return bytes != sizeof(struct wire_cancel) ? "CANCEL of a wrong length" : NULL;
        default:
                return "message with an unknown op";
        }
}
