/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvcache *kv;
uint32_t ns;
struct kvcache_key keys[KEYS_MAX];

static unsigned digit(char c)
{
        return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10);
}

size_t take_keys(size_t most)
{
        size_t n = 0;
        const char *word;

        while (n < most && (word = strtok(NULL, " \n")) && strlen(word) == 64) {
                for (unsigned i = 0; i < KVCACHE_KEY_BYTES; i++)
                        keys[n].bytes[i] =
                                (uint8_t)(digit(word[2 * i]) << 4 | digit(word[2 * i + 1]));
                n++;
        }
        return n;
}

void say_error(int r)
{
        printf("error %d %s\n", r, kvcache_error(kv));
}

int answer_commands(int argc, char **argv, const char *client_name, void (*answer)(char *line))
{
        struct kvcache_options o = { .size = sizeof(o),
                                     .client_name = client_name,
                                     .request_timeout_ms = 20000 };
        struct kvcache_namespace_options n = { .size = sizeof(n), .fingerprint = "" };
        char *line = NULL, why[512] = "";
        size_t bytes = 0;

        if (argc < 3)
                return 2;
        o.socket_path = argv[1];
        o.flags = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
        n.name = argv[2];
        if (kvcache_connect(&kv, &o, why, sizeof(why)) < 0) {
                printf("no daemon: %s\n", why);
                return 1;
        }
        if (kvcache_namespace_open(kv, &n, &ns) < 0) {
                printf("no namespace: %s\n", kvcache_error(kv));
                return 1;
        }
        printf("ready\n");
        fflush(stdout);
        while (getline(&line, &bytes, stdin) > 0) {
                answer(line);
                fflush(stdout);
        }
        free(line);
        kvcache_close(kv);
        return 0;
}
