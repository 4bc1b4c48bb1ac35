/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a mapping: the first buffer of a range has it charged and mapped -> others that name
 * this range, or a part of it, join, even during the mapping -> each leaves -> the last one removes
 * it from the table, so that no more can join, and has it unmapped -> it is uncharged and freed.
 *
 * A mapping in the table keeps its file: by a descriptor until it is mapped, then by the mapping
 * itself. So no other file has the same device and inode number meanwhile, except if the kernel's
 * counter has wrapped, which the time of birth reveals.
 *
 * Failures: if mapping fails, all shares that have joined fail, after the mapping has left the
 * table. */
#include "request/mapping.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "units.h"

enum {
        BUCKETS = 1024,
        /* Most mappings of a bucket that are examined, the latest first, so that a client that maps
         * one file in thousands of ranges does not slow itself down. */
        VISITED_MAX = 256,
};

enum mapping_state {
        MAPPING_OPENING,
        MAPPING_OPEN,
        MAPPING_CLOSING, /* the mapping is no longer in the table, so that no further buffer can
                          * share it */
};

struct mapping {
        struct list_node node; /* in its bucket */
        enum mapping_state state;
        struct tenant *tenant;
        struct quota_holder charge; /* charged to the user that owns the mapping */
        struct region_identity file;
        uint64_t offset, bytes;
        struct region memory;
        uint64_t ring_bytes, huge_bytes; /* included in the tenant's sums */

        struct list_node waiting;   /* struct mapping_share: wait for the mapping */
        struct list_node users;     /* struct mapping_share: can use the mapping */
        uint32_t n_shares;          /* number of shares in both lists */
        struct mapping_share *last; /* the last share to leave; its closed() is called after the
                                     * unmapping */
};

struct mappings {
        struct list_node buckets[BUCKETS];
        uint64_t n;
};

int mappings_new(struct mappings **ret)
{
        struct mappings *all = calloc(1, sizeof(*all));

        if (!all)
                return -ENOMEM;
        for (unsigned i = 0; i < BUCKETS; i++)
                list_init(&all->buckets[i]);
        *ret = all;
        return 0;
}

struct mappings *mappings_free(struct mappings *all)
{
        assert(!all || all->n == 0);
        free(all);
        return NULL;
}

/* --- the table of mappings --- */

static bool is_same_file(const struct region_identity *a, const struct region_identity *b)
{
        return a->inode == b->inode && a->device == b->device && a->born_ns == b->born_ns;
}

static struct list_node *bucket_of(struct mappings *all, const struct quota_user *user,
                                   const struct region_identity *file)
{
        uint64_t h = (uintptr_t)user;

        h = (h ^ file->device) * UINT64_C(0x9E3779B97F4A7C15);
        h = (h ^ h >> 32 ^ file->inode) * UINT64_C(0xD6E8FEB86659FD93);
        return &all->buckets[(h ^ h >> 32) % BUCKETS];
}

/* Returns the user's mapping that contains the whole range, or NULL if there is none among the
 * first VISITED_MAX of the bucket. */
static struct mapping *find(struct list_node *bucket, const struct quota_user *user,
                            const struct region_file *file)
{
        unsigned visited = 0;

        list_for_each (bucket, n) {
                struct mapping *m = container_of(n, struct mapping, node);

                if (m->charge.user == user && is_same_file(&m->file, &file->identity) &&
                    file->offset >= m->offset &&
                    range_within(file->offset - m->offset, file->bytes, m->bytes))
                        return m;
                if (++visited == VISITED_MAX)
                        break;
        }
        return NULL;
}

/* --- releasing shares, and unmapping --- */

static void mapping_free(struct mapping *m)
{
        quota_holder_close(&m->charge);
        m->tenant->mappings->n--;
        free(m);
}

static void on_closed(struct region *memory)
{
        struct mapping *m = container_of(memory, struct mapping, memory);
        struct mapping_share *last = m->last;

        m->tenant->registered.ring_bytes -= m->ring_bytes;
        m->tenant->registered.huge_bytes -= m->huge_bytes;
        mapping_free(m);
        last->closed(last);
}

void mapping_release(struct mapping_share *s)
{
        struct mapping *m = TAKE_PTR(s->mapping);

        assert(m->state == MAPPING_OPEN);
        list_unlink(&s->node);
        if (--m->n_shares > 0) {
                m->tenant->registered.shared--;
                s->closed(s);
                return;
        }
        list_unlink(&m->node);
        m->state = MAPPING_CLOSING;
        m->last = s;
        region_close(&m->memory);
}

/* --- creation --- */

static void on_registered(struct region *memory)
{
        struct mapping *m = container_of(memory, struct mapping, memory);
        const struct kio_region *io = &memory->in_rings;
        struct tenant *tenant = m->tenant;
        char registered[UNITS_TEXT], all[UNITS_TEXT];
        uint32_t held_back;

        m->ring_bytes = io->registered_bytes;
        m->huge_bytes = io->huge_bytes;
        tenant->registered.ring_bytes += m->ring_bytes;
        tenant->registered.huge_bytes += m->huge_bytes;
        if (io->result >= 0 || io->result == -EOPNOTSUPP)
                return;
        tenant->registered.refused++;
        if (log_ratelimit_pass(&tenant->region_lines, &held_back))
                log_warning("tenant %s: the I/O rings registered %s of a client's %s of registered "
                            "memory: %s; I/O to the rest uses more CPU time",
                            tenant_name(tenant), units_bytes(io->registered_bytes, registered),
                            units_bytes(io->bytes, all),
                            io->result == -ENOMEM
                                    ? "RLIMIT_MEMLOCK is too small (LimitMEMLOCK=infinity in the "
                                      "unit, or \"ulimit -l unlimited\")"
                            : io->result == -ENOSPC ? "the table of the rings is full"
                                                    : strerror(-io->result));
}

static void fail_all(struct mapping *m, int result)
{
        struct list_node shares;

        list_unlink(&m->node);
        m->tenant->registered.shared -= m->n_shares - 1;
        list_init(&shares);
        list_splice(&shares, &m->waiting);
        mapping_free(m);
        while (!list_empty(&shares)) {
                struct mapping_share *s =
                        container_of(list_pop(&shares), struct mapping_share, node);

                s->mapping = NULL;
                s->opened(s, result);
        }
}

static void on_opened(struct region *memory, int result)
{
        struct mapping *m = container_of(memory, struct mapping, memory);

        if (result < 0) {
                fail_all(m, result);
                return;
        }
        m->state = MAPPING_OPEN;
        /* opened() may release shares, even the last one; the mapping stays until it is
         * unmapped. */
        while (!list_empty(&m->waiting)) {
                struct mapping_share *s =
                        container_of(list_pop(&m->waiting), struct mapping_share, node);

                list_append(&m->users, &s->node);
                s->opened(s, 0);
        }
}

static enum wire_status mapping_new(struct mapping **ret, struct client *client,
                                    struct list_node *bucket, struct region_file *file)
{
        struct tenant *tenant = client->tenant;
        enum wire_status status = client_charge(client, QUOTA_REGISTERED_BYTES, file->bytes);
        struct mapping *m;

        if (status != WIRE_OK)
                return status;
        m = calloc(1, sizeof(*m));
        if (!m) {
                quota_uncharge(&client->holds, QUOTA_REGISTERED_BYTES, file->bytes);
                return WIRE_BUSY;
        }
        *m = (struct mapping){
                .tenant = tenant,
                .file = file->identity,
                .offset = file->offset,
                .bytes = file->bytes,
                .memory = { .io = tenant->service->io,
                            .opened = on_opened,
                            .registered = on_registered,
                            .closed = on_closed },
        };
        /* The charge may outlive the connection. */
        quota_hand_over(&m->charge, &client->holds, QUOTA_REGISTERED_BYTES, m->bytes);
        list_init(&m->waiting);
        list_init(&m->users);
        list_prepend(bucket, &m->node);
        tenant->mappings->n++;
        region_open(&m->memory, TAKE_FD(file->fd), m->offset, m->bytes);
        *ret = m;
        return WIRE_OK;
}

enum wire_status mapping_acquire(struct mapping_share *s, struct client *client,
                                 struct region_file *file, bool *ret_open)
{
        const struct quota_user *user = client_user(client);
        struct list_node *bucket = bucket_of(client->tenant->mappings, user, &file->identity);
        struct mapping *m = find(bucket, user, file);

        if (m) {
                client->tenant->registered.shared++;
        } else {
                enum wire_status status = mapping_new(&m, client, bucket, file);

                if (status != WIRE_OK)
                        return status;
        }
        s->mapping = m;
        s->offset = file->offset - m->offset;
        m->n_shares++;
        *ret_open = m->state == MAPPING_OPEN;
        list_append(*ret_open ? &m->users : &m->waiting, &s->node);
        return WIRE_OK;
}

void *mapping_at(const struct mapping_share *s, uint64_t offset, uint64_t length,
                 struct kio_region **ret_region)
{
        uint64_t at;

        *ret_region = &s->mapping->memory.in_rings;
        return checked_add(s->offset, offset, &at) ? region_at(&s->mapping->memory, at, length)
                                                   : NULL;
}
