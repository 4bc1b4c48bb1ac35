/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the library's EXISTS and MATCH, for test_lookup.py: lookup-client SOCKET NAMESPACE [FLAGS]
 *
 * Reads lines from stdin and answers each with a line on stdout. Keys are hexadecimal.
 *
 *     exists KEY...     the tiers of each key, then the number of keys answered without the daemon
 *     match KEY...      the number of leading keys, then the same
 *     put KEY BYTES     puts with ack accepted: the status
 *     storm N KEY...    repeats `match` N times: how often not all were found, how often
 *                       without the daemon
 *     info              bytes of the mapped table, reconnects
 *
 * A failed call answers "error -ERRNO TEXT". */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

static struct kvcache_result results[KEYS_MAX];

static uint64_t lookups_local(void)
{
        struct kvcache_info info = { .size = sizeof(info) };

        return kvcache_get_info(kv, &info) < 0 ? 0 : info.lookups_local;
}

static int ask(enum kvcache_op op, size_t n, uint64_t *ret_value)
{
        struct kvcache_request r = {
                .size = sizeof(r),
                .entry_size = sizeof(struct kvcache_entry),
                .result_size = sizeof(struct kvcache_result),
                .op = op,
                .namespace_handle = ns,
                .keys = keys,
                .count = n,
                .results = op == KVCACHE_OP_MATCH ? NULL : results,
        };

        return kvcache_submit_and_wait(kv, &r, ret_value);
}

static void storm(void)
{
        const char *word = strtok(NULL, " \n");
        unsigned long rounds = word ? strtoul(word, NULL, 10) : 0, wrong = 0;
        uint64_t before = lookups_local(), run = 0;
        size_t n = take_keys(KEYS_MAX);

        for (unsigned long i = 0; i < rounds; i++) {
                int r = ask(KVCACHE_OP_MATCH, n, &run);

                if (r < 0) {
                        say_error(r);
                        return;
                }
                wrong += run != n;
        }
        printf("%lu %llu\n", wrong, (unsigned long long)((lookups_local() - before) / n));
}

static void answer(char *line)
{
        const char *command = strtok(line, " \n");
        uint64_t before, value = 0;
        size_t n;
        int r;

        if (!command)
                return;
        if (strcmp(command, "storm") == 0) {
                storm();
                return;
        }
        if (strcmp(command, "info") == 0) {
                struct kvcache_info info = { .size = sizeof(info) };

                r = kvcache_get_info(kv, &info);
                if (r < 0)
                        say_error(r);
                else
                        printf("%llu %llu\n", (unsigned long long)info.lookup_bytes,
                               (unsigned long long)info.reconnects);
                return;
        }
        if (strcmp(command, "put") == 0) {
                char *bytes, *data;

                if (take_keys(1) != 1) {
                        printf("put KEY BYTES\n");
                        return;
                }
                bytes = strtok(NULL, " \n");
                data = calloc(1, strtoul(bytes ? bytes : "1", NULL, 10));
                r = data ? kvcache_put(kv, ns, &keys[0], data, strtoul(bytes, NULL, 10),
                                       KVCACHE_ACCEPTED)
                         : -ENOMEM;
                free(data);
                if (r < 0)
                        say_error(r);
                else
                        printf("%d\n", r);
                return;
        }
        before = lookups_local();
        n = take_keys(KEYS_MAX);
        if (strcmp(command, "match") == 0) {
                r = ask(KVCACHE_OP_MATCH, n, &value);
                if (r < 0)
                        say_error(r);
                else
                        printf("%llu %llu\n", (unsigned long long)value,
                               (unsigned long long)(lookups_local() - before));
                return;
        }
        r = ask(KVCACHE_OP_EXISTS, n, NULL);
        if (r < 0) {
                say_error(r);
                return;
        }
        for (size_t i = 0; i < n; i++)
                printf("%u ", results[i].tiers);
        printf("%llu\n", (unsigned long long)(lookups_local() - before));
}

int main(int argc, char **argv)
{
        return answer_commands(argc, argv, "lookup-client", answer);
}
