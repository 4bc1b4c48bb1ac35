/* SPDX-License-Identifier: Apache-2.0 */
#include "fake-kvcache.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct chunk {
        struct kvcache_key key;
        uint8_t *data;
        size_t length;
        unsigned pins;
        bool on_disk;                /* evicted from memory, and not got since */
        struct chunk *newer, *older; /* neighbours in the LRU list */
        struct chunk *next;          /* next in the bucket */
};

/* A place in the staging memory of a handle. */
struct place {
        struct place *next;
        _Alignas(64) uint8_t bytes[];
};

struct kvcache {
        char error[256];
        struct place *places;
        size_t leases;
        bool was_lost;
        uint64_t reconnects;
};

enum { BUCKETS = 1 << 16 };

struct fake_kvcache fake;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct chunk *buckets[BUCKETS], *newest, *oldest;
static struct chunk **leased; /* by id - 1; NULL: released */
static size_t n_leased, leased_room, n_chunks;
static bool dead;
static uint8_t *wrong_data;
static uint8_t *graveyard[4]; /* copies returned instead of the chunk's own bytes */
static size_t n_graveyard;
static struct chunk *got_before;

static struct chunk **bucket_of(const struct kvcache_key *key)
{
        uint32_t hash;

        memcpy(&hash, key->bytes, sizeof(hash));
        return &buckets[hash % BUCKETS];
}

static struct chunk *find(const struct kvcache_key *key)
{
        for (struct chunk *c = *bucket_of(key); c; c = c->next)
                if (memcmp(&c->key, key, sizeof(*key)) == 0)
                        return c;
        return NULL;
}

static void unlink_lru(struct chunk *c)
{
        *(c->newer ? &c->newer->older : &newest) = c->older;
        *(c->older ? &c->older->newer : &oldest) = c->newer;
        c->newer = c->older = NULL;
}

static void touch(struct chunk *c, bool is_new)
{
        if (!is_new)
                unlink_lru(c);
        c->older = newest;
        *(newest ? &newest->newer : &oldest) = c;
        newest = c;
}

static void drop(struct chunk *c)
{
        struct chunk **p = bucket_of(&c->key);

        while (*p != c)
                p = &(*p)->next;
        *p = c->next;
        unlink_lru(c);
        if (got_before == c)
                got_before = NULL;
        free(c->data);
        free(c);
        n_chunks--;
}

void fake_reset(void)
{
        while (oldest)
                drop(oldest);
        for (size_t i = 0; i < n_graveyard; i++)
                free(graveyard[i]);
        free(leased);
        leased = NULL;
        n_leased = leased_room = n_graveyard = 0;
        dead = false;
        wrong_data = NULL;
        fake = (struct fake_kvcache){
                .pool_bytes = 64 << 20,
                .max_chunk_bytes = 8 << 20,
                .staging_bytes = 16 << 20,
        };
}

static int fails(struct kvcache *kv, int r, const char *text)
{
        snprintf(kv->error, sizeof(kv->error), "%s", text);
        return r;
}

/* Counts a call. Returns its script if the script applies; NULL: the call proceeds. */
static const struct fake_script *script_of(enum fake_call call)
{
        const struct fake_script *s = &fake.scripts[call];
        uint64_t n = __atomic_add_fetch(&fake.made[call], 1, __ATOMIC_RELAXED);

        return s->result != 0 && n > s->after && (s->times == 0 || n <= s->after + s->times) ? s
                                                                                             : NULL;
}

int fake_begin(struct kvcache *kv, enum fake_call call)
{
        const struct fake_script *s = script_of(call);

        return s ? fails(kv, s->result, s->error ? s->error : "") : 0;
}

void fake_record(char *ret, size_t room, const char *argument)
{
        pthread_mutex_lock(&lock);
        snprintf(ret, room, "%s", argument ? argument : "");
        pthread_mutex_unlock(&lock);
}

int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes)
{
        const struct fake_script *s = script_of(FAKE_CONNECT);
        struct kvcache *kv;

        assert(options->size == sizeof(*options));
        fake_record(fake.socket_path, sizeof(fake.socket_path), options->socket_path);
        fake_record(fake.client_name, sizeof(fake.client_name), options->client_name);
        pthread_mutex_lock(&lock);
        fake.request_timeout_ms = options->request_timeout_ms;
        pthread_mutex_unlock(&lock);
        if (s) {
                snprintf(ret_error, error_bytes, "%s", s->error ? s->error : "");
                return s->result;
        }
        if (dead) {
                snprintf(ret_error, error_bytes, "no daemon at /fake");
                return -ECONNREFUSED;
        }
        kv = calloc(1, sizeof(*kv));
        if (!kv)
                return -ENOMEM;
        __atomic_add_fetch(&fake.handles, 1, __ATOMIC_RELAXED);
        *ret = kv;
        return 0;
}

void kvcache_close(struct kvcache *kv)
{
        while (kv && kv->places)
                kvcache_staging_release(kv, kv->places->bytes);
        if (kv)
                __atomic_sub_fetch(&fake.handles, 1, __ATOMIC_RELAXED);
        free(kv);
}

const char *kvcache_version(void)
{
        return "fake";
}

const char *kvcache_error(const struct kvcache *kv)
{
        return kv->error;
}

const char *kvcache_status_name(int status)
{
        switch (status) {
        case KVCACHE_OK:
                return "OK";
        case KVCACHE_MISS:
                return "MISS";
        case KVCACHE_EXISTS:
                return "EXISTS";
        case KVCACHE_BUSY:
                return "BUSY";
        default:
                return "FAILED";
        }
}

int kvcache_get_info(struct kvcache *kv, struct kvcache_info *ret)
{
        int r = fake_begin(kv, FAKE_GET_INFO);

        assert(ret->size == sizeof(*ret));
        if (r)
                return r;
        *ret = (struct kvcache_info){
                .size = sizeof(*ret),
                .protocol_version = 1,
                .pool_bytes = fake.pool_bytes,
                .max_chunk_bytes = fake.max_chunk_bytes,
                .staging_bytes = fake.staging_bytes,
                .reconnects = kv->reconnects,
                .lends = fake.lends,
                .takes_files = fake.takes_files,
        };
        return 0;
}

int kvcache_namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *options,
                           uint32_t *ret)
{
        int r = fake_begin(kv, FAKE_OPEN);

        assert(options->size == sizeof(*options));
        fake_record(fake.opened_name, sizeof(fake.opened_name), options->name);
        fake_record(fake.opened_fingerprint, sizeof(fake.opened_fingerprint), options->fingerprint);
        pthread_mutex_lock(&lock);
        fake.opened_flags = options->flags;
        pthread_mutex_unlock(&lock);
        if (r)
                return r;
        if (dead)
                return fails(kv, -ECONNREFUSED, "gone");
        if (fake.missing_namespace && strcmp(fake.missing_namespace, options->name) == 0) {
                if (options->flags & KVCACHE_ATTACH)
                        return fails(kv, -ENOENT, "no such namespace");
                fake.missing_namespace = NULL;
        }
        if (fake.fingerprint && options->fingerprint &&
            strcmp(fake.fingerprint, options->fingerprint) != 0)
                return fails(kv, -EEXIST, "block_bytes differs");
        *ret = 1;
        return 0;
}

int kvcache_staging_acquire(struct kvcache *kv, size_t bytes, void **ret_place)
{
        struct place *p;

        if (bytes > fake.staging_bytes)
                return fails(kv, -E2BIG, "larger than the staging area");
        p = aligned_alloc(_Alignof(struct place), sizeof(*p) + (bytes + 63) / 64 * 64);
        if (!p)
                return -ENOMEM;
        p->next = kv->places;
        kv->places = p;
        *ret_place = p->bytes;
        return 0;
}

void kvcache_staging_release(struct kvcache *kv, void *place)
{
        struct place **p = &kv->places, *released;

        while ((*p)->bytes != place)
                p = &(*p)->next;
        released = *p;
        *p = released->next;
        free(released);
}

int kvcache_release(struct kvcache *kv, const struct kvcache_lease *leases, size_t n)
{
        pthread_mutex_lock(&lock);
        for (size_t i = 0; i < n; i++) {
                struct chunk *c = leases[i].id - 1 < n_leased ? leased[leases[i].id - 1] : NULL;

                if (!c) {
                        fake.releases_stale++;
                        continue;
                }
                leased[leases[i].id - 1] = NULL;
                c->pins--;
                fake.leases--;
                kv->leases--;
        }
        pthread_mutex_unlock(&lock);
        return 0;
}

int kvcache_flush(struct kvcache *kv)
{
        return 0;
}

static struct kvcache_lease lease(struct kvcache *kv, struct chunk *c)
{
        if (n_leased == leased_room) {
                leased_room = leased_room ? 2 * leased_room : 1024;
                leased = reallocarray(leased, leased_room, sizeof(*leased));
                assert(leased);
        }
        leased[n_leased++] = c;
        c->pins++;
        kv->leases++;
        if (++fake.leases > fake.most_leases)
                fake.most_leases = fake.leases;
        return (struct kvcache_lease){ .id = (uint32_t)n_leased, .generation = 1 };
}

/* Sets the bytes that a client sees of a chunk: usually the chunk's own. */
static void give(struct chunk *c, struct kvcache_result *result)
{
        struct chunk *other = got_before ? got_before : c;

        result->data = c->data;
        result->length = result->chunk_length = c->length;
        result->tiers =
                fake.chunks_got % 2 && !c->on_disk ? KVCACHE_TIER_MEMORY : KVCACHE_TIER_DISK;
        c->on_disk = false;
        if (fake.chunks_got == fake.flip_get || fake.chunks_got == fake.swap_get) {
                const uint8_t *from = fake.chunks_got == fake.swap_get ? other->data : c->data;

                wrong_data = malloc(c->length);
                assert(wrong_data && n_graveyard < 4);
                graveyard[n_graveyard++] = wrong_data;
                memcpy(wrong_data, from, c->length);
                if (fake.chunks_got == fake.flip_get)
                        wrong_data[fake.flip_offset] ^= 0x10;
                result->data = wrong_data;
        }
        if (fake.chunks_got == fake.shorten_get)
                result->length--;
        got_before = c;
}

static void get(struct kvcache *kv, const struct kvcache_key *key, struct kvcache_result *result)
{
        struct chunk *c = find(key);

        fake.chunks_got++;
        if (!c || fake.chunks_got == fake.vanish_get) {
                result->status = KVCACHE_MISS;
                return;
        }
        if (fake.lease_quota && kv->leases >= fake.lease_quota) {
                result->status = KVCACHE_QUOTA;
                return;
        }
        result->status = KVCACHE_OK;
        give(c, result);
        result->lease = lease(kv, c);
}

/* Narrows the result to the range of the entry; KVCACHE_INVALID if the range begins after the
 * chunk's end. */
static void cut(struct kvcache *kv, const struct kvcache_entry *entry,
                struct kvcache_result *result)
{
        if (result->status != KVCACHE_OK)
                return;
        if (entry->range_offset >= result->length) {
                leased[result->lease.id - 1]->pins--;
                leased[result->lease.id - 1] = NULL;
                fake.leases--;
                kv->leases--;
                *result = (struct kvcache_result){ .status = KVCACHE_INVALID };
                return;
        }
        result->data = (const uint8_t *)result->data + entry->range_offset;
        result->length -= entry->range_offset;
        if (entry->range_length && entry->range_length < result->length)
                result->length = entry->range_length;
}

/* Answers a key of a request that moves no bytes. */
static void look(const struct kvcache_key *key, struct kvcache_result *result)
{
        const struct chunk *c = find(key);
        size_t n = fake.keys_answered++;

        if (n < fake.n_answers)
                *result = fake.answers[n];
        else if (c)
                *result = (struct kvcache_result){ .status = KVCACHE_OK,
                                                   .tiers = KVCACHE_TIER_ALL,
                                                   .length = c->length };
        else
                *result = (struct kvcache_result){ .status = KVCACHE_MISS };
}

static bool make_room(void)
{
        if (!fake.capacity || n_chunks < fake.capacity)
                return true;
        for (struct chunk *c = oldest; c; c = c->newer)
                if (c->pins == 0) {
                        drop(c);
                        fake.evictions++;
                        return true;
                }
        return false;
}

static void put(struct kvcache *kv, const struct kvcache_entry *entry, bool keep,
                struct kvcache_result *result)
{
        struct chunk *c = find(&entry->key);

        fake.chunks_put++;
        result->length = entry->length;
        if (keep && fake.lease_quota && kv->leases >= fake.lease_quota) {
                result->status = KVCACHE_QUOTA;
                return;
        }
        if (fake.chunks_put >= fake.busy_from_put && fake.chunks_put <= fake.busy_to_put) {
                result->status = KVCACHE_BUSY;
                return;
        }
        if (fake.chunks_put == fake.fail_put || fake.chunks_put == fake.lose_put) {
                result->status = fake.chunks_put == fake.fail_put ? KVCACHE_FAILED : KVCACHE_LOST;
                return;
        }
        if (c) {
                result->status = KVCACHE_EXISTS;
        } else if (!make_room()) {
                result->status = KVCACHE_BUSY;
                return;
        } else {
                c = calloc(1, sizeof(*c));
                assert(c);
                c->key = entry->key;
                c->length = entry->length;
                c->data = malloc(entry->length);
                assert(c->data);
                memcpy(c->data, entry->data, entry->length);
                c->next = *bucket_of(&c->key);
                *bucket_of(&c->key) = c;
                touch(c, true);
                n_chunks++;
                result->status = KVCACHE_OK;
        }
        if (keep) {
                result->data = c->data;
                result->lease = lease(kv, c);
        }
}

/* Copies a leased chunk into the client's memory, and releases the lease. */
static void get_into(struct kvcache *kv, const struct kvcache_entry *entry,
                     struct kvcache_result *result)
{
        get(kv, &entry->key, result);
        if (result->status != KVCACHE_OK)
                return;
        assert(result->length <= entry->length);
        memcpy(entry->data, result->data, result->length);
        result->data = NULL;
        leased[result->lease.id - 1]->pins--;
        leased[result->lease.id - 1] = NULL;
        result->lease = (struct kvcache_lease){ 0 };
        fake.leases--;
        kv->leases--;
}

static void evict(const struct kvcache_key *key, uint32_t tiers)
{
        struct chunk *c = find(key);

        if (c && tiers == KVCACHE_TIER_MEMORY)
                c->on_disk = true;
        else if (c && c->pins == 0)
                drop(c);
}

static void touch_chain(const struct kvcache_request *request)
{
        for (size_t i = request->count; i > 0; i--) {
                struct chunk *c =
                        find(request->keys ? &request->keys[i - 1] : &request->entries[i - 1].key);

                if (c)
                        touch(c, false);
        }
}

static int answer(struct kvcache *kv, const struct kvcache_request *request, uint64_t *ret_value)
{
        size_t bytes = 0;

        fake.calls++;
        if (fake.die_at_call && fake.calls >= fake.die_at_call && !fake.pings)
                dead = true;
        if (dead) {
                kv->was_lost = true;
                for (size_t i = 0; request->results && i < request->count; i++)
                        request->results[i] = (struct kvcache_result){ .status = KVCACHE_LOST };
                return fails(kv, -ECONNRESET, "the daemon closed the connection");
        }
        if (request->op == KVCACHE_OP_MATCH) {
                uint64_t n = 0;

                while (n < request->count && find(&request->keys[n]))
                        n++;
                *ret_value = n;
                return 0;
        }
        if (request->op == KVCACHE_OP_HINT || request->op == KVCACHE_OP_ADVISE) {
                fake.hints++;
                if (!request->results)
                        return 0;
        }
        for (size_t i = 0; i < request->count; i++) {
                struct kvcache_result *result = &request->results[i];

                *result = (struct kvcache_result){ 0 };
                switch (request->op) {
                case KVCACHE_OP_GET:
                        get(kv, request->keys ? &request->keys[i] : &request->entries[i].key,
                            result);
                        if (request->entries)
                                cut(kv, &request->entries[i], result);
                        bytes += result->length;
                        break;
                case KVCACHE_OP_PUT:
                        put(kv, &request->entries[i], request->flags & KVCACHE_KEEP_LEASE, result);
                        bytes += request->entries[i].length;
                        break;
                case KVCACHE_OP_GET_INTO:
                        get_into(kv, &request->entries[i], result);
                        break;
                default:
                        look(&request->keys[i], result);
                        if (request->op == KVCACHE_OP_EVICT)
                                evict(&request->keys[i], request->tiers);
                        break;
                }
        }
        if (request->op == KVCACHE_OP_GET || request->op == KVCACHE_OP_PUT)
                touch_chain(request);
        if (bytes > fake.most_round_bytes)
                fake.most_round_bytes = bytes;
        return 0;
}

int kvcache_submit_and_wait(struct kvcache *kv, const struct kvcache_request *request,
                            uint64_t *ret_value)
{
        int r = fake_begin(kv, FAKE_SUBMIT);

        assert(request->size == sizeof(*request) &&
               (!request->entries || request->entry_size == sizeof(*request->entries)) &&
               (!request->results || request->result_size == sizeof(*request->results)) &&
               request->namespace_handle == 1 && request->count > 0);
        if (r)
                return r;
        pthread_mutex_lock(&lock);
        fake.latest_op = request->op;
        fake.latest_keys = request->count;
        clock_gettime(CLOCK_MONOTONIC, &fake.latest_time);
        fake.request = *request;
        fake.key = request->keys ? request->keys[0] : request->entries[0].key;
        if (request->entries)
                fake.entry = request->entries[0];
        if (request->count > fake.most_keys)
                fake.most_keys = request->count;
        r = answer(kv, request, ret_value);
        pthread_mutex_unlock(&lock);
        return r;
}

int kvcache_put(struct kvcache *kv, uint32_t namespace_handle, const struct kvcache_key *key,
                const void *data, size_t length, enum kvcache_ack ack)
{
        struct kvcache_entry entry = { .key = *key, .data = (void *)data, .length = length };
        struct kvcache_result result;
        int r = fake_begin(kv, FAKE_PUT);

        if (r)
                return r;
        pthread_mutex_lock(&lock);
        fake.ack = ack;
        result = (struct kvcache_result){ 0 };
        put(kv, &entry, false, &result);
        pthread_mutex_unlock(&lock);
        return result.status;
}

int kvcache_ping(struct kvcache *kv, uint64_t *ret_ns)
{
        int r = fake_begin(kv, FAKE_PING);

        if (r)
                return r;
        pthread_mutex_lock(&lock);
        if (dead) {
                fake.pings++;
                if (fake.revive_after && fake.pings >= fake.revive_after)
                        dead = false;
                r = fails(kv, -ECONNREFUSED, "no daemon at /fake");
        } else if (kv->was_lost) {
                kv->was_lost = false;
                kv->reconnects++;
                fake.reconnects++;
        }
        pthread_mutex_unlock(&lock);
        *ret_ns = 12345;
        return r;
}

int kvcache_namespace_list_sized(struct kvcache *kv, const char *tenant, uint64_t *cursor,
                                 struct kvcache_namespace_info *ret, size_t info_size, size_t max)
{
        int r = fake_begin(kv, FAKE_NAMESPACE_LIST);
        size_t n = 0;

        assert(info_size == sizeof(*ret));
        fake_record(fake.tenant, sizeof(fake.tenant), tenant);
        if (r)
                return r;
        for (; n < max && *cursor < fake.n_namespaces; n++, ++*cursor)
                ret[n] = fake.namespaces[*cursor];
        if (*cursor == fake.n_namespaces)
                *cursor = 0;
        return (int)n;
}

int kvcache_report(struct kvcache *kv, enum kvcache_report what, char **ret_text)
{
        int r = fake_begin(kv, FAKE_REPORT_STATUS + what);

        if (r)
                return r;
        if (dead)
                return fails(kv, -ECONNREFUSED, "no daemon at /fake");
        pthread_mutex_lock(&lock);
        if (what == KVCACHE_REPORT_STATUS)
                *ret_text = strdup(fake.status ? fake.status : "{}");
        else if (what == KVCACHE_REPORT_STAGES && !fake.stages)
                r = -EACCES;
        else if (what == KVCACHE_REPORT_STAGES)
                *ret_text = fake.stages();
        else if (what == KVCACHE_REPORT_NAMESPACES)
                *ret_text = strdup(fake.namespace_report ? fake.namespace_report : "{}");
        else if (what == KVCACHE_REPORT_METRICS)
                *ret_text = strdup(fake.metrics ? fake.metrics : "");
        else if (what == KVCACHE_REPORT_CONFIG)
                *ret_text = strdup(fake.config ? fake.config : "x: y\n");
        else if (fake.stats)
                *ret_text = strdup(fake.stats);
        else if (asprintf(ret_text, "{\"kvcache_evictions_total\": %llu}",
                          (unsigned long long)fake.evictions) < 0)
                r = -ENOMEM;
        pthread_mutex_unlock(&lock);
        return r;
}

int kvcache_list_sized(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                       struct kvcache_listed *ret, size_t listed_size, size_t max)
{
        int r = fake_begin(kv, FAKE_LIST);
        size_t n = 0, at = 0;

        if (r)
                return r;
        pthread_mutex_lock(&lock);
        fake.list_max = max;
        for (struct chunk *c = oldest; c && n < max; c = c->newer, at++)
                if (at >= *cursor)
                        ret[n++] = (struct kvcache_listed){ .key = c->key,
                                                            .length = c->length,
                                                            .created_ms = FAKE_CREATED_MS,
                                                            .tiers = KVCACHE_TIER_DISK };
        *cursor = at < n_chunks ? at : 0;
        pthread_mutex_unlock(&lock);
        return (int)n;
}

int kvcache_purge(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped)
{
        int r = fake_begin(kv, FAKE_PURGE);

        if (r)
                return r;
        pthread_mutex_lock(&lock);
        *ret_dropped = n_chunks;
        while (oldest)
                drop(oldest);
        pthread_mutex_unlock(&lock);
        return 0;
}

int kvcache_purge_all(struct kvcache *kv, uint64_t *ret_dropped)
{
        return kvcache_purge(kv, 1, ret_dropped);
}
