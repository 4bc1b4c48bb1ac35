/* SPDX-License-Identifier: Apache-2.0 */
/* What all paths must know: namespaces, purges, removals of namespaces, syncs, settled drops.
 *
 * Each such request is spread: a part for each path that is up, one answer when all have come. The
 * answer is listed, and given in a turn (spread_answer_due()). Before the answer to a purge or to
 * drops that somebody has missed, the paths that are up write that down (spread_note()).
 *
 * Loop thread. Owns each struct spread from the request until its last part is back, which may be
 * long after the answer: a part is its volume's until it completes.
 *
 * Failures: a path that is left aside is waited for no longer; what that makes of the answer is a
 * matter of what was asked: a purge or removal holds if one path that is up has it on stable
 * storage, and a path that cannot write it is bypassed if there is another; a sync holds if all
 * kept it; a namespace fails with the first path that is up and fails. Without memory the answer
 * comes within the call. Once the store stops nobody calls for turns: an empty request to the
 * device stands in (nudge()). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "store/paths.h"

enum spread_kind { SPREAD_OPEN, SPREAD_REMOVE, SPREAD_PURGE, SPREAD_SYNC, SPREAD_DROPS };

struct part {
        struct spread *spread;
        unsigned path;
        union {
                struct store_namespace_open open;
                struct store_purge purge;
                struct store_put put;
        };
};

struct spread {
        struct list_node node; /* in store.spreads */
        struct list_node done_node;
        struct store *store;
        enum spread_kind kind;
        struct path_namespace *namespace;  /* until the answer, with a reference: of an open */
        struct store_namespace_open *open; /* who asked, one of these; all NULL: answered */
        struct store_namespace_remove *remove;
        struct store_purge *purge;
        struct store_put *put;
        uint32_t waiting; /* for the parts of these paths */
        uint32_t noting;  /* and that these count the drop */
        bool noted, note_failed;
        uint64_t noting_at; /* sum.missed_at that the notes, or the purge, carry */
        unsigned left;      /* parts that are a volume's */
        unsigned well;      /* that came back with 0 */
        int result;         /* the first that was not */
        bool bad;           /* a part was lost, or failed, on a path that is aside by now */
        struct part parts[STORE_MAX_PATHS], notes[STORE_MAX_PATHS];
};

static struct spread *spread_new(struct store *s, enum spread_kind kind)
{
        struct spread *x = calloc(1, sizeof(*x));

        if (!x)
                return NULL;
        x->store = s;
        x->kind = kind;
        list_init(&x->done_node);
        list_init(&x->node);
        list_append(&s->spreads, &x->node);
        s->waiting++;
        return x;
}

static void spread_answer(struct spread *x)
{
        struct store *s = x->store;
        struct path_namespace *ns = TAKE_PTR(x->namespace);
        struct store_namespace_open *open = TAKE_PTR(x->open);
        struct store_namespace_remove *remove = TAKE_PTR(x->remove);
        struct store_purge *purge = TAKE_PTR(x->purge);
        struct store_put *put = TAKE_PTR(x->put);
        int result = x->result;

        list_unlink(&x->done_node);
        if (x->left == 0) {
                list_unlink(&x->node);
                free(x);
        }
        if (!open && !remove && !purge && !put)
                return;
        s->waiting--;
        if (open) {
                open->result = result;
                open->namespace = result == 0 || result == STORE_MISMATCH ? &ns->seen : NULL;
                open->complete(open);
                path_namespaces_unref(ns);
        } else if (remove) {
                remove->result = result;
                remove->complete(remove);
        } else if (purge) {
                purge->result = result;
                purge->complete(purge);
        } else {
                put->result = result;
                put->complete(put);
        }
}

void spread_answer_due(struct store *s)
{
        struct list_node *n;

        while ((n = list_pop(&s->done))) {
                s->again = true;
                spread_answer(container_of(n, struct spread, done_node));
        }
}

static int do_nothing(struct kio_request *req)
{
        (void)req;
        return 0;
}

static void nudged(struct kio_request *req)
{
        struct store *s = container_of(req, struct store, nudge_io);

        s->nudged = false;
        store_drain(s);
}

/* Something is to be told in a turn; once the store stops, nobody calls for one. */
static void nudge(struct store *s)
{
        if (!s->stopping || s->nudged || !s->io)
                return;
        s->nudged = true;
        s->nudge_io = (struct kio_request){
                .op = KIO_CALL, .class = KIO_CLASS_GET, .call = do_nothing, .complete = nudged
        };
        list_init(&s->nudge_io.node);
        kio_submit(s->io, &s->nudge_io, 0);
        kio_flush(s->io);
}

static bool is_purge(const struct spread *x)
{
        return x->kind == SPREAD_PURGE || x->kind == SPREAD_REMOVE;
}

static void spread_settled(struct spread *x);

static void note_done(struct store_purge *req)
{
        struct part *part = container_of(req, struct part, purge);
        struct spread *x = part->spread;

        x->left--;
        x->noting &= ~(1u << part->path);
        if (req->result < 0 && path_is_up(x->store, part->path)) {
                x->result = STORE_BYPASSED;
                x->note_failed = true;
        }
        spread_settled(x);
}

/* The paths that are up count one more purge, so that a path that is aside is emptied when it comes
 * back: for drops that it has not heard of. */
static void spread_note(struct spread *x)
{
        struct store *s = x->store;

        x->noted = true;
        x->noting_at = s->sum.missed_at;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = &x->notes[i];

                if (!path_is_up(s, i) || x->noting & 1u << i)
                        continue;
                part->spread = x;
                part->path = i;
                part->purge = (struct store_purge){ .complete = note_done };
                x->left++;
                x->noting |= 1u << i;
                volume_purge(s->paths[i].volume, &part->purge, &s->sum);
        }
}

/* All whom somebody waits for have come: the answer is listed. */
static void spread_settled(struct spread *x)
{
        struct store *s = x->store;
        bool asked = x->open || x->remove || x->purge || x->put;

        if (x->waiting != 0 || (x->noting != 0 && asked))
                return;
        if (!asked) {
                if (x->left == 0 && list_empty(&x->done_node)) {
                        list_unlink(&x->node);
                        free(x);
                }
                return;
        }
        if (!list_empty(&x->done_node))
                return;
        if (is_purge(x) && x->result == 0 && x->well > 0 && s->up)
                s->noted_at = MAX(s->noted_at, x->noting_at);
        if ((x->kind == SPREAD_DROPS || is_purge(x)) && set_wants_note(s) && !x->noted && s->up &&
            s->in_set) {
                spread_note(x);
                if (x->noting != 0)
                        return;
        }
        if (x->noted && !x->note_failed && s->up)
                s->noted_at = MAX(s->noted_at, x->noting_at);
        switch (x->kind) {
        case SPREAD_OPEN:
                /* With no path left it lives in memory until one is resumed. */
                x->namespace->opens--;
                if (x->result != 0)
                        path_namespaces_forget(s, x->namespace);
                break;
        case SPREAD_REMOVE:
        case SPREAD_PURGE:
                if (x->well > 0 && s->up && !x->note_failed)
                        x->result = 0;
                else if (x->result >= 0)
                        x->result = -EIO;
                break;
        case SPREAD_SYNC:
                if (x->bad || x->well == 0)
                        x->result = STORE_NOT_DURABLE;
                break;
        case SPREAD_DROPS:
                if (s->drops_forgotten || (x->bad && !s->in_set) ||
                    ((x->bad || x->noted) && !s->up))
                        x->result = STORE_BYPASSED;
                s->drops_forgotten = false;
                break;
        }
        list_append(&s->done, &x->done_node);
        s->again = true;
        if (s->stopping)
                nudge(s);
}

/* A part came back, or its path is waited for no longer. */
static void spread_part(struct spread *x, unsigned path, int result)
{
        struct store *s = x->store;
        struct path *p = &s->paths[path];

        if (!(x->waiting & 1u << path))
                return;
        x->waiting &= ~(1u << path);
        if (result == 0) {
                x->well++;
                return;
        }
        switch (x->kind) {
        case SPREAD_REMOVE:
        case SPREAD_PURGE:
                /* It cannot be purged for good: then it must not be used, unless there is no
                 * other; the answer says so. */
                if (path_is_up(s, path) && (s->up & ~(1u << path)) && s->in_set)
                        volume_bypass(p->volume, x->kind == SPREAD_PURGE
                                                         ? "a purge could not be written"
                                                         : "the removal of a namespace could not "
                                                           "be written");
                if (!path_is_up(s, path))
                        set_path_missed(s, p);
                break;
        case SPREAD_DROPS:
                if (!path_is_up(s, path)) {
                        set_path_missed(s, p);
                        x->bad = true;
                        return;
                }
                break;
        default:
                if (!path_is_up(s, path)) {
                        x->bad = true;
                        return;
                }
        }
        if (x->result == 0)
                x->result = result;
}

/* Nobody waits for this path any more. */
void spread_forget_path(struct store *s, unsigned path)
{
        list_for_each_safe (&s->spreads, n) {
                struct spread *x = container_of(n, struct spread, node);

                if (x->waiting & 1u << path)
                        spread_part(x, path, -EIO);
                x->noting &= ~(1u << path);
                spread_settled(x);
        }
}

void spread_fini(struct store *s)
{
        list_for_each_safe (&s->spreads, n)
                free(container_of(n, struct spread, node));
}

/* --- what is asked of all --- */

/* The path's part of it, under way from here on; NULL: this path is not asked. */
static struct part *part_begin(struct spread *x, unsigned path)
{
        struct part *part = &x->parts[path];

        if (!(x->waiting & 1u << path))
                return NULL;
        part->spread = x;
        part->path = path;
        x->left++;
        return part;
}

static void part_done(struct part *part, int result)
{
        struct spread *x = part->spread;

        x->left--;
        spread_part(x, part->path, result);
        spread_settled(x);
}

static void open_done(struct store_namespace_open *req)
{
        part_done(container_of(req, struct part, open), req->result);
}

void store_namespace_open(struct store *s, struct store_namespace_open *req)
{
        struct spread *x = spread_new(s, SPREAD_OPEN);
        const struct store_namespace *ns;
        int r;

        req->namespace = NULL;
        if (!x) { /* the one answer from within the call: there is no memory to put it off */
                req->result = -ENOMEM;
                req->complete(req);
                return;
        }
        x->open = req;
        r = path_namespaces_prepare(s, req, &x->namespace);
        if (r != 0) {
                x->result = r;
                list_append(&s->done, &x->done_node);
                nudge(s);
                return;
        }
        x->namespace->opens++;
        x->namespace->refused = false;
        ns = &x->namespace->seen;
        x->waiting = s->up;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = part_begin(x, i);

                if (!part)
                        continue;
                part->open = *req;
                part->open.attach = false;
                part->open.fingerprint = ns->fingerprint;
                part->open.fingerprint_length = (uint16_t)strlen(ns->fingerprint);
                part->open.owner = ns->owner;
                part->open.id = ns->id;
                part->open.created_ms = ns->created_ms;
                part->open.complete = open_done;
                volume_namespace_open(s->paths[i].volume, &part->open);
        }
        if (x->waiting == 0)
                spread_settled(x);
}

static void purge_done(struct store_purge *req)
{
        part_done(container_of(req, struct part, purge), req->result);
}

void store_purge(struct store *s, struct store_purge *req)
{
        struct spread *x = spread_new(s, SPREAD_PURGE);

        req->dropped = 0;
        if (!x) {
                req->result = -ENOMEM; /* and nothing is purged */
                req->complete(req);
                return;
        }
        s->purges++;
        s->changes++;
        set_count_purge(s);
        x->noting_at = s->sum.missed_at;
        x->purge = req;
        x->waiting = s->up;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = part_begin(x, i);

                if (!part)
                        continue;
                part->purge = (struct store_purge){
                        .namespace_id = req->namespace_id,
                        .all = req->all,
                        .complete = purge_done,
                };
                volume_purge(s->paths[i].volume, &part->purge, s->in_set ? &s->sum : NULL);
                req->dropped += part->purge.dropped;
        }
        if (x->waiting == 0)
                spread_settled(x);
}

static void remove_done(struct store_purge *req)
{
        part_done(container_of(req, struct part, purge), req->result);
}

/* A purge of what is empty, of which the list is told as well. */
void store_namespace_remove(struct store *s, struct store_namespace_remove *req)
{
        struct path_namespace *ns = path_namespaces_by_id(s, req->id);
        struct spread *x = spread_new(s, SPREAD_REMOVE);
        bool is_empty = true;

        if (!x) {
                req->result = -ENOMEM; /* and nothing is removed */
                req->complete(req);
                return;
        }
        x->remove = req;
        for (unsigned i = 0; i < s->n_paths; i++)
                if (path_is_up(s, i))
                        is_empty =
                                is_empty && volume_namespace_is_empty(s->paths[i].volume, req->id);
        if (!ns || ns->opens > 0 || !is_empty || s->up == 0) {
                x->result = !ns ? STORE_MISS : s->up ? STORE_BUSY : -EIO;
                list_append(&s->done, &x->done_node);
                nudge(s);
                return;
        }
        set_count_purge(s);
        s->sum.removed_at = s->in_set ? s->sum.purges : 0;
        path_namespaces_remove(s, ns);
        x->noting_at = s->sum.missed_at;
        x->waiting = s->up;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = part_begin(x, i);

                if (!part)
                        continue;
                part->purge = (struct store_purge){
                        .namespace_id = req->id,
                        .complete = remove_done,
                };
                volume_namespace_remove(s->paths[i].volume, &part->purge,
                                        s->in_set ? &s->sum : NULL);
        }
        if (x->waiting == 0)
                spread_settled(x);
}

static void put_part_done(struct store_put *req)
{
        part_done(container_of(req, struct part, put), req->result);
}

static void spread_puts(struct store *s, enum spread_kind kind, struct store_put *req,
                        void (*submit)(struct volume *v, struct store_put *req))
{
        struct spread *x = spread_new(s, kind);

        if (!x) {
                req->result = kind == SPREAD_SYNC ? STORE_NOT_DURABLE : STORE_BYPASSED;
                req->complete(req);
                return;
        }
        x->put = req;
        x->waiting = s->up;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = part_begin(x, i);

                if (!part)
                        continue;
                part->put.complete = put_part_done;
                submit(s->paths[i].volume, &part->put);
        }
        if (x->waiting == 0)
                spread_settled(x);
}

void store_sync(struct store *s, struct store_put *req)
{
        spread_puts(s, SPREAD_SYNC, req, volume_sync);
}

void store_settle_drops(struct store *s, struct store_put *req)
{
        spread_puts(s, SPREAD_DROPS, req, volume_settle_drops);
}
