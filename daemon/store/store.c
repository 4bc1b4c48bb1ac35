/* SPDX-License-Identifier: Apache-2.0 */
/* The store's door: see store.h for the contract and README.md for the format. Makes one store of
 * several volumes, each of which is whole for itself. Loop thread; what blocks while the store is
 * open runs as calls of the path it is about.
 *
 * A chunk's home is drawn from its key, in proportion to what each path may hold, and stays the
 * same from start to start. It lies elsewhere when its home was left aside as it was put; each
 * volume counts such chunks, so a look-up that fails at home asks the others only while they have
 * some.
 *
 * What all paths must know (namespaces, purges, syncs, settled drops) is spread: a part for each
 * path that is up, one answer when all have come. A path that is left aside is waited for no
 * longer.
 *
 * A path that is aside misses purges and drops. The others write down who did, and at what count of
 * purges, in the same write of the namespaces files as the purge itself; a path that comes back and
 * knows of fewer is emptied before it is used. One that was up when a crash came between its write
 * and the others' is behind as well, but nobody says that it missed something. For the case that a
 * path comes back alone, its superblock says that it was aside, if that can still be written.
 *
 * Failures: a path that fails is bypassed, told of once (on_path), and can be resumed, which opens
 * it as a start does and puts it in the old one's place when it knows what the others know. */
#include "store/store.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/list.h"
#include "checked.h"
#include "cleanup.h"
#include "evict/evict.h"
#include "store/dir.h"
#include "store/volume.h"

enum {
        MIN_LIMIT = 4 * 1024 * 1024,
        REASON_BYTES = STORE_ERROR_BYTES,
        SET_MAX = 64, /* numbers that a set can give out, in its life */
};

struct path {
        struct store *store;
        unsigned number;
        char *name;
        struct volume *volume; /* NULL: it could not be opened */
        enum store_path_state state;
        char reason[REASON_BYTES];
        uint64_t since_ms, bypasses;
        uint64_t limit, entries;
        uint64_t threshold;    /* homes drawn below it, and not below the one before, are here */
        uint64_t puts_away;    /* in flight to it, whose home is elsewhere */
        bool news;             /* of being bypassed: to be told */
        bool hung;             /* who waited for its device has been told */
        bool missed;           /* something was purged or dropped while it was aside */
        bool suspending;       /* until it is quiet */
        bool resting;          /* it is, and is being synced */
        bool calling;
        struct kio_request call;
        struct store_device *device; /* who waits for a suspend or resume */

        /* Resuming. */
        struct volume *next;
        struct store_namespace *snapshot;
        struct volume_join join;
        struct volume_set join_set;
        uint64_t join_changes;
        bool emptied;
        char error[STORE_ERROR_BYTES];
};

struct store {
        struct store_params params;
        char *policy;
        struct kio *io;
        struct volume_ops ops;
        struct path paths[STORE_MAX_PATHS];
        unsigned n_paths;
        uint32_t up;            /* paths that are used, by bit */
        bool open, stopping, again;

        bool in_set;            /* it has, or has had, several paths */
        uint8_t set[DISK_UUID_BYTES];
        struct key_secret home; /* not secret: made of the set's uuid, to be the same each time */
        unsigned set_count;     /* numbers given to its paths */
        struct volume_set sum;  /* what all have written down */
        bool note_wanted;       /* that is ahead of what the paths know */
        uint64_t missed;        /* since this start: paths by the bit of their number in the set */
        bool drops_forgotten;   /* one that nobody could write, since the last who asked */

        struct store_namespace **namespaces; /* ascending by id */
        unsigned n_namespaces, namespaces_room;
        uint32_t next_id;
        uint64_t changes;       /* of namespaces, and purges */
        uint64_t purges;

        struct tenant_limit {
                uint16_t tenant;
                uint64_t bytes;
        } *tenant_limits;
        unsigned n_tenant_limits;

        struct list_node spreads;
        struct list_node done;  /* struct spread: to be answered */
        uint64_t waiting;       /* spreads not answered, devices not completed */
        struct kio_request nudge_io;
        bool nudged;
};

DEFINE_CLEANUP(struct store *, store_close);
DEFINE_CLEANUP(struct volume *, volume_close);

static bool is_up(const struct store *s, unsigned i)
{
        return s->up & 1u << i;
}

static bool has_volume(const struct store *s, unsigned i)
{
        return s->paths[i].volume;
}

/* --- homes --- */

static uint64_t home_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->home, namespace_id, key);
}

static unsigned home_of_hash(const struct store *s, uint64_t hash)
{
        for (unsigned i = 0; i + 1 < s->n_paths; i++)
                if (hash >> 32 < s->paths[i].threshold)
                        return i;
        return s->n_paths - 1;
}

static unsigned home_of(const void *userdata, uint32_t namespace_id, const struct key *key)
{
        const struct store *s = userdata;

        return home_of_hash(s, home_hash(s, namespace_id, key));
}

/* Where it goes while its home is not among `candidates`: drawn again, in proportion. UINT_MAX:
 * there is none. */
static unsigned second_home(const struct store *s, uint64_t hash, uint32_t candidates)
{
        uint64_t total = 0, drawn;
        unsigned last = UINT32_MAX;

        for (unsigned i = 0; i < s->n_paths; i++)
                if (candidates & 1u << i)
                        total += s->paths[i].limit;
        drawn = (uint64_t)((unsigned __int128)total * (uint32_t)hash >> 32);
        for (unsigned i = 0; i < s->n_paths; i++) {
                if (!(candidates & 1u << i))
                        continue;
                last = i;
                if (drawn < s->paths[i].limit)
                        return i;
                drawn -= s->paths[i].limit;
        }
        return last;
}

static void set_thresholds(struct store *s)
{
        uint64_t total = 0, below = 0;

        for (unsigned i = 0; i < s->n_paths; i++)
                total += s->paths[i].limit;
        for (unsigned i = 0; i < s->n_paths; i++) {
                below += s->paths[i].limit;
                s->paths[i].threshold =
                        total ? (uint64_t)(((unsigned __int128)below << 32) / total) : 0;
        }
        memcpy(&s->home, s->set, sizeof(s->home));
}

/* --- numbers in the set --- */

static uint64_t bit_of(unsigned index)
{
        return index < SET_MAX ? UINT64_C(1) << index : 0;
}

/* All numbers that were given out, and those of the paths that are up. */
static uint64_t all_bits(const struct store *s)
{
        return s->set_count >= SET_MAX ? UINT64_MAX : bit_of(s->set_count) - 1;
}

static uint64_t up_bits(const struct store *s)
{
        uint64_t bits = 0;

        for (unsigned i = 0; i < s->n_paths; i++)
                if (is_up(s, i))
                        bits |= bit_of(volume_superblock(s->paths[i].volume)->path_index);
        return bits;
}

/* Of a path; of one whose superblock nobody has read, all that are nobody else's. */
static uint64_t bits_of(const struct store *s, const struct path *p)
{
        uint64_t others = 0;

        if (p->volume)
                return bit_of(volume_superblock(p->volume)->path_index);
        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i))
                        others |= bit_of(volume_superblock(s->paths[i].volume)->path_index);
        return all_bits(s) & ~others;
}

/* --- telling --- */

static void tell(struct path *p, enum store_path_event event, const char *text)
{
        const struct store_params *params = &p->store->params;

        if (params->on_path)
                params->on_path(params->userdata, p->number, event, text);
}

static void set_state(struct path *p, enum store_path_state state, const char *reason)
{
        struct store *s = p->store;

        if (p->state == STORE_PATH_UP && state != STORE_PATH_UP)
                p->bypasses++;
        p->state = state;
        snprintf(p->reason, sizeof(p->reason), "%s", reason);
        p->since_ms = clock_unix_ms();
        if (state == STORE_PATH_UP)
                s->up |= 1u << p->number;
        else
                s->up &= ~(1u << p->number);
}

static struct path *path_of(struct store *s, const struct volume *v)
{
        for (unsigned i = 0; i < s->n_paths; i++)
                if (s->paths[i].volume == v)
                        return &s->paths[i];
        return NULL;
}

/* From anywhere: what follows comes in a turn. */
static void on_bypassed(void *userdata, struct volume *v)
{
        struct store *s = userdata;
        struct path *p = path_of(s, v);

        if (!p)
                return;
        if (p->state == STORE_PATH_UP || (p->suspending && !p->resting)) {
                set_state(p, STORE_PATH_BYPASSED, volume_reason(v));
                p->news = true;
        }
}

static void on_full(void *userdata, struct volume *v, bool full)
{
        struct store *s = userdata;
        struct path *p = path_of(s, v);

        if (p)
                tell(p, full ? STORE_PATH_IS_FULL : STORE_PATH_HAS_ROOM, "");
}

static void on_put_done(void *userdata, struct store_put *req);

/* --- opening --- */

static int check_params(const struct store_params *params, char ret_error[static STORE_ERROR_BYTES])
{
        if (params->n_paths == 0 || !params->paths[0])
                return store_error(ret_error, -EINVAL, "store.path: there must be one");
        if (params->n_paths > STORE_MAX_PATHS)
                return store_error(ret_error, -EINVAL, "store.path: at most %u paths",
                                   (unsigned)STORE_MAX_PATHS);
        if (!params->as_is &&
            (params->limit / params->n_paths < MIN_LIMIT || params->limit > INT64_MAX / 2))
                return store_error(ret_error, -EINVAL,
                                   "store.limit: %llu bytes, must be at least %u MiB%s",
                                   (unsigned long long)params->limit, MIN_LIMIT / 1024 / 1024,
                                   params->n_paths > 1 ? " a path" : "");
        if (!evict_policy_exists(params->policy))
                return store_error(ret_error, -EINVAL, "eviction.policy: there is no \"%s\"",
                                   params->policy);
        for (unsigned i = 0; i < params->n_paths; i++)
                for (unsigned j = 0; j < i; j++) {
                        struct stat a, b;

                        if (strcmp(params->paths[i], params->paths[j]) == 0 ||
                            (stat(params->paths[i], &a) == 0 && stat(params->paths[j], &b) == 0 &&
                             a.st_dev == b.st_dev && a.st_ino == b.st_ino))
                                return store_error(ret_error, -EINVAL,
                                                   "store.path: %s and %s are the same directory",
                                                   params->paths[j], params->paths[i]);
                }
        return 0;
}

/* A path of several that fails so is left aside; anything else is a mistake to be told of. */
static bool may_start_without(const struct store *s, int r)
{
        return s->n_paths > 1 && r != -EINVAL && r != -EBUSY && r != -EPROTO && r != -EUCLEAN &&
               r != -ENOMEM;
}

static int prepare_volume(struct path *p, int lock_fd, struct volume **ret,
                          char ret_error[static STORE_ERROR_BYTES])
{
        return volume_prepare(ret,
                              &(struct volume_params){
                                      .store = &p->store->params,
                                      .path = p->name,
                                      .number = p->number,
                                      .lock_fd = lock_fd,
                                      .ops = &p->store->ops,
                              },
                              ret_error);
}

static bool is_zero(const uint8_t uuid[static DISK_UUID_BYTES])
{
        static const uint8_t zero[DISK_UUID_BYTES];

        return memcmp(uuid, zero, DISK_UUID_BYTES) == 0;
}

/* Are these paths of one store, each a different one? Finds out which. */
static int check_set(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        const struct path *first = NULL; /* that is of a set, or else holds a store */

        for (unsigned i = 0; i < s->n_paths; i++) {
                const struct path *p = &s->paths[i];
                const struct disk_superblock *sb;

                if (!p->volume || volume_is_fresh(p->volume))
                        continue;
                sb = volume_superblock(p->volume);
                if (first && memcmp(sb->set, s->set, DISK_UUID_BYTES) != 0)
                        return store_error(ret_error, -EPROTO,
                                           "store.path: %s and %s belong to different stores",
                                           first->name, p->name);
                if (first && is_zero(sb->set))
                        return store_error(ret_error, -EPROTO,
                                           "store.path: %s and %s are two stores, each with one "
                                           "path; only empty directories can be added to a store",
                                           first->name, p->name);
                for (unsigned j = 0; j < i; j++) {
                        const struct path *q = &s->paths[j];

                        if (q->volume && !volume_is_fresh(q->volume) &&
                            volume_superblock(q->volume)->path_index == sb->path_index)
                                return store_error(ret_error, -EPROTO,
                                                   "store.path: %s and %s both say that they are "
                                                   "path %u of the store: one is a copy",
                                                   q->name, p->name, sb->path_index + 1u);
                }
                if (!first) {
                        first = p;
                        memcpy(s->set, sb->set, DISK_UUID_BYTES);
                }
                s->set_count = MAX(s->set_count, (unsigned)sb->path_count);
        }
        s->in_set = !is_zero(s->set);
        return 0;
}

/* It cannot be used: the others do without. */
static int leave_out(struct path *p, int r, char ret_error[static STORE_ERROR_BYTES])
{
        struct store *s = p->store;

        if (!may_start_without(s, r) || (s->up & ~(1u << p->number)) == 0)
                return store_error(ret_error, r, "%s", p->error);
        p->volume = volume_close(p->volume);
        set_state(p, STORE_PATH_BYPASSED, p->error);
        p->since_ms = 0;
        p->news = true;
        return 0;
}

/* From here on it is a store of several: what has none yet gets the set's uuid, before a directory
 * is made that has it. */
static int found_set(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        if (s->in_set || s->n_paths == 1)
                return 0;
        if (getrandom(s->set, sizeof(s->set), 0) != sizeof(s->set))
                return store_error(ret_error, -EIO, "getrandom failed");
        s->in_set = true;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct volume *v = s->paths[i].volume;
                int r;

                if (!v || volume_is_fresh(v))
                        continue;
                memcpy(volume_superblock(v)->set, s->set, DISK_UUID_BYTES);
                r = volume_write_superblock(v);
                if (r == 0)
                        continue;
                store_error(s->paths[i].error, r, "%s: cannot write the superblock: %s",
                            s->paths[i].name, strerror(-r));
                r = leave_out(&s->paths[i], r, ret_error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* What the paths were given last holds as long as limit and number are the same: shares that
 * followed the sizes of file systems closely would take and give segments at each start. And while
 * one of them is absent: what the others hold is not to suffer for it. */
static bool keep_shares(struct store *s)
{
        uint64_t left = s->params.limit;
        unsigned absent = 0;

        for (unsigned i = 0; i < s->n_paths; i++)
                absent += !s->paths[i].volume;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];
                const struct disk_superblock *sb;

                if (!p->volume)
                        continue;
                sb = volume_superblock(p->volume);
                if (volume_is_fresh(p->volume) ||
                    (absent == 0 && sb->set_limit != s->params.limit) ||
                    sb->set_paths != s->n_paths || (absent == 0 && sb->limit > left) ||
                    MIN(sb->limit, left) < MIN_LIMIT)
                        return false;
                p->limit = MIN(sb->limit, left);
                left -= p->limit;
        }
        if (absent > 0 && left / absent < MIN_LIMIT)
                return false;
        for (unsigned i = 0; i < s->n_paths; i++)
                if (!s->paths[i].volume)
                        s->paths[i].limit = round_down(left / absent, DISK_PAGE);
        return true;
}

/* In proportion to the sizes of the file systems. */
static void new_shares(struct store *s)
{
        uint64_t sizes[STORE_MAX_PATHS] = { 0 }, devices[STORE_MAX_PATHS] = { 0 }, sum = 0;
        uint64_t spare = s->params.limit - (uint64_t)s->n_paths * MIN_LIMIT;
        unsigned known = 0;

        for (unsigned i = 0; i < s->n_paths; i++)
                if (s->paths[i].volume &&
                    volume_space(s->paths[i].volume, &sizes[i], &devices[i]) < 0)
                        sizes[i] = 0;
        for (unsigned i = 0; i < s->n_paths; i++) {
                unsigned sharing = 0;

                for (unsigned j = 0; j < s->n_paths; j++)
                        sharing += sizes[j] > 0 && devices[j] == devices[i];
                if (sizes[i] == 0)
                        continue;
                /* In MiB, so that sums stay in range. */
                s->paths[i].limit = MAX((sizes[i] >> 20) / sharing, UINT64_C(1));
                sum += s->paths[i].limit;
                known++;
        }
        for (unsigned i = 0; i < s->n_paths; i++)
                if (sizes[i] == 0)
                        s->paths[i].limit = known ? MAX(sum / known, UINT64_C(1)) : 1;
        sum = 0;
        for (unsigned i = 0; i < s->n_paths; i++)
                sum += s->paths[i].limit;
        for (unsigned i = 0; i < s->n_paths; i++)
                s->paths[i].limit =
                        MIN_LIMIT + (uint64_t)((unsigned __int128)spare * s->paths[i].limit / sum);
}

static void share_out(struct store *s)
{
        uint64_t entries = s->params.entries;

        if (entries == 0)
                entries = MAX(s->params.limit / (256 * 1024), UINT64_C(1) << 20);
        if (s->params.as_is && s->n_paths == 1)
                s->params.limit = volume_superblock(s->paths[0].volume)->limit;
        if (s->n_paths == 1)
                s->paths[0].limit = s->params.limit;
        else if (!keep_shares(s))
                new_shares(s);
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                if (s->n_paths > 1)
                        p->limit = round_down(p->limit, DISK_PAGE);
                p->entries = s->n_paths == 1
                                     ? s->params.entries
                                     : (uint64_t)((unsigned __int128)entries * p->limit /
                                                  s->params.limit) +
                                               1;
        }
        set_thresholds(s);
}

static void prepare_superblock(struct path *p, struct volume *v)
{
        struct store *s = p->store;
        struct disk_superblock *sb = volume_superblock(v);

        volume_set_limit(v, p->limit, p->entries);
        if (!s->in_set || s->params.as_is)
                return;
        sb->set_limit = s->params.limit;
        sb->set_paths = s->n_paths;
        sb->path_count = (uint16_t)s->set_count;
}

int store_prepare(struct store **ret, const struct store_params *params, char ret_error[static 512])
{
        _cleanup_(store_closep) struct store *s = NULL;
        int r = check_params(params, ret_error), failed = 0;

        if (r < 0)
                return r;
        s = calloc(1, sizeof(*s));
        if (!s)
                return store_error(ret_error, -ENOMEM, "out of memory");
        list_init(&s->spreads);
        list_init(&s->done);
        s->params = *params;
        s->params.paths = NULL; /* the caller's */
        s->policy = strdup(params->policy);
        s->params.policy = s->policy;
        s->n_paths = params->n_paths;
        s->ops = (struct volume_ops){
                .put_done = on_put_done,
                .bypassed = on_bypassed,
                .full = on_full,
                .home = s->n_paths > 1 ? home_of : NULL,
                .userdata = s,
        };
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                p->store = s;
                p->number = i;
                p->name = strdup(params->paths[i]);
                if (!s->policy || !p->name)
                        return store_error(ret_error, -ENOMEM, "out of memory");
        }
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                r = prepare_volume(p, -1, &p->volume, p->error);
                if (r == 0) {
                        set_state(p, STORE_PATH_UP, "");
                        p->since_ms = 0;
                        continue;
                }
                if (!may_start_without(s, r))
                        return store_error(ret_error, r, "%s", p->error);
                if (failed++ == 0)
                        store_error(ret_error, r, "%s", p->error);
                p->state = STORE_PATH_BYPASSED;
                p->news = true;
                snprintf(p->reason, sizeof(p->reason), "%s", p->error);
        }
        if (s->up == 0)
                return r;
        r = check_set(s, ret_error);
        if (r == 0)
                r = found_set(s, ret_error);
        if (r < 0)
                return r;
        share_out(s);
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                if (!p->volume)
                        continue;
                if (volume_is_fresh(p->volume)) {
                        if (s->set_count == SET_MAX)
                                return store_error(
                                        ret_error, -ENOSPC,
                                        "%s: cannot be added: the store has had %u paths "
                                        "already",
                                        p->name, (unsigned)SET_MAX);
                        r = volume_make(p->volume, s->in_set ? s->set : NULL, s->set_count,
                                        s->set_count + 1, p->error);
                        if (r < 0) {
                                r = leave_out(p, r, ret_error);
                                if (r < 0)
                                        return r;
                                continue;
                        }
                        s->set_count++;
                }
        }
        for (unsigned i = 0; i < s->n_paths; i++)
                if (s->paths[i].volume)
                        prepare_superblock(&s->paths[i], s->paths[i].volume);
        *ret = TAKE_PTR(s);
        return 0;
}

unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_PATHS])
{
        unsigned n = 0;

        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i))
                        ret_fds[n++] = volume_lock_fd(s->paths[i].volume);
        return n;
}

int store_probe_fd(const struct store *s)
{
        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i))
                        return volume_probe_fd(s->paths[i].volume);
        return -1;
}

const char *store_path(const struct store *s, unsigned i)
{
        return i < s->n_paths ? s->paths[i].name : NULL;
}

/* --- namespaces that all know --- */

static struct store_namespace *namespace_by_id(const struct store *s, uint32_t id)
{
        unsigned low = 0, high = s->n_namespaces;

        while (low < high) {
                unsigned middle = (low + high) / 2;

                if (s->namespaces[middle]->id < id)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low < s->n_namespaces && s->namespaces[low]->id == id ? s->namespaces[low] : NULL;
}

static struct store_namespace *namespace_by_name(const struct store *s, uint16_t tenant,
                                                 const char *name, size_t length)
{
        for (unsigned i = 0; i < s->n_namespaces; i++) {
                struct store_namespace *ns = s->namespaces[i];

                if (ns->tenant == tenant && strlen(ns->name) == length &&
                    memcmp(ns->name, name, length) == 0)
                        return ns;
        }
        return NULL;
}

static void namespace_free(struct store_namespace *ns)
{
        if (!ns)
                return;
        free((char *)ns->name);
        free((char *)ns->fingerprint);
        free(ns);
}

static int namespace_add(struct store *s, const struct store_namespace *from, size_t name_length,
                         size_t fingerprint_length, struct store_namespace **ret)
{
        struct store_namespace *ns;
        unsigned i;

        if (s->n_namespaces == s->namespaces_room) {
                unsigned room = s->namespaces_room ? 2 * s->namespaces_room : 16;
                void *p = realloc(s->namespaces, room * sizeof(struct store_namespace *));

                if (!p)
                        return -ENOMEM;
                s->namespaces = p;
                s->namespaces_room = room;
        }
        ns = calloc(1, sizeof(*ns));
        if (!ns)
                return -ENOMEM;
        ns->id = from->id;
        ns->tenant = from->tenant;
        ns->chunk_bytes = from->chunk_bytes;
        ns->name = strndup(from->name, name_length);
        ns->fingerprint = strndup(from->fingerprint, fingerprint_length);
        if (!ns->name || !ns->fingerprint) {
                namespace_free(ns);
                return -ENOMEM;
        }
        for (i = s->n_namespaces; i > 0 && s->namespaces[i - 1]->id > ns->id; i--)
                s->namespaces[i] = s->namespaces[i - 1];
        s->namespaces[i] = ns;
        s->n_namespaces++;
        s->changes++;
        *ret = ns;
        return 0;
}

/* No path took it. */
static void namespace_forget(struct store *s, struct store_namespace *ns)
{
        for (unsigned i = 0; i < s->n_namespaces; i++) {
                if (s->namespaces[i] != ns)
                        continue;
                s->n_namespaces--;
                for (; i < s->n_namespaces; i++)
                        s->namespaces[i] = s->namespaces[i + 1];
        }
        namespace_free(ns);
}

/* Into ret: what a path is to know now. */
static int take_snapshot(const struct store *s, struct store_namespace **ret,
                         struct volume_join *ret_join)
{
        struct store_namespace *copies = calloc(s->n_namespaces + 1, sizeof(*copies));

        if (!copies)
                return -ENOMEM;
        for (unsigned i = 0; i < s->n_namespaces; i++)
                copies[i] = *s->namespaces[i];
        *ret = copies;
        *ret_join = (struct volume_join){
                .namespaces = copies,
                .n_namespaces = s->n_namespaces,
                .next_id = s->next_id,
                .purges = s->sum.purges,
        };
        return 0;
}

/* What the path knows into what all know. */
static int learn(struct store *s, const struct path *p, char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(freep) struct store_namespace *copies = NULL;
        const struct store_namespace *ns;
        struct volume_join join;
        int r = take_snapshot(s, &copies, &join);

        if (r == 0)
                r = volume_check_namespaces(p->volume, &join, ret_error);
        for (unsigned i = 0; r == 0 && (ns = volume_namespace_at(p->volume, i)); i++) {
                struct store_namespace *added;

                if (!namespace_by_id(s, ns->id))
                        r = namespace_add(s, ns, strlen(ns->name), strlen(ns->fingerprint), &added);
        }
        if (r == -ENOMEM)
                return store_error(ret_error, r, "out of memory");
        if (r < 0)
                return r;
        s->next_id = MAX(s->next_id, volume_next_id(p->volume));
        s->sum.purges = MAX(s->sum.purges, volume_set(p->volume)->purges);
        s->sum.missed |= volume_set(p->volume)->missed;
        s->sum.missed_at = MAX(s->sum.missed_at, volume_set(p->volume)->missed_at);
        return 0;
}

/* Does `set` say that this path has missed something? */
static bool has_missed(const struct volume_set *set, struct volume *v)
{
        return set->missed & bit_of(volume_superblock(v)->path_index) &&
               set->missed_at > volume_set(v)->purges;
}

static int join_all(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(freep) struct store_namespace *copies = NULL;
        struct volume_join join;
        bool witnessed = false;
        int r = 0;

        for (unsigned i = 0; i < s->n_paths && r == 0; i++) {
                if (!is_up(s, i))
                        continue;
                r = learn(s, &s->paths[i], ret_error);
                witnessed = witnessed || !volume_superblock(s->paths[i].volume)->away;
        }
        /* What was purged while it was away is not known here: the next start drops it. */
        if (r < 0 || s->params.as_is)
                return r;
        r = take_snapshot(s, &copies, &join);
        if (r < 0)
                return store_error(ret_error, r, "out of memory");
        join.witnessed = witnessed;
        for (unsigned i = 0; i < s->n_paths; i++)
                for (unsigned j = 0; j < s->n_paths; j++)
                        if (i != j && is_up(s, i) && is_up(s, j) &&
                            has_missed(volume_set(s->paths[j].volume), s->paths[i].volume))
                                s->paths[i].missed = true;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                if (!is_up(s, i))
                        continue;
                join.empty = p->missed;
                r = volume_join(p->volume, &join, &p->emptied, ret_error);
                if (r < 0)
                        return r;
                p->missed = false;
        }
        s->sum.missed &= ~up_bits(s);
        return 0;
}

int store_open(struct store *s, struct kio *io, char ret_error[static 512])
{
        int r = -EIO;

        s->io = io;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];
                int failed;

                if (!p->volume)
                        continue;
                failed = volume_open(p->volume, io, p->error);
                if (failed == 0)
                        continue;
                if (!may_start_without(s, failed))
                        return store_error(ret_error, failed, "%s", p->error);
                r = store_error(ret_error, failed, "%s", p->error);
                set_state(p, STORE_PATH_BYPASSED, p->error);
                p->since_ms = 0;
                p->news = true;
        }
        if (s->up == 0)
                return r;
        r = join_all(s, ret_error);
        if (r < 0)
                return r;
        s->open = true;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                if (p->emptied)
                        tell(p, STORE_PATH_IS_EMPTIED, "");
                if (p->news)
                        tell(p, STORE_PATH_IS_BYPASSED, p->reason);
                p->news = p->emptied = false;
        }
        return 0;
}

/* --- what is spread --- */

enum spread_kind { SPREAD_OPEN, SPREAD_PURGE, SPREAD_SYNC, SPREAD_DROPS };

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
        struct store_namespace *namespace;
        struct store_namespace_open *open; /* who asked, one of these; all NULL: answered */
        struct store_purge *purge;
        struct store_put *put;
        uint32_t waiting; /* for the parts of these paths */
        uint32_t noting;  /* and that these count the drop */
        bool noted;
        unsigned left;    /* parts that are a volume's */
        unsigned well;    /* that came back with 0 */
        int result;       /* the first that was not */
        bool bad;         /* a part was lost, or failed, on a path that is aside by now */
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
        struct store_namespace_open *open = TAKE_PTR(x->open);
        struct store_purge *purge = TAKE_PTR(x->purge);
        struct store_put *put = TAKE_PTR(x->put);
        int result = x->result;

        list_unlink(&x->done_node);
        if (x->left == 0) {
                list_unlink(&x->node);
                free(x);
        }
        if (!open && !purge && !put)
                return;
        s->waiting--;
        if (open) {
                open->result = result;
                open->complete(open);
        } else if (purge) {
                purge->result = result;
                purge->complete(purge);
        } else {
                put->result = result;
                put->complete(put);
        }
}

static void store_drain(struct store *s);

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

static void spread_settled(struct spread *x);

static void note_done(struct store_purge *req)
{
        struct part *part = container_of(req, struct part, purge);
        struct spread *x = part->spread;

        x->left--;
        x->noting &= ~(1u << part->path);
        if (req->result < 0 && is_up(x->store, part->path))
                x->result = STORE_BYPASSED;
        spread_settled(x);
}

/* The paths that are up count one more purge, so that a path that is aside is emptied when it comes
 * back: for drops that it has not heard of. */
static void spread_note(struct spread *x)
{
        struct store *s = x->store;

        s->note_wanted = false;
        x->noted = true;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = &x->notes[i];

                if (!is_up(s, i) || x->noting & 1u << i)
                        continue;
                part->spread = x;
                part->path = i;
                part->purge = (struct store_purge){ .complete = note_done };
                x->left++;
                x->noting |= 1u << i;
                volume_purge(s->paths[i].volume, &part->purge, &s->sum);
        }
}

/* What these paths have missed must not come back with them. */
static void note_missed(struct store *s, uint64_t bits)
{
        if (!s->in_set || (bits & ~s->missed) == 0)
                return;
        s->missed |= bits;
        s->sum.purges++;
        s->sum.missed |= bits;
        s->sum.missed_at = s->sum.purges;
        s->note_wanted = true;
}

static void path_missed(struct store *s, struct path *p)
{
        p->missed = true;
        note_missed(s, bits_of(s, p));
}

/* All whom somebody waits for have come: the answer is listed. */
static void spread_settled(struct spread *x)
{
        struct store *s = x->store;
        bool asked = x->open || x->purge || x->put;

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
        if ((x->kind == SPREAD_DROPS || x->kind == SPREAD_PURGE) && s->note_wanted && !x->noted &&
            s->up && s->in_set) {
                spread_note(x);
                if (x->noting != 0)
                        return;
        }
        switch (x->kind) {
        case SPREAD_OPEN:
                /* With no path left it lives in memory until one is resumed. */
                if (x->result == 0)
                        break;
                {
                        bool known = false;

                        for (unsigned i = 0; i < s->n_paths; i++)
                                known = known ||
                                        (is_up(s, i) && volume_namespace_get(s->paths[i].volume,
                                                                             x->namespace->id));
                        list_for_each(&s->spreads, n) {
                                const struct spread *y = container_of(n, struct spread, node);

                                known = known || (y != x && y->namespace == x->namespace);
                        }
                        if (!known && s->up)
                                namespace_forget(s, x->namespace);
                        x->open->namespace = NULL;
                }
                break;
        case SPREAD_PURGE:
                if (x->well > 0 && s->up)
                        x->result = 0;
                else if (x->result == 0)
                        x->result = -EIO;
                break;
        case SPREAD_SYNC:
                if (x->bad || x->well == 0)
                        x->result = STORE_NOT_DURABLE;
                break;
        case SPREAD_DROPS:
                if (s->drops_forgotten || (x->bad && (!s->up || !s->in_set)))
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
        case SPREAD_PURGE:
                /* It cannot be purged for good: then it must not be used, unless there is no
                 * other; the answer says so. */
                if (is_up(s, path) && (s->up & ~(1u << path)) && s->in_set)
                        volume_bypass(p->volume, "a purge could not be written");
                if (!is_up(s, path))
                        path_missed(s, p);
                break;
        case SPREAD_DROPS:
                if (!is_up(s, path)) {
                        path_missed(s, p);
                        x->bad = true;
                        return;
                }
                break;
        default:
                if (!is_up(s, path)) {
                        x->bad = true;
                        return;
                }
        }
        if (x->result == 0)
                x->result = result;
}

static void open_done(struct store_namespace_open *req)
{
        struct part *part = container_of(req, struct part, open);
        struct spread *x = part->spread;

        x->left--;
        spread_part(x, part->path, req->result);
        spread_settled(x);
}

static void purge_done(struct store_purge *req)
{
        struct part *part = container_of(req, struct part, purge);
        struct spread *x = part->spread;

        x->left--;
        spread_part(x, part->path, req->result);
        spread_settled(x);
}

static void put_part_done(struct store_put *req)
{
        struct part *part = container_of(req, struct part, put);
        struct spread *x = part->spread;

        x->left--;
        spread_part(x, part->path, req->result);
        spread_settled(x);
}

/* Nobody waits for this path any more. */
static void forget_path(struct store *s, unsigned path)
{
        list_for_each_safe(&s->spreads, n) {
                struct spread *x = container_of(n, struct spread, node);

                if (x->waiting & 1u << path)
                        spread_part(x, path, -EIO);
                x->noting &= ~(1u << path);
                spread_settled(x);
        }
}

/* --- namespaces --- */

static int check_name(const struct store_namespace_open *req)
{
        return req->name_length == 0 || req->name_length > STORE_MAX_NAME ||
                               req->fingerprint_length > STORE_MAX_FINGERPRINT ||
                               memchr(req->name, '\0', req->name_length) ||
                               (req->fingerprint_length > 0 &&
                                memchr(req->fingerprint, '\0', req->fingerprint_length))
                       ? -EINVAL
                       : 0;
}

static int namespace_prepare(struct store *s, struct store_namespace_open *req,
                             struct store_namespace **ret)
{
        struct store_namespace *ns;
        int r = check_name(req);

        if (r < 0)
                return r;
        ns = namespace_by_name(s, req->tenant, req->name, req->name_length);
        if (ns && !(req->attach && req->fingerprint_length == 0) &&
            (strlen(ns->fingerprint) != req->fingerprint_length ||
             memcmp(ns->fingerprint, req->fingerprint, req->fingerprint_length) != 0)) {
                req->namespace = ns;
                return STORE_MISMATCH;
        }
        if (!ns && req->attach)
                return STORE_MISS;
        if (!ns) {
                if (s->n_namespaces == STORE_MAX_NAMESPACES || s->next_id == UINT32_MAX)
                        return -ENOSPC;
                r = namespace_add(s,
                                  &(struct store_namespace){
                                          .id = MAX(s->next_id, 1u),
                                          .tenant = req->tenant,
                                          .name = req->name,
                                          .fingerprint = req->fingerprint,
                                          .chunk_bytes = req->chunk_bytes,
                                  },
                                  req->name_length, req->fingerprint_length, &ns);
                if (r < 0)
                        return r;
                s->next_id = ns->id + 1;
        } else if (req->chunk_bytes != 0 && req->chunk_bytes != ns->chunk_bytes) {
                ns->chunk_bytes = req->chunk_bytes;
                s->changes++;
        }
        *ret = ns;
        return 0;
}

void store_namespace_open(struct store *s, struct store_namespace_open *req)
{
        struct spread *x = spread_new(s, SPREAD_OPEN);
        int r;

        req->namespace = NULL;
        if (!x) { /* the one answer from within the call: there is no memory to put it off */
                req->result = -ENOMEM;
                req->complete(req);
                return;
        }
        x->open = req;
        r = namespace_prepare(s, req, &x->namespace);
        if (r != 0) {
                x->result = r;
                list_append(&s->done, &x->done_node);
                nudge(s);
                return;
        }
        req->namespace = x->namespace;
        x->waiting = s->up;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = &x->parts[i];

                if (!(x->waiting & 1u << i))
                        continue;
                part->spread = x;
                part->path = i;
                part->open = *req;
                part->open.attach = false;
                part->open.fingerprint = x->namespace->fingerprint;
                part->open.fingerprint_length = (uint16_t)strlen(x->namespace->fingerprint);
                part->open.id = x->namespace->id;
                part->open.complete = open_done;
                x->left++;
                volume_namespace_open(s->paths[i].volume, &part->open);
        }
        if (x->waiting == 0)
                spread_settled(x);
}

static const struct store_namespace *with_counts(const struct store *s, struct store_namespace *ns)
{
        if (!ns)
                return NULL;
        ns->chunks = ns->bytes = 0;
        for (unsigned i = 0; i < s->n_paths; i++) {
                const struct store_namespace *part =
                        is_up(s, i) ? volume_namespace_get(s->paths[i].volume, ns->id) : NULL;

                if (!part)
                        continue;
                ns->chunks += part->chunks;
                ns->bytes += part->bytes;
        }
        return ns;
}

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id)
{
        return with_counts(s, namespace_by_id(s, id));
}

const struct store_namespace *store_namespace_at(const struct store *s, unsigned i)
{
        return i < s->n_namespaces ? with_counts(s, s->namespaces[i]) : NULL;
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
        for (unsigned i = 0; i < s->n_paths; i++)
                if (!is_up(s, i))
                        s->paths[i].missed = true;
        if (s->in_set) {
                uint64_t aside = all_bits(s) & ~up_bits(s);

                s->sum.purges++;
                s->sum.missed |= aside;
                if (aside)
                        s->sum.missed_at = s->sum.purges;
                s->missed |= aside;
        }
        x->purge = req;
        x->waiting = s->up;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct part *part = &x->parts[i];

                if (!(x->waiting & 1u << i))
                        continue;
                part->spread = x;
                part->path = i;
                part->purge = (struct store_purge){
                        .namespace_id = req->namespace_id,
                        .all = req->all,
                        .complete = purge_done,
                };
                x->left++;
                volume_purge(s->paths[i].volume, &part->purge, s->in_set ? &s->sum : NULL);
                req->dropped += part->purge.dropped;
        }
        if (x->waiting == 0)
                spread_settled(x);
}

/* --- chunks --- */

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->params.secret, namespace_id, key);
}

/* The path that the chunk can be found on, or UINT32_MAX. */
static unsigned find_path(const struct store *s, uint32_t namespace_id, const struct key *key,
                          uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        unsigned home = s->n_paths == 1 ? 0 : home_of(s, namespace_id, key);

        if (is_up(s, home) && volume_find(s->paths[home].volume, namespace_id, key, hash, ret_ref,
                                          ret_chunk) == 0)
                return home;
        for (unsigned i = 0; s->n_paths > 1 && i < s->n_paths; i++)
                if (i != home && is_up(s, i) && volume_displaced(s->paths[i].volume) > 0 &&
                    volume_find(s->paths[i].volume, namespace_id, key, hash, ret_ref, ret_chunk) ==
                            0)
                        return i;
        return UINT32_MAX;
}

int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        return find_path(s, namespace_id, key, hash, ret_ref, ret_chunk) == UINT32_MAX ? STORE_MISS
                                                                                        : 0;
}

void store_touch(struct store *s, struct store_ref ref)
{
        unsigned path = ref.generation >> VOLUME_GENERATION_BITS;

        if (ref.index != UINT32_MAX && path < s->n_paths && is_up(s, path))
                volume_touch(s->paths[path].volume, ref);
}

static int put_to(struct store *s, struct store_put *req, unsigned path, unsigned home)
{
        int r = volume_put(s->paths[path].volume, req);

        req->tried |= 1u << path;
        if (r == 0 && path != home)
                s->paths[path].puts_away++;
        return r;
}

/* To its home, or elsewhere if that is aside, was tried, or cannot take it. */
static int put_somewhere(struct store *s, struct store_put *req, uint64_t hash)
{
        unsigned home = home_of_hash(s, hash), path = home;
        int r = STORE_BYPASSED;

        for (;;) {
                uint32_t candidates = s->up & ~req->tried;

                if (candidates == 0)
                        return r;
                if (!(candidates & 1u << path))
                        path = second_home(s, hash, candidates);
                r = put_to(s, req, path, home);
                if (r == 0 || r == STORE_FULL || r == STORE_EXISTS)
                        return r;
        }
}

int store_put(struct store *s, struct store_put *req)
{
        uint64_t hash;
        unsigned home;

        req->tried = 0;
        req->purges = s->purges;
        if (s->n_paths == 1) {
                req->tried = 1;
                return is_up(s, 0) ? volume_put(s->paths[0].volume, req) : STORE_BYPASSED;
        }
        hash = home_hash(s, req->namespace_id, &req->key);
        home = home_of_hash(s, hash);
        for (unsigned i = 0; i < s->n_paths; i++)
                if (i != home && is_up(s, i) &&
                    (volume_displaced(s->paths[i].volume) > 0 || s->paths[i].puts_away > 0) &&
                    volume_has(s->paths[i].volume, req->namespace_id, &req->key, req->hash))
                        return STORE_EXISTS;
        return put_somewhere(s, req, hash);
}

/* A volume is through with a put. What failed there, for whatever reason of the device, may do
 * elsewhere: its bytes are still pinned. */
static void on_put_done(void *userdata, struct store_put *req)
{
        struct store *s = userdata;

        if (s->n_paths > 1 && req->tried != 0) {
                unsigned last = req->ref.generation >> VOLUME_GENERATION_BITS;
                uint64_t hash = home_hash(s, req->namespace_id, &req->key);
                int result = req->result;

                if (last < s->n_paths && last != home_of_hash(s, hash))
                        s->paths[last].puts_away--;
                if ((result == STORE_BYPASSED || (result < 0 && result != -ECANCELED)) &&
                    req->purges == s->purges && !s->stopping) {
                        if (put_somewhere(s, req, hash) == 0) {
                                s->again = true;
                                return;
                        }
                        req->result = result;
                }
        }
        req->complete(req);
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
                struct part *part = &x->parts[i];

                if (!(x->waiting & 1u << i))
                        continue;
                part->spread = x;
                part->path = i;
                part->put.complete = put_part_done;
                x->left++;
                submit(s->paths[i].volume, &part->put);
        }
        if (x->waiting == 0)
                spread_settled(x);
}

void store_sync(struct store *s, struct store_put *req)
{
        spread_puts(s, SPREAD_SYNC, req, volume_sync);
}

int store_get(struct store *s, struct store_get *req)
{
        unsigned path = find_path(s, req->namespace_id, &req->key, req->hash, NULL, NULL);

        return path == UINT32_MAX ? STORE_MISS : volume_get(s->paths[path].volume, req);
}

int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        uint64_t outsiders = all_bits(s);
        int r = STORE_MISS;

        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                outsiders &= ~bits_of(s, p);

                if (is_up(s, i)) {
                        if (volume_drop(p->volume, namespace_id, key, hash) == 0)
                                r = 0;
                } else if (!p->missed && (!p->volume || !volume_is_open(p->volume) ||
                                          p->state == STORE_PATH_RESUMING ||
                                          volume_has(p->volume, namespace_id, key, hash))) {
                        path_missed(s, p);
                        s->drops_forgotten = s->drops_forgotten || !s->in_set || s->up == 0;
                }
        }
        note_missed(s, outsiders); /* paths that are not configured now may have it */
        return r;
}

void store_settle_drops(struct store *s, struct store_put *req)
{
        spread_puts(s, SPREAD_DROPS, req, volume_settle_drops);
}

enum { CURSOR_BITS = 48 };

unsigned store_list(const struct store *s, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max)
{
        uint64_t path = *cursor >> CURSOR_BITS,
                 inner = *cursor & ((UINT64_C(1) << CURSOR_BITS) - 1);
        unsigned n = 0;

        while (path < s->n_paths && !is_up(s, (unsigned)path)) {
                path++;
                inner = 0;
        }
        if (path >= s->n_paths) {
                *cursor = 0;
                return 0;
        }
        n = volume_list(s->paths[path].volume, namespace_id, &inner, ret, max);
        if (inner == 0)
                path++;
        *cursor = path >= s->n_paths ? 0 : path << CURSOR_BITS | inner;
        return n;
}

/* --- reading back --- */

void store_set_scrub(struct store *s, const struct store_scrub *scrub)
{
        s->params.scrub = *scrub;
        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i))
                        volume_set_scrub(s->paths[i].volume, scrub);
}

int store_verify(struct store *s, struct store_verify *req)
{
        req->paths = s->n_paths;
        if (req->path >= s->n_paths)
                return STORE_MISS;
        return is_up(s, req->path) ? volume_verify(s->paths[req->path].volume, req)
                                   : STORE_BYPASSED;
}

uint64_t store_deadline_ns(const struct store *s)
{
        uint64_t soonest = 0;

        for (unsigned i = 0; i < s->n_paths; i++) {
                uint64_t at = is_up(s, i) ? volume_deadline_ns(s->paths[i].volume) : 0;

                if (at && (soonest == 0 || at < soonest))
                        soonest = at;
        }
        return soonest;
}

/* --- tenants --- */

static void limit_tenant(struct path *p, const struct tenant_limit *l)
{
        uint64_t share = (uint64_t)((unsigned __int128)l->bytes * p->limit /
                                    p->store->params.limit);

        volume_set_tenant_limit(p->volume, l->tenant, l->bytes ? MAX(share, UINT64_C(1)) : 0);
}

void store_set_tenant_limit(struct store *s, uint16_t tenant, uint64_t bytes)
{
        struct tenant_limit *l = NULL;

        for (unsigned i = 0; i < s->n_tenant_limits && !l; i++)
                if (s->tenant_limits[i].tenant == tenant)
                        l = &s->tenant_limits[i];
        if (!l) {
                void *p = realloc(s->tenant_limits,
                                  (s->n_tenant_limits + 1) * sizeof(*s->tenant_limits));

                if (!p)
                        return; /* it stays as it is */
                s->tenant_limits = p;
                l = &s->tenant_limits[s->n_tenant_limits++];
        }
        *l = (struct tenant_limit){ .tenant = tenant, .bytes = bytes };
        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i) && volume_is_open(s->paths[i].volume))
                        limit_tenant(&s->paths[i], l);
}

void store_get_tenant(const struct store *s, uint16_t tenant, struct store_tenant_usage *ret)
{
        *ret = (struct store_tenant_usage){ .limit = UINT64_MAX };
        for (unsigned i = 0; i < s->n_tenant_limits; i++)
                if (s->tenant_limits[i].tenant == tenant && s->tenant_limits[i].bytes)
                        ret->limit = s->tenant_limits[i].bytes;
        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i) && volume_is_open(s->paths[i].volume))
                        ret->bytes += volume_tenant_bytes(s->paths[i].volume, tenant);
}

/* --- suspending and resuming --- */

static void device_done(struct path *p, int result, const char *text)
{
        struct store_device *req = TAKE_PTR(p->device);
        struct store *s = p->store;

        if (!req)
                return;
        req->result = result;
        snprintf(req->text, sizeof(req->text), "%s", text);
        s->waiting--;
        req->complete(req);
}

static void call(struct path *p, int (*run)(struct kio_request *),
                 void (*complete)(struct kio_request *))
{
        p->calling = true;
        p->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_PUT,
                .path = p->number + 1,
                .call = run,
                .complete = complete,
        };
        list_init(&p->call.node);
        kio_submit(p->store->io, &p->call, p->number);
}

/* Do others go on? Then the superblock must say that this path does not know all. */
static bool is_away(const struct path *p)
{
        return p->store->in_set && (p->store->up & ~(1u << p->number));
}

/* On the path's thread for calls. */
static int run_mark_away(struct kio_request *req)
{
        struct path *p = container_of(req, struct path, call);

        volume_superblock(p->volume)->away = 1;
        return volume_write_superblock(p->volume);
}

static void marked_away(struct kio_request *req)
{
        struct path *p = container_of(req, struct path, call);

        p->calling = false;
        if (p->store->stopping)
                store_drain(p->store);
}

static int run_rest(struct kio_request *req)
{
        struct path *p = container_of(req, struct path, call);

        return volume_rest(p->volume, is_away(p));
}

static void rested(struct kio_request *req)
{
        struct path *p = container_of(req, struct path, call);

        p->calling = p->resting = false;
        if (req->result < 0)
                device_done(p, (int)req->result, "suspended, but not all of it could be synced");
        else
                device_done(p, 0, "");
        if (p->store->stopping)
                store_drain(p->store);
}

static void rest_when_quiet(struct path *p)
{
        if (!volume_is_quiet(p->volume))
                return;
        if (!p->resting) {
                p->resting = true;
                volume_bypass(p->volume, p->reason);
                forget_path(p->store, p->number);
        }
        if (volume_pending(p->volume) > 0)
                return;
        p->suspending = false;
        tell(p, STORE_PATH_IS_SUSPENDED, "");
        call(p, run_rest, rested);
}

static void answer(struct store_device *req, int result, const char *text)
{
        req->result = result;
        snprintf(req->text, sizeof(req->text), "%s", text);
        req->complete(req);
}

void store_suspend(struct store *s, struct store_device *req)
{
        struct path *p = &s->paths[req->path];

        assert(req->path < s->n_paths);
        if (p->device || p->calling || s->stopping) {
                answer(req, STORE_BUSY, "something else is under way with this path");
        } else if (p->state == STORE_PATH_SUSPENDED) {
                answer(req, STORE_EXISTS, "it is suspended already");
        } else if (p->state != STORE_PATH_UP) {
                set_state(p, STORE_PATH_SUSPENDED, p->reason);
                tell(p, STORE_PATH_IS_SUSPENDED, "");
                answer(req, 0, "");
        } else {
                p->device = req;
                s->waiting++;
                p->suspending = true;
                set_state(p, STORE_PATH_SUSPENDED, "suspended by an admin");
        }
}

/* On the path's thread for calls: nobody else knows p->next. */
static int run_resume(struct kio_request *req)
{
        struct path *p = container_of(req, struct path, call);
        struct store *s = p->store;
        struct disk_superblock *sb;
        bool emptied = false;
        int r;

        if (!p->next) {
                _cleanup_(volume_closep) struct volume *v = NULL;

                r = prepare_volume(p, p->volume ? volume_lock_fd(p->volume) : -1, &v, p->error);
                if (r < 0)
                        return r;
                sb = volume_superblock(v);
                if (volume_is_fresh(v)) {
                        r = volume_make(v, s->in_set ? s->set : NULL, s->in_set ? s->set_count : 0,
                                        s->in_set ? s->set_count + 1 : 1, p->error);
                        if (r < 0)
                                return r;
                } else if (memcmp(sb->set, s->set, DISK_UUID_BYTES) != 0) {
                        return store_error(p->error, -EPROTO, "%s: belongs to another store",
                                           p->name);
                }
                for (unsigned i = 0; i < s->n_paths; i++)
                        if (i != p->number && s->paths[i].volume &&
                            volume_superblock(s->paths[i].volume)->path_index == sb->path_index)
                                return store_error(p->error, -EPROTO,
                                                   "%s: says that it is the same path of the store "
                                                   "as %s: one is a copy",
                                                   p->name, s->paths[i].name);
                prepare_superblock(p, v);
                r = volume_open(v, s->io, p->error);
                if (r < 0)
                        return r;
                p->next = TAKE_PTR(v);
        }
        p->join.empty = p->join.empty || has_missed(&p->join_set, p->next);
        r = volume_join(p->next, &p->join, &emptied, p->error);
        p->emptied = p->emptied || emptied;
        return r;
}

static void resumed(struct kio_request *req);

static int submit_resume(struct path *p)
{
        struct store *s = p->store;
        int r;

        free(TAKE_PTR(p->snapshot));
        r = take_snapshot(s, &p->snapshot, &p->join);
        if (r < 0)
                return r;
        p->join.empty = p->missed;
        p->join.witnessed = true; /* by what this process knows */
        p->join_set = s->sum;
        p->join_changes = s->changes;
        call(p, run_resume, resumed);
        return 0;
}

static void resume_failed(struct path *p, int r)
{
        p->next = volume_close(p->next);
        free(TAKE_PTR(p->snapshot));
        set_state(p, STORE_PATH_BYPASSED, p->error);
        device_done(p, r, p->error);
}

static void resumed(struct kio_request *req)
{
        struct path *p = container_of(req, struct path, call);
        struct store *s = p->store;
        int r = (int)req->result;

        p->calling = false;
        if (r == 0 && (s->stopping || p->state != STORE_PATH_RESUMING))
                r = store_error(p->error, -ECANCELED, "%s: not resumed: it took too long", p->name);
        if (r == 0 && p->join_changes != s->changes) {
                r = submit_resume(p); /* a namespace or a purge came meanwhile */
                if (r == 0)
                        return;
        }
        if (r < 0) {
                resume_failed(p, r);
        } else {
                if (p->volume)
                        volume_take_counts(p->next, p->volume);
                volume_close(p->volume);
                p->volume = TAKE_PTR(p->next);
                for (unsigned i = 0; i < s->n_tenant_limits; i++)
                        limit_tenant(p, &s->tenant_limits[i]);
                free(TAKE_PTR(p->snapshot));
                if (s->in_set)
                        s->set_count =
                                MAX(s->set_count,
                                    (unsigned)volume_superblock(p->volume)->path_count);
                for (unsigned i = 0; volume_namespace_at(p->volume, i); i++)
                        if (!namespace_by_id(s, volume_namespace_at(p->volume, i)->id))
                                (void)learn(s, p, p->error);
                p->missed = p->hung = p->news = false;
                set_state(p, STORE_PATH_UP, "");
                s->sum.missed &= ~up_bits(s);
                s->missed &= ~up_bits(s);
                if (p->emptied)
                        tell(p, STORE_PATH_IS_EMPTIED, "");
                p->emptied = false;
                tell(p, STORE_PATH_IS_RESUMED, "");
                device_done(p, 0, "");
        }
        if (s->stopping)
                store_drain(s);
}

void store_resume(struct store *s, struct store_device *req)
{
        struct path *p = &s->paths[req->path];
        bool busy = false;

        assert(req->path < s->n_paths);
        if (p->state == STORE_PATH_UP) {
                answer(req, STORE_EXISTS, "it is not suspended or bypassed");
                return;
        }
        for (unsigned i = 0; i < s->n_paths; i++)
                busy = busy || s->paths[i].state == STORE_PATH_RESUMING;
        if (busy || p->device || p->calling || s->stopping) {
                answer(req, STORE_BUSY, "something else is under way with the paths");
                return;
        }
        if (p->volume && volume_pending(p->volume) > 0) {
                answer(req, STORE_BUSY,
                       "its device has not given back what was asked of it before");
                return;
        }
        p->device = req;
        s->waiting++;
        p->error[0] = '\0';
        set_state(p, STORE_PATH_RESUMING, p->reason);
        if (submit_resume(p) < 0) {
                store_error(p->error, -ENOMEM, "out of memory");
                resume_failed(p, -ENOMEM);
        }
}

/* --- turning --- */

static void tell_news(struct path *p)
{
        struct store *s = p->store;

        p->news = p->suspending = p->resting = false;
        tell(p, STORE_PATH_IS_BYPASSED, p->reason);
        forget_path(s, p->number);
        device_done(p, -EIO, p->reason);
        if (!p->hung && !p->calling && is_away(p) && !s->stopping)
                call(p, run_mark_away, marked_away);
}

/* Tells and answers what is due. */
static void store_drain(struct store *s)
{
        struct list_node *n;

        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                if (p->news)
                        tell_news(p);
                if (p->suspending)
                        rest_when_quiet(p);
        }
        while ((n = list_pop(&s->done))) {
                s->again = true;
                spread_answer(container_of(n, struct spread, done_node));
        }
}

void store_turn(struct store *s)
{
        if (!s->open)
                return;
        do {
                s->again = false;
                for (unsigned i = 0; i < s->n_paths; i++)
                        if (has_volume(s, i) && !(s->paths[i].calling && s->paths[i].resting))
                                volume_turn(s->paths[i].volume);
                store_drain(s);
        } while (s->again);
}

void store_tick(struct store *s)
{
        uint64_t hang_ns = s->params.hang_ms * 1000000;

        if (!s->open || hang_ns == 0)
                return;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];
                char reason[128];

                if (!p->volume || p->hung || kio_oldest(s->io, i + 1) < hang_ns)
                        continue;
                if (p->calling) {
                        /* The call stays; who waits for it does not. */
                        if (p->state == STORE_PATH_RESUMING) {
                                store_error(p->error, 0, "%s: its device does not answer", p->name);
                                set_state(p, STORE_PATH_BYPASSED, p->error);
                        }
                        device_done(p, -ETIMEDOUT, "its device does not answer");
                        continue;
                }
                p->hung = true;
                snprintf(reason, sizeof(reason),
                         "an operation has not come back for %llu s (io.hang)",
                         (unsigned long long)(s->params.hang_ms / 1000));
                volume_bypass(p->volume, reason);
                if (p->suspending) {
                        set_state(p, STORE_PATH_BYPASSED, reason);
                        p->news = true;
                }
                volume_abandon(p->volume);
        }
        store_drain(s);
}

void store_stop(struct store *s)
{
        if (!s)
                return;
        s->stopping = true;
        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i))
                        volume_stop(s->paths[i].volume);
        if (s->open)
                store_drain(s);
}

uint64_t store_pending(const struct store *s)
{
        uint64_t pending = s->waiting + s->nudged;

        for (unsigned i = 0; i < s->n_paths; i++)
                pending += s->paths[i].calling +
                           (has_volume(s, i) ? volume_pending(s->paths[i].volume) : 0);
        return pending;
}

struct store *store_close(struct store *s)
{
        if (!s)
                return NULL;
        for (unsigned i = 0; i < s->n_paths; i++) {
                volume_close(s->paths[i].volume);
                free(s->paths[i].name);
        }
        list_for_each_safe(&s->spreads, n)
                free(container_of(n, struct spread, node));
        for (unsigned i = 0; i < s->n_namespaces; i++)
                namespace_free(s->namespaces[i]);
        free(s->namespaces);
        free(s->tenant_limits);
        free(s->policy);
        free(s);
        return NULL;
}

/* --- what is seen from outside --- */

uint64_t store_max_chunk(const struct store *s)
{
        uint64_t bytes = UINT64_MAX;

        for (unsigned i = 0; i < s->n_paths; i++)
                if (has_volume(s, i) && volume_max_chunk(s->paths[i].volume) > 0)
                        bytes = MIN(bytes, volume_max_chunk(s->paths[i].volume));
        return bytes == UINT64_MAX ? 0 : bytes;
}

static void add_stats(struct store_stats *sum, const struct store_stats *one)
{
#define ADD(member) sum->member += one->member
        ADD(used_bytes);
        ADD(payload_bytes);
        ADD(chunks);
        ADD(entries_max);
        ADD(slots);
        ADD(segments);
        ADD(segments_max);
        ADD(index_bytes);
        ADD(table_pages);
        ADD(table_pages_written);
        ADD(table_entries_written);
        ADD(table_entries_carried);
        ADD(puts);
        ADD(gets);
        ADD(drops);
        ADD(evictions);
        ADD(evicted_bytes);
        ADD(payload_bytes_written);
        ADD(table_bytes_written);
        ADD(prewrite_bytes_written);
        ADD(bytes_read);
        ADD(payload_writes);
        ADD(table_writes);
        ADD(reads);
        ADD(syncs);
        ADD(crc_failures);
        ADD(crc_rereads);
        ADD(read_errors);
        ADD(write_errors);
        ADD(sync_errors);
        ADD(recovered_chunks);
        ADD(recovered_pages);
        ADD(skipped_pages);
        ADD(recover_ms);
        ADD(slab_moves);
        ADD(scrub_bytes);
        ADD(scrub_chunks);
        ADD(scrub_failures);
        ADD(scrub_passes);
        ADD(scrub_segments_done);
        ADD(scrub_segments);
        ADD(scrub_pinned);
#undef ADD
        sum->purges = MAX(sum->purges, one->purges);
        sum->segment_bytes = MAX(sum->segment_bytes, one->segment_bytes);
        sum->scrub_last_pass_ms = MAX(sum->scrub_last_pass_ms, one->scrub_last_pass_ms);
        if (!one->direct && sum->direct) {
                sum->direct = false;
                sum->direct_reason = one->direct_reason;
        }
        sum->clean_start = sum->clean_start && one->clean_start;
}

void store_get_stats(const struct store *s, struct store_stats *ret)
{
        struct store_stats sum = { .direct = true, .direct_reason = "", .clean_start = true };

        for (unsigned i = 0; i < s->n_paths; i++) {
                struct store_stats one;

                if (!has_volume(s, i))
                        continue;
                volume_get_stats(s->paths[i].volume, &one);
                add_stats(&sum, &one);
        }
        sum.limit = s->params.limit;
        sum.namespaces = s->n_namespaces;
        sum.bypassed = s->up == 0;
        *ret = sum;
}

bool store_get_path_stats(const struct store *s, unsigned i, struct store_path_stats *ret)
{
        const struct path *p = &s->paths[i];

        if (i >= s->n_paths)
                return false;
        *ret = (struct store_path_stats){
                .path = p->name,
                .state = p->state,
                .reason = p->reason,
                .since_ms = p->since_ms,
                .bypasses = p->bypasses,
                .oldest_ns = s->io ? kio_oldest(s->io, i + 1) : 0,
                .stats = { .limit = p->limit, .direct_reason = "" },
        };
        if (!p->volume)
                return true;
        volume_get_stats(p->volume, &ret->stats);
        ret->pending = volume_pending(p->volume);
        ret->full = volume_is_full(p->volume, &ret->full_refusals);
        return true;
}

unsigned store_paths_up(const struct store *s)
{
        return (unsigned)__builtin_popcount(s->up);
}
