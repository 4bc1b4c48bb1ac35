/* SPDX-License-Identifier: Apache-2.0 */
/* Fans out requests that every volume must carry out: opens and removals of namespaces, and purges.
 *
 * Each request becomes one request per volume that is up, and is answered when all have ended.
 * Answers are queued and given in an iteration (fan_out_answer_due()). A purge that a volume misses
 * is answered once the volumes that are up have recorded the miss (membership-record.c).
 *
 * Loop thread. Owns each struct fan_out until its last request has ended, which may be long after
 * the answer, because a volume uses its request until it completes. A struct fan_out has room only
 * for the volumes that are up, because a client may have many requests waiting.
 *
 * An open of a name that is being removed waits for the answer to the removal.
 *
 * Failures: a bypassed volume is not waited for. Its effect on the answer depends on the request. A
 * purge succeeds if every volume that is up has it on stable storage; a volume that cannot write it
 * is bypassed if there is another. An open fails with the error of the first volume that is up and
 * fails. If memory is short, complete() is called from within the call. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "store/internal.h"

enum fan_out_kind { FAN_OUT_OPEN, FAN_OUT_PURGE, FAN_OUT_REMOVE };

/* The part of a request that one volume carries out. */
struct volume_request {
        struct fan_out *fan_out;
        unsigned volume;
        union {
                struct store_namespace_open open;
                struct store_purge purge;
        };
};

struct fan_out {
        struct list_node node;         /* in store.fan_outs */
        struct list_node done_node;    /* in store.done, or in store.held for an open that waits */
        struct list_node removal_node; /* in store.removals until the removal is answered */
        struct store *store;
        enum fan_out_kind kind;
        struct set_namespace *namespace;   /* for an open or a removal, with a reference */
        struct store_namespace_open *open; /* the caller's request: one of these three is set, and
                                              none once it is answered */
        struct store_namespace_remove *remove;
        struct store_purge *purge;
        char *text;         /* copies of name and fingerprint of an open that is held */
        uint32_t waiting;   /* volumes that have not answered, by bit */
        uint64_t noting_at; /* store.recorded_at when the purge or removal was submitted */
        bool settling;      /* the answer waits until the record of missed purges is written; see
                               membership_record_settle() */
        bool noting;
        uint64_t note_failures;
        unsigned left;                    /* number of requests that a volume still uses */
        unsigned succeeded;               /* number of volumes' requests that ended with 0 */
        int result;                       /* first result of a volume's request other than 0 */
        bool unkept;                      /* a volume that stays in use could not write the purge */
        struct volume_request requests[]; /* a request for each volume that was up */
};

size_t store_fan_out_bytes(const struct store *s)
{
        return sizeof(struct fan_out) + s->n_volumes * sizeof(struct volume_request);
}

/* Creates a fan-out with a request for each volume that is up. Returns NULL if memory is short. */
static struct fan_out *fan_out_new(struct store *s, enum fan_out_kind kind)
{
        struct fan_out *x;
        unsigned n = 0;

        x = calloc(1, sizeof(*x) + store_volumes_up(s) * sizeof(x->requests[0]));
        if (!x)
                return NULL;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i))
                        x->requests[n++] = (struct volume_request){ .fan_out = x, .volume = i };
        x->store = s;
        x->kind = kind;
        x->waiting = s->up;
        list_init(&x->done_node);
        list_init(&x->removal_node);
        list_init(&x->node);
        list_append(&s->fan_outs, &x->node);
        s->waiting++;
        return x;
}

static bool is_answered(const struct fan_out *x)
{
        return !x->open && !x->remove && !x->purge;
}

/* Queues the fan-out for fan_out_answer_due(). */
static void list_answer(struct fan_out *x)
{
        list_append(&x->store->done, &x->done_node);
        store_nudge(x->store);
}

/* Frees the fan-out if no volume uses a request of it. */
static void free_if_back(struct fan_out *x)
{
        if (x->left > 0)
                return;
        list_unlink(&x->node);
        free(x);
}

/* Completes the caller's request. Frees the fan-out unless a volume still uses a request of it. */
static void fan_out_answer(struct fan_out *x)
{
        struct store *s = x->store;
        struct set_namespace *ns = TAKE_PTR(x->namespace);
        struct store_namespace_open *open = TAKE_PTR(x->open);
        struct store_namespace_remove *remove = TAKE_PTR(x->remove);
        struct store_purge *purge = TAKE_PTR(x->purge);
        int result = x->result;

        list_unlink(&x->done_node);
        list_unlink(&x->removal_node);
        free_if_back(x);
        if (!open && !remove && !purge)
                return;
        s->waiting--;
        if (open) {
                open->result = result;
                open->namespace = result == 0 || result == STORE_MISMATCH ? &ns->seen : NULL;
                open->complete(open);
        } else if (remove) {
                remove->result = result;
                remove->complete(remove);
        } else {
                purge->result = result;
                purge->complete(purge);
        }
        set_namespaces_unref(ns);
}

/* Returns whether a namespace of the name in `req` is being removed. Until the removal is answered,
 * a volume may still have the old namespace on disk. If another volume already had the name under
 * another id, a crash would leave contradictory lists, and the store would not open. */
static bool is_being_removed(const struct store *s, const struct store_namespace_open *req)
{
        list_for_each (&s->removals, n) {
                const struct store_namespace *ns =
                        &container_of(n, struct fan_out, removal_node)->namespace->seen;

                if (ns->tenant == req->tenant && strlen(ns->name) == req->name_length &&
                    memcmp(ns->name, req->name, req->name_length) == 0)
                        return true;
        }
        return false;
}

/* Submits the opens again that were held because of a removal that has been answered. */
static void release_held(struct store *s)
{
        list_for_each_safe (&s->held, n) {
                struct fan_out *x = container_of(n, struct fan_out, done_node);
                struct store_namespace_open *req = x->open;
                char *text = x->text;

                if (is_being_removed(s, req))
                        continue;
                list_unlink(&x->done_node);
                list_unlink(&x->node);
                free(x);
                s->waiting--;
                store_namespace_open(s, req);
                free(text);
        }
}

/* Holds an open back until the removal is answered, and copies its texts. */
static int hold(struct fan_out *x, struct store_namespace_open *req)
{
        x->text = malloc((size_t)req->name_length + req->fingerprint_length + 1);
        if (!x->text)
                return -ENOMEM;
        memcpy(x->text, req->name, req->name_length);
        if (req->fingerprint_length > 0)
                memcpy(x->text + req->name_length, req->fingerprint, req->fingerprint_length);
        req->name = x->text;
        req->fingerprint = x->text + req->name_length;
        x->waiting = 0;
        list_append(&x->store->held, &x->done_node);
        return 0;
}

static void fan_out_settled(struct fan_out *x);

void fan_out_answer_due(struct store *s)
{
        struct list_node *n;

        list_for_each_safe (&s->fan_outs, i) {
                struct fan_out *x = container_of(i, struct fan_out, node);

                if (x->settling)
                        fan_out_settled(x);
        }
        while ((n = list_pop(&s->done))) {
                s->again = true;
                fan_out_answer(container_of(n, struct fan_out, done_node));
                release_held(s);
        }
}

/* Returns the result of a purge or removal. If the answer must wait for the record of missed
 * purges, sets `settling`, and the value is not used. */
static int purge_result(struct fan_out *x)
{
        struct store *s = x->store;
        int r;

        if (x->result == 0 && x->succeeded > 0 && s->up)
                s->noted_at = MAX(s->noted_at, x->noting_at);
        r = membership_record_settle(s, &x->noting, &x->note_failures);
        x->settling = r == MEMBERSHIP_RECORD_WAITS;
        if (x->settling)
                return x->result;
        if (r == 0 && x->succeeded > 0 && s->up && !x->unkept)
                return 0;
        return x->result < 0 ? x->result : -EIO;
}

/* Returns the result of an open. If no volume is up, the open succeeds, and the namespace exists in
 * memory only until a volume is resumed. */
static int open_result(struct fan_out *x)
{
        x->namespace->opens--;
        if (x->result != 0)
                set_namespaces_forget(x->store, x->namespace);
        return x->result;
}

/* Queues the answer once every volume has answered or is no longer waited for. */
static void fan_out_settled(struct fan_out *x)
{
        if (x->waiting != 0 || !list_empty(&x->done_node))
                return;
        if (is_answered(x)) {
                free_if_back(x);
                return;
        }
        x->result = x->kind == FAN_OUT_OPEN ? open_result(x) : purge_result(x);
        if (!x->settling)
                list_answer(x);
}

/* Notes the result of one volume's request, or that the volume is no longer waited for. */
static void fan_out_request_ended(struct fan_out *x, unsigned volume, int result)
{
        struct store *s = x->store;
        struct member *p = &s->volumes[volume];

        if (!(x->waiting & 1u << volume))
                return;
        x->waiting &= ~(1u << volume);
        if (result == 0) {
                x->succeeded++;
                return;
        }
        if (x->kind != FAN_OUT_OPEN) {
                /* A volume that cannot write a purge or removal is bypassed, because the purged
                 * chunks or the namespace could return. If no other volume is up, the volume stays
                 * in use, and the request fails. */
                if (member_is_up(s, volume) && (s->up & ~(1u << volume)) && s->in_set)
                        volume_bypass(p->volume, x->kind == FAN_OUT_PURGE
                                                         ? "a purge could not be written"
                                                         : "the removal of a namespace could not "
                                                           "be written");
                if (!member_is_up(s, volume)) {
                        p->missed = true;
                        membership_volume_missed(s, p);
                        if (x->kind == FAN_OUT_REMOVE)
                                membership_record_removal(s);
                } else {
                        x->unkept = true;
                }
        } else if (!member_is_up(s, volume)) {
                return;
        }
        if (x->result == 0)
                x->result = result;
}

void fan_out_forget_volume(struct store *s, unsigned volume)
{
        list_for_each_safe (&s->fan_outs, n) {
                struct fan_out *x = container_of(n, struct fan_out, node);

                if (!(x->waiting & 1u << volume))
                        continue;
                fan_out_request_ended(x, volume, -EIO);
                fan_out_settled(x);
        }
}

void fan_out_fini(struct store *s)
{
        list_for_each_safe (&s->fan_outs, n) {
                struct fan_out *x = container_of(n, struct fan_out, node);

                set_namespaces_unref(x->namespace);
                free(x->text);
                free(x);
        }
}

/* --- opens, purges and removals --- */

static void request_done(struct volume_request *request, int result)
{
        struct fan_out *x = request->fan_out;

        x->left--;
        fan_out_request_ended(x, request->volume, result);
        fan_out_settled(x);
}

static void open_done(struct store_namespace_open *req)
{
        request_done(container_of(req, struct volume_request, open), req->result);
}

void store_namespace_open(struct store *s, struct store_namespace_open *req)
{
        struct fan_out *x = fan_out_new(s, FAN_OUT_OPEN);
        const struct store_namespace *ns;
        unsigned n = store_volumes_up(s);
        int r;

        req->namespace = NULL;
        if (!x) { /* complete() is called from within the call, because memory is too short to defer
                     it */
                req->result = -ENOMEM;
                req->complete(req);
                return;
        }
        x->open = req;
        if (is_being_removed(s, req)) {
                r = hold(x, req);
                if (r == 0)
                        return;
        } else {
                r = set_namespaces_prepare(s, req, &x->namespace);
        }
        if (r != 0) {
                x->waiting = 0;
                x->result = r;
                list_answer(x);
                return;
        }
        x->namespace->opens++;
        x->namespace->refused = false;
        ns = &x->namespace->seen;
        x->left = n;
        for (unsigned i = 0; i < n; i++) {
                struct volume_request *request = &x->requests[i];

                request->open = *req;
                request->open.attach = false;
                request->open.fingerprint = ns->fingerprint;
                request->open.fingerprint_length = (uint16_t)strlen(ns->fingerprint);
                request->open.owner = ns->owner;
                request->open.id = ns->id;
                request->open.created_ms = ns->created_ms;
                request->open.lifetime_s = ns->lifetime_s;
                request->open.complete = open_done;
                volume_namespace_open(s->volumes[request->volume].volume, &request->open);
        }
        fan_out_settled(x);
}

static void purge_done(struct store_purge *req)
{
        struct volume_request *request = container_of(req, struct volume_request, purge);

        if (request->fan_out->purge)
                request->fan_out->purge->dropped += req->dropped;
        request_done(request, req->result);
}

void store_purge(struct store *s, struct store_purge *req)
{
        struct fan_out *x = fan_out_new(s, FAN_OUT_PURGE);
        unsigned n = store_volumes_up(s);

        req->dropped = 0;
        if (!x) {
                req->result = -ENOMEM; /* nothing is purged */
                req->complete(req);
                return;
        }
        s->purges++;
        membership_record_purge(s);
        x->noting_at = s->recorded_at;
        x->purge = req;
        x->left = n;
        for (unsigned i = 0; i < n; i++) {
                struct volume_request *request = &x->requests[i];

                request->purge = (struct store_purge){
                        .namespace_id = req->namespace_id,
                        .all = req->all,
                        .complete = purge_done,
                };
                volume_purge(s->volumes[request->volume].volume, &request->purge,
                             s->in_set ? &s->sum : NULL);
        }
        fan_out_settled(x);
        store_sweep(s);
}

static void remove_done(struct store_purge *req)
{
        request_done(container_of(req, struct volume_request, purge), req->result);
}

/* Removes a namespace: acts like a purge of an empty namespace that also takes the namespace off
 * the list. */
void store_namespace_remove(struct store *s, struct store_namespace_remove *req)
{
        struct set_namespace *ns = set_namespaces_by_id(s, req->id);
        struct fan_out *x = fan_out_new(s, FAN_OUT_REMOVE);
        unsigned n = store_volumes_up(s);
        bool is_empty = true;

        if (!x) {
                req->result = -ENOMEM; /* nothing is removed */
                req->complete(req);
                return;
        }
        x->remove = req;
        for (unsigned i = 0; i < n; i++)
                is_empty = is_empty && volume_namespace_is_empty(
                                               s->volumes[x->requests[i].volume].volume, req->id);
        if (!ns || ns->opens > 0 || !is_empty || n == 0) {
                x->waiting = 0;
                x->result = !ns ? STORE_MISS : n > 0 ? STORE_BUSY : -EIO;
                list_answer(x);
                return;
        }
        membership_record_removal(s);
        x->namespace = set_namespaces_ref(ns);
        list_append(&s->removals, &x->removal_node);
        set_namespaces_remove(s, ns);
        x->noting_at = s->recorded_at;
        x->left = n;
        for (unsigned i = 0; i < n; i++) {
                struct volume_request *request = &x->requests[i];

                request->purge = (struct store_purge){
                        .namespace_id = req->id,
                        .complete = remove_done,
                };
                volume_namespace_remove(s->volumes[request->volume].volume, &request->purge,
                                        s->in_set ? &s->sum : NULL);
        }
        fan_out_settled(x);
}
