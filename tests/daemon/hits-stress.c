/* SPDX-License-Identifier: Apache-2.0 */
/* A client for the stress test of test_pool_index.py: hits-stress SOCKET NAMESPACE get|put SEED MS
 * KEYS BYTES
 *
 * Every byte of a chunk follows from its key's number, one of KEYS; a chunk has at most BYTES
 * bytes. `put` puts random keys, and repeatedly evicts and puts those with the lowest numbers,
 * which `get` prefers. `get` gets one or a few keys at a time, mapped or into its memory. It
 * compares all words, keeps some leases for a while, and compares again before it releases them.
 * The last line is "gets LOCAL ASKED MISSES DROPPED WRONG"; stderr has details of the first wrong
 * chunk. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvcache.h>

enum { BATCH = 48, HOT = 32, KEPT = 256, KEPT_BYTES = 96 << 10, BYTES_MOST = 64 << 10 };

static struct kvcache *kv;
static uint32_t ns;
static uint64_t seed, n_keys, bytes_most, n_kept, wrong, misses, got, dropped;
static uint64_t numbers[BATCH];
static struct kvcache_key keys[BATCH];
static struct kvcache_entry entries[BATCH];
static struct kvcache_result results[BATCH];
static uint8_t *room;
static struct {
        struct kvcache_lease lease;
        const void *data;
        uint64_t number, until_us;
} kept[KEPT]; /* data: NULL: none */

static uint64_t draw(void)
{
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        return seed * UINT64_C(0x2545f4914f6cdd1d);
}

static uint64_t mix(uint64_t x)
{
        x += 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return x ^ (x >> 31);
}

static struct kvcache_key key_of(uint64_t number)
{
        struct kvcache_key k = { { 1 } };

        memcpy(k.bytes + 8, &number, sizeof(number));
        return k;
}

/* Returns one of two sizes, each a multiple of a word. */
static uint64_t length_of(uint64_t number)
{
        return number % 4 ? bytes_most : bytes_most / 4;
}

static uint64_t word_of(uint64_t number, uint64_t i)
{
        return mix(number) + i * 0x9e3779b97f4a7c15;
}

static void fill(uint8_t *place, uint64_t number)
{
        for (uint64_t i = 0; i < length_of(number) / 8; i++) {
                uint64_t word = word_of(number, i);

                memcpy(place + 8 * i, &word, sizeof(word));
        }
}

static void check(const void *data, uint64_t length, uint64_t number, const char *how)
{
        bool same = length == length_of(number);
        uint64_t i, word = 0;

        for (i = 0; same && i < length / 8; i++) {
                memcpy(&word, (const uint8_t *)data + 8 * i, sizeof(word));
                same = word == word_of(number, i);
        }
        if (same)
                return;
        if (wrong++ == 0)
                fprintf(stderr, "%s: chunk %llu of %llu bytes is wrong at word %llu: %llx\n", how,
                        (unsigned long long)number, (unsigned long long)length,
                        (unsigned long long)i - 1, (unsigned long long)word);
}

static void draw_keys(unsigned n, uint64_t below)
{
        for (unsigned i = 0; i < n; i++) {
                numbers[i] = draw() % below;
                keys[i] = key_of(numbers[i]);
        }
}

static void ask(struct kvcache_request *r)
{
        int e = kvcache_submit_and_wait(kv, r, NULL);

        if (e < 0) {
                fprintf(stderr, "error %d: %s\n", e, kvcache_error(kv));
                exit(1);
        }
}

static uint64_t now_us(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void let_go(unsigned i, const char *how)
{
        if (!kept[i].data)
                return;
        check(kept[i].data, length_of(kept[i].number), kept[i].number, how);
        (void)kvcache_release(kv, &kept[i].lease, 1);
        kept[i].data = NULL;
}

/* Puts the chunks whose numbers were drawn. */
static void put_drawn(unsigned n)
{
        struct kvcache_request r;

        for (unsigned i = 0; i < n; i++) {
                fill(room + (uint64_t)i * bytes_most, numbers[i]);
                entries[i] = (struct kvcache_entry){ .key = keys[i],
                                                     .data = room + (uint64_t)i * bytes_most,
                                                     .length = length_of(numbers[i]) };
        }
        kvcache_prep_put(&r, ns, entries, n, KVCACHE_ACCEPTED, results);
        ask(&r);
}

static void put(void)
{
        unsigned n = 1 + (unsigned)(draw() % 16);
        struct kvcache_request r;

        draw_keys(n, HOT);
        kvcache_prep(&r, KVCACHE_OP_EVICT, ns, n, results);
        r.keys = keys;
        r.tiers = draw() % 2 ? KVCACHE_TIER_MEMORY : KVCACHE_TIER_ALL;
        ask(&r);
        for (unsigned i = 0; i < n; i++)
                dropped += results[i].status == KVCACHE_OK;
        draw_keys(n, n_keys); /* into their slots */
        put_drawn(n);
        draw_keys(n, HOT);
        put_drawn(n);
}

/* Keeps the lease until another one replaces it later. Leases of rare keys are kept longer, so that
 * their chunks become the oldest of their size. */
static void keep(const struct kvcache_result *result, uint64_t number)
{
        bool is_hot = number < HOT;
        unsigned k = (unsigned)(draw() % (n_kept / 2)) * 2 + is_hot;
        uint64_t now = now_us();

        if (kept[k].until_us > now) {
                (void)kvcache_release(kv, &result->lease, 1);
                return;
        }
        let_go(k, "kept");
        kept[k].lease = result->lease;
        kept[k].data = result->data;
        kept[k].number = number;
        kept[k].until_us = now + draw() % (is_hot ? 2000 : 1000000);
}

static void get_mapped(unsigned n)
{
        struct kvcache_request r;

        kvcache_prep_get(&r, ns, keys, n, results);
        r.flags = KVCACHE_NOWAIT;
        ask(&r);
        for (unsigned i = 0; i < n; i++) {
                if (results[i].status != KVCACHE_OK)
                        continue;
                check(results[i].data, results[i].length, numbers[i], "mapped");
                keep(&results[i], numbers[i]);
        }
}

static void get_into(unsigned n)
{
        struct kvcache_request r;

        for (unsigned i = 0; i < n; i++)
                entries[i] = (struct kvcache_entry){ .key = keys[i],
                                                     .data = room + (uint64_t)i * bytes_most,
                                                     .length = bytes_most };
        kvcache_prep_get_into(&r, ns, entries, n, results);
        r.flags = KVCACHE_NOWAIT;
        ask(&r);
        for (unsigned i = 0; i < n; i++)
                if (results[i].status == KVCACHE_OK)
                        check(room + (uint64_t)i * bytes_most, results[i].length, numbers[i],
                              "copied");
}

/* Gets the same keys repeatedly, and leaves out missing ones. */
static void get(void)
{
        unsigned most = draw() % 4 ? 4 : BATCH, n = 1 + (unsigned)(draw() % most);

        draw_keys(n, draw() % 8 ? HOT : n_keys);
        for (unsigned again = 0; again < 64 && n > 0; again++) {
                unsigned found = 0;

                if (draw() % 2)
                        get_mapped(n);
                else
                        get_into(n);
                for (unsigned i = 0; i < n; i++) {
                        if (results[i].status != KVCACHE_OK)
                                continue;
                        keys[found] = keys[i];
                        numbers[found++] = numbers[i];
                }
                got += found;
                misses += n - found;
                n = found;
        }
}

int main(int argc, char **argv)
{
        struct kvcache_options o = { .size = sizeof(o),
                                     .client_name = "hits-stress",
                                     .request_timeout_ms = 20000 };
        struct kvcache_namespace_options n = { .size = sizeof(n), .fingerprint = "" };
        struct kvcache_info info = { .size = sizeof(info) };
        bool puts;
        char why[512] = "";
        uint64_t end;

        if (argc != 8)
                return 2;
        o.socket_path = argv[1];
        n.name = argv[2];
        puts = strcmp(argv[3], "put") == 0;
        seed = mix(strtoull(argv[4], NULL, 10)) | 1;
        end = now_us() + strtoull(argv[5], NULL, 10) * 1000;
        n_keys = strtoull(argv[6], NULL, 10);
        bytes_most = strtoull(argv[7], NULL, 10);
        if (n_keys < HOT || bytes_most == 0 || bytes_most % 32 || bytes_most > BYTES_MOST)
                return 2;
        n_kept = KEPT_BYTES / bytes_most < KEPT ? KEPT_BYTES / bytes_most : KEPT;
        room = malloc(BATCH * bytes_most);
        if (!room || kvcache_connect(&kv, &o, why, sizeof(why)) < 0 ||
            kvcache_namespace_open(kv, &n, &ns) < 0) {
                fprintf(stderr, "no daemon, or no namespace: %s\n", why);
                return 1;
        }
        while (now_us() < end && wrong < 100)
                for (unsigned i = 0; i < 16; i++)
                        if (puts)
                                put();
                        else
                                get();
        for (unsigned i = 0; i < KEPT; i++)
                let_go(i, "kept");
        if (kvcache_get_info(kv, &info) < 0)
                return 1;
        printf("gets %llu %llu %llu %llu %llu\n", (unsigned long long)info.gets_local,
               (unsigned long long)(got - info.gets_local), (unsigned long long)misses,
               (unsigned long long)dropped, (unsigned long long)wrong);
        kvcache_close(kv);
        free(room);
        return 0;
}
