/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the list of namespaces; see namespace.h. Runs on the loop thread. Owns the list, one
 * buffer and the files "namespaces.0" and "namespaces.1", whose format namespace-file.c implements.
 *
 * Each change raises the generation of the list, and the request for it waits: a namespace is made
 * or removed, a lifetime is set, or a purge is recorded. One write runs at a time: a worker
 * assembles the whole list, which may be megabytes; the list is written to one file and synced; the
 * waiting requests are answered; and the same bytes are written to the other file. The first write
 * always goes to the file that does not hold the newest copy known to be whole (`good`). So a crash
 * tears at most that file, and the other one holds everything that was answered. When no write is
 * pending, both files have the same content, so damage to one of them loses nothing.
 *
 * A new namespace gets the volume's present sequence as its purge sequence, so table entries of an
 * earlier namespace with the same id are dead. Recovery reserves the ids that it finds in the
 * table.
 *
 * Failures: the requests that wait for a write or sync are answered with its error. The content of
 * the file is then unknown, so this file is written next, with the next change or after a pause
 * that doubles up to RETRY_MAX_NS. A generation that may be on the disk is never used for other
 * content. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/search.h"
#include "checked.h"
#include "store/volume/namespace-internal.h"

enum { MOST_TRIES = 2 }; /* most repetitions of a write that fails for lack of room */
#define RETRY_MIN_NS (UINT64_C(50) * 1000000)    /* first pause after a failed write */
#define RETRY_MAX_NS (UINT64_C(10) * 1000000000) /* longest pause after a failed write */

struct namespace *namespace_free(struct namespace *ns)
{
        if (!ns)
                return NULL;
        free((char *)ns->seen.name);
        free(ns->text);
        free(ns);
        return NULL;
}

int namespace_new(struct namespace **ret, const char *name, size_t name_length,
                  const char *fingerprint, size_t fingerprint_length)
{
        struct namespace *ns = calloc(1, sizeof(*ns));

        if (!ns)
                return -ENOMEM;
        ns->seen.name = strndup(name, name_length);
        ns->text = calloc(1, namespace_text_bytes(name_length, fingerprint_length) + 1);
        if (!ns->seen.name || !ns->text) {
                namespace_free(ns);
                return -ENOMEM;
        }
        memcpy(ns->text, name, name_length);
        memcpy(ns->text + name_length, fingerprint, fingerprint_length);
        ns->seen.fingerprint = ns->text + name_length;
        ns->name_length = (uint16_t)name_length;
        ns->fingerprint_length = (uint16_t)fingerprint_length;
        list_init(&ns->dropped);
        *ret = ns;
        return 0;
}

/* Returns the hash of a namespace's name. It is keyed with the volume's uuid, which no client can
 * read. */
static uint64_t hash_name(const struct namespaces *n, uint16_t tenant, const char *name,
                          size_t length)
{
        struct key_secret secret;

        static_assert(sizeof(secret) == DISK_UUID_BYTES, "a uuid keys the hash");
        memcpy(&secret, n->uuid, sizeof(secret));
        return names_hash(&secret, tenant, name, length);
}

int namespaces_append(struct namespaces *n, struct namespace *ns)
{
        if (n->count == n->room) {
                unsigned room = n->room ? 2 * n->room : 16;
                void *p = realloc(n->list, room * sizeof(struct namespace *));

                if (!p)
                        return -ENOMEM;
                n->list = p;
                n->room = room;
        }
        n->list[n->count++] = ns;
        names_insert(&n->names, &ns->node,
                     hash_name(n, ns->seen.tenant, ns->seen.name, ns->name_length));
        return 0;
}

struct namespaces *namespaces_free(struct namespaces *n)
{
        if (!n)
                return NULL;
        for (unsigned i = 0; i < n->count; i++)
                namespace_free(n->list[i]);
        for (unsigned i = 0; i < DISK_NAMESPACE_FILES; i++)
                if (n->fds[i] >= 0)
                        close(n->fds[i]);
        free(n->list);
        free(n->buf);
        free(n->records);
        free(n->pieces);
        free(n);
        return NULL;
}

void namespaces_set_io(struct namespaces *n, struct kio *io, unsigned volume,
                       void (*progress)(void *userdata), bool (*make_room)(void *userdata),
                       void *userdata)
{
        n->io = io;
        n->volume = volume;
        n->progress = progress;
        n->make_room = make_room;
        n->userdata = userdata;
}

uint64_t namespaces_charged(const struct namespaces *n)
{
        return DISK_NAMESPACE_FILES * MAX(n->reserve, namespaces_file_bytes(n));
}

/* --- lookups --- */

unsigned namespaces_count(const struct namespaces *n)
{
        return n->count;
}

struct namespace *namespaces_at(const struct namespaces *n, unsigned i)
{
        return i < n->count ? n->list[i] : NULL;
}

struct namespace *namespaces_get(const struct namespaces *n, uint32_t id)
{
        unsigned at = search_first(n->count, i, n->list[i]->seen.id < id);

        return at < n->count && n->list[at]->seen.id == id ? n->list[at] : NULL;
}

uint64_t namespaces_max_seq(const struct namespaces *n)
{
        uint64_t seq = n->purge_seq;

        for (unsigned i = 0; i < n->count; i++)
                seq = MAX(seq, n->list[i]->purge_seq);
        return seq;
}

bool namespaces_is_dead(const struct namespaces *n, uint32_t id, uint64_t seq)
{
        const struct namespace *ns;

        if (seq <= n->purge_seq)
                return true;
        ns = namespaces_get(n, id);
        return !ns || seq <= ns->purge_seq;
}

void namespaces_reserve_id(struct namespaces *n, uint32_t id)
{
        if (id >= n->next_id && id < UINT32_MAX)
                n->next_id = id + 1;
}

uint32_t namespaces_next_id(const struct namespaces *n)
{
        return n->next_id;
}

const struct volume_set *namespaces_set(const struct namespaces *n)
{
        return &n->set;
}

/* --- changes --- */

static void open_done(struct namespaces *n, struct store_namespace_open *req, int result)
{
        req->result = result;
        list_append(&n->opens_done, &req->node);
}

/* Moves the last element of the list to its place in the ascending order of ids. */
static void sort_last(struct namespaces *n)
{
        for (unsigned i = n->count - 1; i > 0; i--) {
                struct namespace *last = n->list[i];

                if (n->list[i - 1]->seen.id < last->seen.id)
                        return;
                n->list[i] = n->list[i - 1];
                n->list[i - 1] = last;
        }
}

static int make_one(struct namespaces *n, const struct store_namespace_open *req, uint64_t room,
                    uint64_t seq, struct namespace **ret)
{
        uint32_t id = req->id ? req->id : n->next_id;
        uint64_t more = namespace_record_bytes(req->name_length, req->fingerprint_length),
                 charged = namespaces_charged(n);
        struct namespace *ns;
        int r;

        if (n->count == STORE_MAX_NAMESPACES || id == UINT32_MAX)
                return -ENOSPC;
        if (namespaces_get(n, id))
                return -EUCLEAN;
        n->bytes += more;
        if (namespaces_charged(n) > charged + room) {
                n->bytes -= more;
                return -ENOSPC;
        }
        r = namespace_new(&ns, req->name, req->name_length, req->fingerprint,
                          req->fingerprint_length);
        if (r == 0) {
                ns->seen.id = id;
                ns->seen.tenant = req->tenant;
                ns->seen.chunk_bytes = req->chunk_bytes;
                r = namespaces_append(n, ns);
                if (r < 0)
                        namespace_free(ns);
        }
        if (r < 0) {
                n->bytes -= more;
                return r;
        }
        namespaces_reserve_id(n, id);
        ns->purge_seq = seq;
        ns->seen.owner = req->owner;
        ns->seen.created_ms = req->created_ms ? req->created_ms : clock_unix_ms();
        ns->seen.lifetime_s = namespaces_lifetime(req->lifetime_s);
        ns->generation = ++n->generation;
        sort_last(n);
        *ret = ns;
        return 0;
}

static struct namespace *find_by_name(const struct namespaces *n, uint16_t tenant, const char *name,
                                      size_t length)
{
        uint64_t hash = hash_name(n, tenant, name, length);

        for (struct name_node *i = names_first(&n->names, hash); i; i = i->next) {
                struct namespace *ns = container_of(i, struct namespace, node);

                if (i->hash == hash && ns->seen.tenant == tenant && ns->name_length == length &&
                    memcmp(ns->seen.name, name, length) == 0)
                        return ns;
        }
        return NULL;
}

struct namespace *namespaces_find(const struct namespaces *n, uint16_t tenant, const char *name)
{
        return find_by_name(n, tenant, name, strlen(name));
}

int namespaces_adopt(struct namespaces *n, const struct store_namespace *from, uint64_t room,
                     uint64_t seq)
{
        struct store_namespace_open req = {
                .tenant = from->tenant,
                .name = from->name,
                .name_length = (uint16_t)strlen(from->name),
                .fingerprint = from->fingerprint,
                .fingerprint_length = (uint16_t)strlen(from->fingerprint),
                .chunk_bytes = from->chunk_bytes,
                .owner = from->owner,
                .id = from->id,
                .created_ms = from->created_ms,
                .lifetime_s = from->lifetime_s,
        };
        struct namespace *ns;

        return make_one(n, &req, room, seq, &ns);
}

uint32_t namespaces_lifetime(uint32_t lifetime_s)
{
        return disk_lifetime_decode(disk_lifetime_encode(lifetime_s));
}

void namespaces_note_lifetime(struct namespaces *n, struct namespace *ns, uint32_t lifetime_s)
{
        lifetime_s = namespaces_lifetime(lifetime_s);
        if (ns->seen.lifetime_s == lifetime_s)
                return;
        ns->seen.lifetime_s = lifetime_s;
        ns->lifetime_set = ++n->generation;
}

void namespaces_drop(struct namespaces *n, struct namespace *ns)
{
        unsigned i = 0;

        assert(ns->seen.chunks == 0 && ns->pending == 0);
        while (n->list[i] != ns)
                i++;
        n->count--;
        memmove(&n->list[i], &n->list[i + 1], (n->count - i) * sizeof(n->list[0]));
        names_remove(&n->names, &ns->node);
        n->reserve = MAX(n->reserve, namespaces_file_bytes(n)); /* a file never shrinks */
        n->bytes -= namespace_record_bytes(ns->name_length, ns->fingerprint_length);
        n->generation++;
        if (n->writing == WRITING_COPY)
                list_append(&n->dropped,
                            &ns->dropped); /* freed once the worker has copied its text */
        else
                namespace_free(ns);
}

static bool same_fingerprint(const struct namespace *ns, const struct store_namespace_open *req)
{
        if (req->attach && req->fingerprint_length == 0)
                return true;
        return ns->fingerprint_length == req->fingerprint_length &&
               memcmp(ns->seen.fingerprint, req->fingerprint, req->fingerprint_length) == 0;
}

bool namespaces_may_open(const struct store_namespace_open *req)
{
        return req->name_length > 0 && req->name_length <= STORE_MAX_NAME &&
               req->fingerprint_length <= STORE_MAX_FINGERPRINT &&
               !memchr(req->name, '\0', req->name_length) &&
               !(req->fingerprint_length > 0 &&
                 memchr(req->fingerprint, '\0', req->fingerprint_length));
}

void namespaces_open_one(struct namespaces *n, struct store_namespace_open *req, uint64_t room,
                         uint64_t seq)
{
        struct namespace *ns;
        int r;

        n->requests++;
        list_init(&req->node);
        if (!namespaces_may_open(req)) {
                open_done(n, req, -EINVAL);
                return;
        }
        ns = find_by_name(n, req->tenant, req->name, req->name_length);
        if (ns && !same_fingerprint(ns, req)) {
                req->id = ns->seen.id;
                open_done(n, req, STORE_MISMATCH);
                return;
        }
        if (!ns && req->attach) {
                open_done(n, req, STORE_MISS);
                return;
        }
        if (!ns) {
                r = make_one(n, req, room, seq, &ns);
                if (r < 0) {
                        open_done(n, req, r);
                        return;
                }
        } else if (req->chunk_bytes != 0 && req->chunk_bytes != ns->seen.chunk_bytes) {
                ns->seen.chunk_bytes = req->chunk_bytes;
                n->generation++;
        }
        if (req->set_lifetime)
                namespaces_note_lifetime(n, ns, req->lifetime_s);
        req->id = ns->seen.id;
        req->generation =
                req->set_lifetime ? MAX(ns->generation, ns->lifetime_set) : ns->generation;
        if (req->generation <= n->durable) {
                open_done(n, req, 0);
                return;
        }
        /* The namespace is new or changed, or the write with it has failed, so the list must be
         * written once more. */
        if (n->writing == WRITING_NOTHING && n->generation == n->writing_generation)
                n->generation++;
        list_append(&n->opens_waiting, &req->node);
}

void namespaces_count_numbers(struct namespaces *n)
{
        const struct volume_set *set = &n->set;

        n->set_numbers = 0;
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++) {
                if (set->removed_at[i] > 0)
                        n->set_numbers = MAX(n->set_numbers, i + 1);
                for (unsigned j = 0; j < VOLUMES_SET_MAX; j++)
                        if (set->missed_at[i][j] > 0)
                                n->set_numbers = MAX(n->set_numbers, MAX(i, j) + 1);
        }
}

/* Takes over the set's record, except for the entry about this volume itself. That entry changes
 * only when the volume is emptied. */
static void take_set(struct namespaces *n, const struct volume_set *set)
{
        uint64_t own[VOLUMES_SET_MAX];

        memcpy(own, n->set.missed_at[n->number], sizeof(own));
        n->set = *set;
        memcpy(n->set.missed_at[n->number], own, sizeof(own));
        namespaces_count_numbers(n);
}

static bool is_change(const struct namespaces *n, const struct volume_set *set, bool emptied)
{
        if (n->set.epoch != set->epoch ||
            memcmp(n->set.removed_at, set->removed_at, sizeof(set->removed_at)) != 0)
                return true;
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++) {
                const uint64_t *mine = n->set.missed_at[i], *theirs = set->missed_at[i];

                if (i == n->number ? emptied && volume_epochs_exceed(theirs, mine)
                                   : memcmp(mine, theirs, sizeof(set->missed_at[i])) != 0)
                        return true;
        }
        return false;
}

void namespaces_note_set(struct namespaces *n, const struct volume_set *set, bool emptied)
{
        if (!is_change(n, set, emptied))
                return;
        if (emptied)
                volume_epochs_raise(n->set.missed_at[n->number], set->missed_at[n->number]);
        take_set(n, set);
        n->generation++;
}

static void begin_purge(struct namespaces *n, struct store_purge *req, const struct volume_set *set)
{
        n->requests++;
        n->generation++;
        n->purges.begun++;
        if (set)
                take_set(n, set);
        list_append(&n->purges_waiting, &req->node);
}

void namespaces_purge(struct namespaces *n, struct store_purge *req, uint64_t seq,
                      const struct volume_set *set)
{
        begin_purge(n, req, set);
        if (req->all) {
                n->purge_seq = seq;
        } else {
                struct namespace *ns = namespaces_get(n, req->namespace_id);

                if (ns)
                        ns->purge_seq = seq;
        }
}

void namespaces_remove(struct namespaces *n, struct store_purge *req, const struct volume_set *set)
{
        struct namespace *ns = namespaces_get(n, req->namespace_id);

        begin_purge(n, req, set);
        if (ns)
                namespaces_drop(n, ns);
}

const struct namespaces_purges *namespaces_purges(const struct namespaces *n)
{
        return &n->purges;
}

bool namespaces_purge_is_lost(const struct namespaces *n)
{
        return n->purges.lost > n->durable;
}

void namespaces_purge_all(struct namespaces *n, uint64_t seq)
{
        n->purge_seq = MAX(n->purge_seq, seq);
        n->generation++;
}

static void finish_flying(struct namespaces *n, int result)
{
        struct list_node *i;

        while ((i = list_pop(&n->opens_flying)))
                open_done(n, container_of(i, struct store_namespace_open, node), result);
        while ((i = list_pop(&n->purges_flying))) {
                struct store_purge *req = container_of(i, struct store_purge, node);

                n->purges.over++;
                if (result != 0 && (req->all || req->namespace_id != 0))
                        n->purges.lost = n->writing_generation;
                req->result = result;
                list_append(&n->purges_done, i);
        }
}

/* Completes opens that waited for a generation that is now durable. */
static void finish_carried(struct namespaces *n)
{
        list_for_each_safe (&n->opens_waiting, i) {
                struct store_namespace_open *req =
                        container_of(i, struct store_namespace_open, node);

                if (req->generation > n->durable)
                        continue;
                list_unlink(i);
                open_done(n, req, 0);
        }
}

/* Removes the new namespaces of a write for which the file system has no room; otherwise all later
 * writes, with the same namespaces, would fail, too. The opens have not been answered, so the
 * namespaces are empty. */
static void forget_flying(struct namespaces *n)
{
        list_for_each (&n->opens_flying, i) {
                uint32_t id = container_of(i, struct store_namespace_open, node)->id;
                struct namespace *ns = namespaces_get(n, id);
                bool wanted = !ns || ns->generation <= n->durable || ns->seen.chunks > 0 ||
                              ns->pending > 0;

                list_for_each (&n->opens_waiting, j)
                        wanted = wanted ||
                                 container_of(j, struct store_namespace_open, node)->id == id;
                if (!wanted)
                        namespaces_drop(n, ns);
        }
}

static void write_failed(struct namespaces *n, int r)
{
        n->sync_errors++;
        n->last_error = r;
        n->writing = WRITING_NOTHING;
        n->retry_pause_ns =
                n->retry_pause_ns ? MIN(2 * n->retry_pause_ns, RETRY_MAX_NS) : RETRY_MIN_NS;
        n->retry_ns = clock_mono_ns() + n->retry_pause_ns;
        if (r == -ENOSPC || r == -EDQUOT || r == -EFBIG)
                forget_flying(n);
        finish_flying(n, r);
        if (!list_empty(&n->opens_waiting) && n->generation == n->writing_generation)
                n->generation++; /* the list of these opens is written once more */
}

static void submit(struct namespaces *n, enum writing step);

static void complete(struct kio_request *request)
{
        struct namespaces *n = container_of(request, struct namespaces, request);
        int r = (int)request->result;

        if (n->writing == WRITING_COPY)
                namespaces_seal(n, request->crc);
        if ((r == -ENOSPC || r == -EDQUOT) && n->tries < MOST_TRIES && n->make_room(n->userdata)) {
                n->tries++;
                submit(n, WRITING_BYTES);
        } else if (r < 0) {
                write_failed(n, r);
        } else if (n->writing == WRITING_COPY) {
                submit(n, WRITING_BYTES);
        } else if (n->writing == WRITING_BYTES) {
                submit(n, WRITING_SYNC);
        } else {
                n->good[n->file] = n->durable = n->writing_generation;
                finish_flying(n, 0);
                finish_carried(n);
                n->file = namespaces_next_file(n);
                if (n->good[n->file] != n->durable) {
                        n->good[n->file] = 0;
                        submit(n, WRITING_BYTES);
                } else {
                        n->retry_ns = n->retry_pause_ns = 0;
                        n->writing = WRITING_NOTHING;
                }
        }
        n->progress(n->userdata);
}

static void submit(struct namespaces *n, enum writing step)
{
        n->writing = step;
        n->request = (struct kio_request){
                .class = KIO_CLASS_PUT,
                .volume = n->volume,
                .fd = n->fds[n->file],
                .complete = complete,
        };
        if (step == WRITING_COPY) {
                n->request.op = KIO_COPY;
                n->request.buf = (char *)n->buf + NAMESPACES_COPY_OFFSET;
                n->request.vector = n->pieces;
                n->request.length = n->header.bytes - NAMESPACES_COPY_OFFSET;
        } else if (step == WRITING_BYTES) {
                n->request.op = KIO_WRITE;
                n->request.buf = n->buf;
                n->request.length =
                        round_up(n->header.bytes + namespaces_tail_bytes(&n->header), DISK_PAGE);
        } else {
                n->request.op = KIO_SYNC;
        }
        list_init(&n->request.node);
        kio_submit(n->io, &n->request, 0);
}

void namespaces_iterate(struct namespaces *n, uint64_t now_ns, bool retry)
{
        bool is_new = n->generation != n->writing_generation && n->generation != n->durable;
        int r;

        if (n->writing != WRITING_NOTHING ||
            (!is_new && (!retry || namespaces_at_rest(n) || now_ns < n->retry_ns)))
                return;
        if (n->generation == n->writing_generation && n->generation != n->durable)
                n->generation++; /* a failed write may have put an older list with this generation
                                    on the disk */
        list_splice(&n->opens_flying, &n->opens_waiting);
        list_splice(&n->purges_flying, &n->purges_waiting);
        n->writing_generation = n->generation;
        r = namespaces_gather(n);
        if (r < 0) {
                write_failed(n, r);
                return;
        }
        n->file = namespaces_next_file(n);
        n->good[n->file] = 0;
        n->tries = 0;
        submit(n, WRITING_COPY);
}

uint64_t namespaces_deadline_ns(const struct namespaces *n)
{
        return n->writing == WRITING_NOTHING && !namespaces_at_rest(n) ? MAX(n->retry_ns, 1u) : 0;
}

bool namespaces_reap(struct namespaces *n)
{
        struct list_node opens = LIST_INIT(opens), purges = LIST_INIT(purges), *i;

        list_splice(&opens, &n->opens_done);
        list_splice(&purges, &n->purges_done);
        if (list_empty(&opens) && list_empty(&purges))
                return false;
        while ((i = list_pop(&opens))) {
                struct store_namespace_open *req =
                        container_of(i, struct store_namespace_open, node);

                n->requests--;
                req->complete(req);
        }
        while ((i = list_pop(&purges))) {
                struct store_purge *req = container_of(i, struct store_purge, node);

                n->requests--;
                req->complete(req);
        }
        return true;
}

uint64_t namespaces_pending(const struct namespaces *n)
{
        bool must_write = n->generation != n->writing_generation && n->generation != n->durable;

        return n->requests + (n->writing != WRITING_NOTHING) + must_write;
}

uint64_t namespaces_sync_errors(const struct namespaces *n)
{
        return n->sync_errors;
}

int namespaces_last_error(const struct namespaces *n)
{
        return n->last_error;
}
