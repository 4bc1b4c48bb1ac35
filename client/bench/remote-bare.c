/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a back end without a daemon; see remote-bare.h. Each slot has memory for one object
 * and one operation; when its operation ends, a slot takes the next object. Payloads are
 * generated before measuring, except the stamps that identify the object. Headers equal those of
 * the daemon, except that the checksum of the payload, which the daemon computes, is 0. */
#include "remote-bare.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "progress.h"
#include "remote/completions.h"

enum { REAP_MOST = 1024, WAIT_MS = 100 };

struct slot {
        struct backend_op op;
        struct remote_bare *bare;
        uint8_t *memory; /* the slot's memory: header and payload of the object */
        uint64_t object, submitted_ns;
};

struct remote_bare {
        struct remote_job job;
        struct backend *backend;
        struct completions completions;
        struct remote_object
                object;  /* members that all objects have in common; object_of() sets the key */
        uint64_t stride; /* size of a slot's memory */
        uint8_t *memory;
        struct slot *slots;
        unsigned in_flight;
        bool hangs; /* some operations never completed; their memory is not freed, because the back
                       end may still use it */

        /* State of the current pass. */
        enum backend_op_kind kind;
        struct remote_figures *figures;
        uint64_t next;
        bool failed;
        char error[REMOTE_ERROR_BYTES];
        int status;
};

/* --- contents --- */

static void object_of(const struct remote_bare *b, uint64_t n, struct remote_object *ret)
{
        *ret = b->object;
        remote_key_of(n, ret->key.bytes);
}

static void name_of(const struct remote_bare *b, uint64_t n, char ret[static REMOTE_NAME_MAX])
{
        struct remote_object o;

        object_of(b, n, &o);
        remote_object_name(b->job.prefix, o.generation, &o.identity, &o.key, ret);
}

static void stamp(const struct remote_bare *b, struct slot *slot)
{
        struct remote_object o;

        object_of(b, slot->object, &o);
        remote_object_write(&o, slot->memory);
        remote_stamp(slot->object, slot->memory + REMOTE_HEADER_BYTES, o.length);
}

static bool is_stamped(const struct remote_bare *b, const struct slot *slot)
{
        struct remote_object want, got;

        object_of(b, slot->object, &want);
        return remote_object_read(slot->memory, slot->op.size, &want, &got) == REMOTE_ACCEPTED &&
               slot->op.transferred == REMOTE_HEADER_BYTES + (uint64_t)want.length &&
               remote_is_stamped(slot->object, slot->memory + REMOTE_HEADER_BYTES, want.length);
}

/* --- a pass --- */

static void fail(struct remote_bare *b, int status, const char *what, const char *why)
{
        if (!b->failed)
                snprintf(b->error, sizeof(b->error), "%s: %s", what, why);
        b->status = b->failed ? b->status : status;
        b->failed = true;
}

static const char *verb_of(enum backend_op_kind kind)
{
        return kind == BACKEND_READ     ? "reading an object"
               : kind == BACKEND_DELETE ? "deleting an object"
                                        : "writing an object";
}

static const char *participle_of(enum backend_op_kind kind)
{
        return kind == BACKEND_READ ? "read" : kind == BACKEND_DELETE ? "deleted" : "written";
}

static void on_ended(struct backend_op *op);

static void submit(struct remote_bare *b, struct slot *slot, uint64_t object)
{
        uint64_t payload = b->kind == BACKEND_DELETE ? 0 : b->job.object_bytes;

        slot->object = object;
        slot->op = (struct backend_op){
                .kind = b->kind,
                .completions = &b->completions,
                .complete = on_ended,
        };
        name_of(b, object, slot->op.name);
        if (b->kind == BACKEND_CREATE)
                stamp(b, slot);
        slot->op.pieces[0] = (struct iovec){ slot->memory, REMOTE_HEADER_BYTES };
        slot->op.pieces[1] = (struct iovec){ slot->memory + REMOTE_HEADER_BYTES, payload };
        if (b->kind == BACKEND_READ) { /* in one piece, as the daemon reads */
                slot->op.pieces[0].iov_len += payload;
                slot->op.pieces[1].iov_len = 0;
        }
        slot->submitted_ns = latency_now_ns();
        slot->op.submitted_ns = slot->submitted_ns;
        slot->op.deadline_ns = slot->submitted_ns + b->job.params.timeout_ns;
        b->in_flight++;
        b->job.engine->submit(b->backend, &slot->op);
}

static bool has_next(const struct remote_bare *b)
{
        return b->next < b->job.objects && !b->failed &&
               (b->kind == BACKEND_DELETE || !*b->job.interrupted);
}

static void on_ended(struct backend_op *op)
{
        struct slot *slot = (struct slot *)op;
        struct remote_bare *b = slot->bare;
        bool gone = op->kind == BACKEND_DELETE && op->result == -ENOENT;

        b->in_flight--;
        if (op->result < 0 && !gone)
                fail(b, EXIT_REFUSED, verb_of(op->kind),
                     *op->error ? op->error : strerror(-op->result));
        else if (op->kind == BACKEND_READ && !is_stamped(b, slot))
                fail(b, EXIT_NOT_FOUND, op->name, "wrong bytes were read");
        else if (b->figures) {
                b->figures->objects++;
                b->figures->bytes += b->job.object_bytes;
                latency_add(&b->figures->times, op->ended_ns - slot->submitted_ns);
        }
        if (has_next(b))
                submit(b, slot, b->next++);
}

static void reap(struct remote_bare *b)
{
        struct pollfd ready = { .fd = b->completions.fd, .events = POLLIN };

        if (poll(&ready, 1, WAIT_MS) > 0)
                completions_reap(&b->completions, REAP_MOST);
}

/* Waits until no operation is in flight. If none completes for twice the timeout of an operation
 * after all were submitted, sets `hangs` and returns. */
static void wait_for_all(struct remote_bare *b)
{
        struct progress progress;
        uint64_t last = latency_now_ns();
        unsigned before = b->in_flight;

        progress_init(&progress);
        while (b->in_flight > 0 && !b->hangs) {
                progress_note(&progress, (double)b->next / (double)b->job.objects,
                              participle_of(b->kind), b->next, "object");
                reap(b);
                if (b->in_flight != before || has_next(b))
                        last = latency_now_ns();
                before = b->in_flight;
                b->hangs = latency_now_ns() - last > 2 * b->job.params.timeout_ns;
        }
        progress_end(&progress);
}

static int run(struct remote_bare *b, enum backend_op_kind kind, struct remote_figures *figures)
{
        uint64_t begun = latency_now_ns();

        b->kind = kind;
        b->figures = figures;
        b->next = 0;
        b->failed = false;
        for (unsigned i = 0; i < b->job.depth && has_next(b); i++)
                submit(b, &b->slots[i], b->next++);
        wait_for_all(b);
        if (figures) {
                figures->ns = latency_now_ns() - begun;
                figures->measured = true;
        }
        if (b->hangs)
                return complain(
                        EXIT_REFUSED,
                        "%s: %u operations did not complete within twice their timeout: check "
                        "the back end",
                        b->job.engine->name, b->in_flight);
        if (b->failed)
                return complain(b->status, "%s: %s", b->job.engine->name, b->error);
        return kind != BACKEND_DELETE && *b->job.interrupted ? EXIT_INTERRUPTED : EXIT_OK;
}

int remote_bare_write(struct remote_bare *b, struct remote_figures *ret)
{
        return run(b, BACKEND_CREATE, ret);
}

int remote_bare_read(struct remote_bare *b, struct remote_figures *ret)
{
        for (unsigned i = 0; i < b->job.depth; i++) /* forget the results of writing */
                memset(b->slots[i].memory, 0, b->stride);
        return run(b, BACKEND_READ, ret);
}

int remote_bare_delete(struct remote_bare *b)
{
        return run(b, BACKEND_DELETE, NULL);
}

int remote_bare_delete_of(struct remote_bare *b, const struct remote_identity *identity,
                          uint64_t generation)
{
        b->object.identity = *identity;
        b->object.generation = generation;
        return remote_bare_delete(b);
}

/* --- creating and freeing --- */

static int make_memory(struct remote_bare *b)
{
        b->stride = round_up(REMOTE_HEADER_BYTES + b->job.object_bytes, REMOTE_STAMP_BYTES);
        b->slots = calloc(b->job.depth, sizeof(*b->slots));
        b->memory = aligned_alloc(REMOTE_STAMP_BYTES, b->stride * b->job.depth);
        if (!b->slots || !b->memory)
                return complain_memory();
        remote_fill(b->memory, b->stride * b->job.depth);
        for (unsigned i = 0; i < b->job.depth; i++) {
                b->slots[i].bare = b;
                b->slots[i].memory = b->memory + i * b->stride;
        }
        return EXIT_OK;
}

int remote_bare_new(struct remote_bare **ret, const struct remote_job *job)
{
        struct remote_bare *b = calloc(1, sizeof(*b));
        char error[256] = "";
        int status, r;

        if (!b)
                return complain_memory();
        b->job = *job;
        b->completions.fd = -1;
        b->object = (struct remote_object){
                .generation = 1,
                .length = (uint32_t)job->object_bytes,
                .created_ms = latency_unix_ms(),
        };
        status = make_memory(b);
        if (status == EXIT_OK && completions_init(&b->completions) < 0)
                status = complain_memory();
        if (status == EXIT_OK) {
                r = job->engine->open(&b->backend, &b->job.params, error);
                if (r < 0)
                        status = complain(EXIT_REFUSED, "%s: %s", job->engine->name,
                                          *error ? error : strerror(-r));
        }
        if (status != EXIT_OK)
                b = remote_bare_free(b);
        else
                *ret = b;
        return status;
}

struct remote_bare *remote_bare_free(struct remote_bare *b)
{
        if (!b)
                return NULL;
        if (b->backend) {
                b->job.engine->stop(b->backend);
                b->job.engine->close(b->backend);
        }
        if (b->hangs)
                return NULL;
        if (b->completions.fd >= 0)
                completions_fini(&b->completions);
        free(b->memory);
        free(b->slots);
        free(b);
        return NULL;
}
