/* SPDX-License-Identifier: Apache-2.0 */
/* A user of the library's gets, for test_pool_index.py: hits-client SOCKET NAMESPACE [FLAGS]
 *
 * Lines on stdin, an answer to each on stdout. Keys and bytes are in hexadecimal.
 *
 *     get KEY...     mapped, and kept under leases: STATUS:BYTES of each, then how many of them
 *                    were got without the daemon
 *     into KEY...    copied: the same
 *     more KEY...    `into` as a part of a chain that goes on
 *     cut KEY...     `into`, while nothing can be sent any more
 *     storm N KEY... `into` N times: how often not all of them were what they were at first, then
 *                    how many were got without the daemon
 *     check          how many leases there are, then how many of their chunks have changed
 *     release [N]    ends all leases, or the last N, and waits until the daemon knows it
 *     unsaid         ends all leases, which the daemon may not know yet
 *     evict KEY...   how many were there
 *     purge          how many chunks there were
 *     info           bytes of the pool index that is mapped, keys got by it, reconnects
 *
 * A call that fails answers "error -ERRNO TEXT". */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <kvcache-admin.h>
#include <kvcache.h>

#include "commands.h"

enum { MOST = 1024, ROOM = 64 << 10, LEASES_MAX = 4096 };

static struct kvcache_entry entries[MOST];
static struct kvcache_result results[MOST];
static uint8_t room[MOST][ROOM];

/* Chunks under leases, with copies of their bytes at the time of the get. */
static struct {
        struct kvcache_lease lease;
        const void *data;
        size_t length;
        void *copy;
} leased[LEASES_MAX];
static size_t n_leased;

static bool is_cut;
__attribute__((visibility("default"))) ssize_t send(int fd, const void *data, size_t bytes,
                                                    int flags);

/* Replaces the C library's function. If cut, behaves as if the daemon had just ended. */
ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
        if (is_cut) {
                errno = EPIPE;
                return -1;
        }
        return sendto(fd, data, bytes, flags, NULL, 0);
}

static struct kvcache_info info(void)
{
        struct kvcache_info it = { .size = sizeof(it) };

        if (kvcache_get_info(kv, &it) < 0)
                memset(&it, 0, sizeof(it));
        return it;
}

static int ask_with(enum kvcache_op op, size_t n, uint32_t flags)
{
        struct kvcache_request r;

        if (op == KVCACHE_OP_GET_INTO) {
                for (size_t i = 0; i < n; i++)
                        entries[i] = (struct kvcache_entry){ .key = keys[i],
                                                             .data = room[i],
                                                             .length = ROOM };
                kvcache_prep_get_into(&r, ns, entries, n, results);
        } else {
                kvcache_prep(&r, op, ns, n, results);
                r.keys = keys;
        }
        r.flags |= flags;
        return kvcache_submit_and_wait(kv, &r, NULL);
}

static int ask(enum kvcache_op op, size_t n)
{
        return ask_with(op, n, 0);
}

static void say_bytes(int status, const uint8_t *data, size_t length)
{
        printf("%d:", status);
        for (size_t i = 0; i < length; i++)
                printf("%02x", data[i]);
        printf(" ");
}

static void keep(const struct kvcache_result *result)
{
        if (n_leased == LEASES_MAX)
                abort();
        leased[n_leased].lease = result->lease;
        leased[n_leased].data = result->data;
        leased[n_leased].length = result->length;
        leased[n_leased].copy = malloc(result->length);
        if (!leased[n_leased].copy)
                abort();
        memcpy(leased[n_leased++].copy, result->data, result->length);
}

static void get(bool into, uint32_t flags)
{
        uint64_t before = info().gets_local;
        size_t n = take_keys(MOST);
        int r = ask_with(into ? KVCACHE_OP_GET_INTO : KVCACHE_OP_GET, n, flags);

        is_cut = false;
        if (r < 0) {
                say_error(r);
                return;
        }
        for (size_t i = 0; i < n; i++) {
                bool ok = results[i].status == KVCACHE_OK;

                say_bytes(results[i].status, into ? room[i] : results[i].data,
                          ok ? results[i].length : 0);
                if (ok && !into)
                        keep(&results[i]);
        }
        printf("%llu\n", (unsigned long long)(info().gets_local - before));
}

static void storm(void)
{
        const char *word = strtok(NULL, " \n");
        unsigned long rounds = word ? strtoul(word, NULL, 10) : 0, wrong = 0;
        uint64_t before = info().gets_local;
        size_t n = take_keys(MOST);
        uint8_t *first = malloc(n * sizeof(room[0]));

        for (unsigned long i = 0; first && i < rounds; i++) {
                int r = ask(KVCACHE_OP_GET_INTO, n);
                bool same = true;

                if (r < 0) {
                        say_error(r);
                        free(first);
                        return;
                }
                if (i == 0)
                        memcpy(first, room, n * sizeof(room[0]));
                for (size_t k = 0; k < n; k++)
                        same &= results[k].status == KVCACHE_OK;
                wrong += !same || memcmp(first, room, n * sizeof(room[0])) != 0;
        }
        free(first);
        printf("%lu %llu\n", wrong, (unsigned long long)(info().gets_local - before));
}

static void check(void)
{
        size_t changed = 0;

        for (size_t i = 0; i < n_leased; i++)
                changed += memcmp(leased[i].data, leased[i].copy, leased[i].length) != 0;
        printf("%zu %zu\n", n_leased, changed);
}

static void release(bool say)
{
        const char *word = strtok(NULL, " \n");
        size_t left = word ? strtoul(word, NULL, 10) : n_leased;
        int r = 0;

        for (; left > 0 && n_leased > 0 && r == 0; left--, n_leased--) {
                free(leased[n_leased - 1].copy);
                r = kvcache_release(kv, &leased[n_leased - 1].lease, 1);
        }
        if (r == 0 && say)
                r = kvcache_flush(kv);
        if (r < 0)
                say_error(r);
        else
                printf("0\n");
}

static void answer(char *line)
{
        const char *command = strtok(line, " \n");
        uint64_t there = 0;
        size_t n;
        int r;

        if (!command)
                return;
        if (strcmp(command, "get") == 0 || strcmp(command, "into") == 0) {
                get(command[0] == 'i', 0);
        } else if (strcmp(command, "more") == 0) {
                get(true, KVCACHE_MORE);
        } else if (strcmp(command, "cut") == 0) {
                is_cut = true;
                get(true, 0);
        } else if (strcmp(command, "storm") == 0) {
                storm();
        } else if (strcmp(command, "check") == 0) {
                check();
        } else if (strcmp(command, "release") == 0) {
                release(true);
        } else if (strcmp(command, "unsaid") == 0) {
                release(false);
        } else if (strcmp(command, "info") == 0) {
                printf("%llu %llu %llu\n", (unsigned long long)info().pool_index_bytes,
                       (unsigned long long)info().gets_local,
                       (unsigned long long)info().reconnects);
        } else if (strcmp(command, "purge") == 0) {
                r = kvcache_purge(kv, ns, &there);
                if (r < 0)
                        say_error(r);
                else
                        printf("%llu\n", (unsigned long long)there);
        } else if (strcmp(command, "evict") == 0) {
                n = take_keys(MOST);
                r = ask(KVCACHE_OP_EVICT, n);
                for (size_t i = 0; r == 0 && i < n; i++)
                        there += results[i].status == KVCACHE_OK;
                if (r < 0)
                        say_error(r);
                else
                        printf("%llu\n", (unsigned long long)there);
        } else {
                printf("what?\n");
        }
}

int main(int argc, char **argv)
{
        int status = answer_commands(argc, argv, "hits-client", answer);

        while (n_leased > 0)
                free(leased[--n_leased].copy);
        return status;
}
