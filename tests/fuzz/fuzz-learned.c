/* SPDX-License-Identifier: Apache-2.0 */
/* Reads any bytes as the file of eviction's state. They are refused, or are sections from which a
 * policy is restored and continues: its chunks stay, and can be evicted. Every other input is
 * sealed first, so that the checksum does not refuse all of them. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "evict/evict.h"
#include "learned/format.h"

enum { ITEMS = 64, GROUPS = 2 };

static bool is_new(void *userdata, uint32_t item)
{
        return item % 5 == 0;
}

static void restore(const struct learned_section *s, const char *policy)
{
        struct evict *e;
        uint32_t left = ITEMS;

        if (evict_new(&e, policy, ITEMS, GROUPS) < 0)
                abort();
        for (uint32_t i = 0; i < ITEMS; i++)
                evict_insert(e, i, i % GROUPS, 1);
        if (evict_restore(e, &s->learned)) {
                for (uint64_t i = 0; i < s->n_remembered; i++)
                        evict_restore_remembered(e, &s->records[s->n_chunks + i]);
                for (uint64_t i = 0; i < s->n_chunks; i++)
                        evict_restore_item(e, (uint32_t)(s->records[i].id % ITEMS),
                                           (uint32_t)(s->records[i].id % ITEMS % GROUPS),
                                           &s->records[i]);
        }
        evict_restore_rest(e, is_new, NULL);
        for (uint32_t i = 0; i < ITEMS; i += 3)
                evict_touch(e, i, i % GROUPS, EVICT_NO_USE);
        for (uint32_t group = 0; group < GROUPS; group++)
                for (uint32_t item;
                     (item = evict_victim(e, group, NULL, NULL, UINT32_MAX)) != EVICT_NONE; left--)
                        evict_remove_victim(e, item, item + 1);
        if (left != 0)
                abort();
        evict_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
        const struct learned_section *s = NULL;
        uint64_t *copy;

        if (bytes == 0 || bytes > 1 << 20)
                return 0;
        copy = malloc(bytes); /* a sanitizer detects reads beyond its end */
        if (!copy)
                return 0;
        memcpy(copy, data + 1, bytes - 1);
        bytes--;
        if (data[0] % 2 && bytes >= sizeof(struct learned_head))
                learned_seal((void *)copy, bytes);
        if (!learned_check(copy, bytes))
                while ((s = learned_next((void *)copy, s))) {
                        restore(s, "cq");
                        restore(s, "lru");
                }
        free(copy);
        return 0;
}
