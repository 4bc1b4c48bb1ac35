/* SPDX-License-Identifier: Apache-2.0 */
/* What all paths must know, each by itself: namespaces and purges.
 *
 * Each such request is spread: a part for each path that is up, one answer when all have come. The
 * answer is listed, and given in a turn (spread_answer_due()). A purge that somebody has missed is
 * answered once the paths that are up have written that down (membership-record.c).
 *
 * Loop thread. Owns each struct spread from the request until its last part is back, which may be
 * long after the answer: a part is its volume's until it completes. A spread has room for the paths
 * that are up, and no more: a client may have many of them wait.
 *
 * An open of a name that is being removed waits for the answer to the removal.
 *
 * Failures: a path that is left aside is waited for no longer; what that makes of the answer is a
 * matter of what was asked: a purge holds if every path that is up has it on stable storage, and a
 * path that cannot write it is bypassed if there is another; a namespace fails with the first path
 * that is up and fails. Without memory the answer comes within the call. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "store/internal.h"

enum spread_kind { SPREAD_OPEN, SPREAD_PURGE, SPREAD_REMOVE };

struct part {
        struct spread *spread;
        unsigned path;
        union {
                struct store_namespace_open open;
                struct store_purge purge;
        };
};

struct spread {
        struct list_node node;         /* in store.spreads */
        struct list_node done_node;    /* in store.done; of an open that waits, in store.held */
        struct list_node removal_node; /* in store.removals, until it is answered */
        struct store *store;
        enum spread_kind kind;
        struct path_namespace *namespace;  /* of an open or a removal; a reference */
        struct store_namespace_open *open; /* who asked, one of these; all NULL: answered */
        struct store_namespace_remove *remove;
        struct store_purge *purge;
        char *text;         /* of an open that is held: its name and fingerprint */
        uint32_t waiting;   /* for the parts of these paths */
        uint64_t noting_at; /* sum.missed_at that the purge carries */
        bool settling;      /* it waits for a note; has it asked for one; failures as of then */
        bool noting;
        uint64_t note_failures;
        unsigned left; /* parts that are a volume's */
        unsigned well; /* that came back with 0 */
        int result;    /* the first that was not */
        bool unkept;   /* a path that is up, and stays so, could not write it */
        struct part parts[];
};

/* With a part for each path that is up. */
static struct spread *spread_new(struct store *s, enum spread_kind kind)
{
        struct spread *x;
        unsigned n = 0;

        x = calloc(1, sizeof(*x) + store_paths_up(s) * sizeof(x->parts[0]));
        if (!x)
                return NULL;
        for (unsigned i = 0; i < s->n_paths; i++)
                if (path_is_up(s, i))
                        x->parts[n++] = (struct part){ .spread = x, .path = i };
        x->store = s;
        x->kind = kind;
        x->waiting = s->up;
        list_init(&x->done_node);
        list_init(&x->removal_node);
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
        int result = x->result;

        list_unlink(&x->done_node);
        list_unlink(&x->removal_node);
        if (x->left == 0) {
                list_unlink(&x->node);
                free(x);
        }
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
        path_namespaces_unref(ns);
}

/* Is a namespace of that name being removed? Until that is answered, some path may still have the
 * old one on the disk: if another path had the name by then under another id, a kill would leave
 * lists that contradict each other, and a store that does not open. */
static bool is_being_removed(const struct store *s, const struct store_namespace_open *req)
{
        list_for_each (&s->removals, n) {
                const struct store_namespace *ns =
                        &container_of(n, struct spread, removal_node)->namespace->seen;

                if (ns->tenant == req->tenant && strlen(ns->name) == req->name_length &&
                    memcmp(ns->name, req->name, req->name_length) == 0)
                        return true;
        }
        return false;
}

static void release_held(struct store *s)
{
        list_for_each_safe (&s->held, n) {
                struct spread *x = container_of(n, struct spread, done_node);
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

/* Until the removal is answered. */
static int hold(struct spread *x, struct store_namespace_open *req)
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

static void spread_settled(struct spread *x);

void spread_answer_due(struct store *s)
{
        struct list_node *n;

        list_for_each_safe (&s->spreads, i) {
                struct spread *x = container_of(i, struct spread, node);

                if (x->settling)
                        spread_settled(x);
        }
        while ((n = list_pop(&s->done))) {
                s->again = true;
                spread_answer(container_of(n, struct spread, done_node));
                release_held(s);
        }
}

/* NOTE_WAITS, or the answer. */
static int purge_result(struct spread *x)
{
        struct store *s = x->store;
        int r;

        if (x->result == 0 && x->well > 0 && s->up)
                s->noted_at = MAX(s->noted_at, x->noting_at);
        r = note_settle(s, &x->noting, &x->note_failures);
        x->settling = r == NOTE_WAITS;
        if (r == NOTE_WAITS)
                return r;
        if (r == 0 && x->well > 0 && s->up && !x->unkept)
                return 0;
        return x->result < 0 ? x->result : -EIO;
}

/* All whom somebody waits for have come: the answer is listed. */
static void spread_settled(struct spread *x)
{
        struct store *s = x->store;

        if (x->waiting != 0 || !list_empty(&x->done_node))
                return;
        if (!x->open && !x->remove && !x->purge) {
                if (x->left == 0) {
                        list_unlink(&x->node);
                        free(x);
                }
                return;
        }
        if (x->kind == SPREAD_OPEN) {
                /* With no path left it lives in memory until one is resumed. */
                x->namespace->opens--;
                if (x->result != 0)
                        path_namespaces_forget(s, x->namespace);
        } else {
                int r = purge_result(x);

                if (r == NOTE_WAITS)
                        return;
                x->result = r;
        }
        list_append(&s->done, &x->done_node);
        store_nudge(s);
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
        if (x->kind != SPREAD_OPEN) {
                /* It cannot be purged for good: then it must not be used, unless there is no
                 * other; the answer says so. */
                if (path_is_up(s, path) && (s->up & ~(1u << path)) && s->in_set)
                        volume_bypass(p->volume, x->kind == SPREAD_PURGE
                                                         ? "a purge could not be written"
                                                         : "the removal of a namespace could not "
                                                           "be written");
                if (!path_is_up(s, path)) {
                        p->missed = true;
                        set_path_missed(s, p);
                        if (x->kind == SPREAD_REMOVE)
                                set_note_removal(s);
                } else {
                        x->unkept = true;
                }
        } else if (!path_is_up(s, path)) {
                return;
        }
        if (x->result == 0)
                x->result = result;
}

/* Nobody waits for this path any more. */
void spread_forget_path(struct store *s, unsigned path)
{
        list_for_each_safe (&s->spreads, n) {
                struct spread *x = container_of(n, struct spread, node);

                if (!(x->waiting & 1u << path))
                        continue;
                spread_part(x, path, -EIO);
                spread_settled(x);
        }
}

void spread_fini(struct store *s)
{
        list_for_each_safe (&s->spreads, n) {
                struct spread *x = container_of(n, struct spread, node);

                path_namespaces_unref(x->namespace);
                free(x->text);
                free(x);
        }
}

/* --- what is asked of all --- */

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
        unsigned n = store_paths_up(s);
        int r;

        req->namespace = NULL;
        if (!x) { /* the one answer from within the call: there is no memory to put it off */
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
                r = path_namespaces_prepare(s, req, &x->namespace);
        }
        if (r != 0) {
                x->waiting = 0;
                x->result = r;
                list_append(&s->done, &x->done_node);
                store_nudge(s);
                return;
        }
        x->namespace->opens++;
        x->namespace->refused = false;
        ns = &x->namespace->seen;
        x->left = n;
        for (unsigned i = 0; i < n; i++) {
                struct part *part = &x->parts[i];

                part->open = *req;
                part->open.attach = false;
                part->open.fingerprint = ns->fingerprint;
                part->open.fingerprint_length = (uint16_t)strlen(ns->fingerprint);
                part->open.owner = ns->owner;
                part->open.id = ns->id;
                part->open.created_ms = ns->created_ms;
                part->open.complete = open_done;
                volume_namespace_open(s->paths[part->path].volume, &part->open);
        }
        spread_settled(x);
}

static void purge_done(struct store_purge *req)
{
        struct part *part = container_of(req, struct part, purge);

        if (part->spread->purge)
                part->spread->purge->dropped += req->dropped;
        part_done(part, req->result);
}

void store_purge(struct store *s, struct store_purge *req)
{
        struct spread *x = spread_new(s, SPREAD_PURGE);
        unsigned n = store_paths_up(s);

        req->dropped = 0;
        if (!x) {
                req->result = -ENOMEM; /* and nothing is purged */
                req->complete(req);
                return;
        }
        s->purges++;
        set_note_purge(s);
        x->noting_at = s->sum.missed_at;
        x->purge = req;
        x->left = n;
        for (unsigned i = 0; i < n; i++) {
                struct part *part = &x->parts[i];

                part->purge = (struct store_purge){
                        .namespace_id = req->namespace_id,
                        .all = req->all,
                        .complete = purge_done,
                };
                volume_purge(s->paths[part->path].volume, &part->purge, s->in_set ? &s->sum : NULL);
        }
        spread_settled(x);
        store_sweep(s);
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
        unsigned n = store_paths_up(s);
        bool is_empty = true;

        if (!x) {
                req->result = -ENOMEM; /* and nothing is removed */
                req->complete(req);
                return;
        }
        x->remove = req;
        for (unsigned i = 0; i < n; i++)
                is_empty = is_empty &&
                           volume_namespace_is_empty(s->paths[x->parts[i].path].volume, req->id);
        if (!ns || ns->opens > 0 || !is_empty || n == 0) {
                x->waiting = 0;
                x->result = !ns ? STORE_MISS : n > 0 ? STORE_BUSY : -EIO;
                list_append(&s->done, &x->done_node);
                store_nudge(s);
                return;
        }
        set_note_removal(s);
        x->namespace = path_namespaces_ref(ns);
        list_append(&s->removals, &x->removal_node);
        path_namespaces_remove(s, ns);
        x->noting_at = s->sum.missed_at;
        x->left = n;
        for (unsigned i = 0; i < n; i++) {
                struct part *part = &x->parts[i];

                part->purge = (struct store_purge){
                        .namespace_id = req->id,
                        .complete = remove_done,
                };
                volume_namespace_remove(s->paths[part->path].volume, &part->purge,
                                        s->in_set ? &s->sum : NULL);
        }
        spread_settled(x);
}
