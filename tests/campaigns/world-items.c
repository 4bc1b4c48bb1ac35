/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of a campaign: numbers, each of one namespace and thus one tenant, with a length and
 * bytes for each version, and the mark of its tenant in each sector. */
#include <string.h>

#include "checked.h"
#include "sim.h"
#include "world-internal.h"

unsigned item_namespace(uint32_t k)
{
        return k % CAMPAIGN_NAMESPACES;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
        uint64_t state = a * UINT64_C(0xff51afd7ed558ccd) ^ b;

        return sim_draw(&state);
}

/* Returns an item's length. Most items have the same size, so that world_slots are reused; some are
 * smaller, and a few have any size. */
uint32_t item_length(uint32_t k, uint32_t version)
{
        uint64_t x = mix(k, version), y = x >> 8;

        switch (x % 8) {
        case 0:
                return (uint32_t)(1 + y % world.max_length);
        case 1:
                return (uint32_t)(1 + y % 4096);
        case 2:
                return world.max_length;
        default:
                return (uint32_t)(MIN(4096u, world.max_length) - y % 64);
        }
}

unsigned item_tenant(uint32_t k)
{
        return item_namespace(k) % CAMPAIGN_TENANTS;
}

/* Returns the mark of a tenant. No flipped bit turns one mark into another. */
uint64_t item_tenant_mark(unsigned tenant)
{
        return UINT64_C(0x6b72616d73746e61) * (tenant + 1);
}

/* Fills a payload. Each sector is unique to this put and place, and contains the tenant's mark. */
void item_payload(uint32_t k, uint32_t version, void *buf)
{
        uint32_t length = item_length(k, version), words = (length + 7) / 8;
        uint64_t *p = buf, x = 0, step = 0;

        for (uint32_t i = 0; i < words; i++) {
                if (i % 64 == 0) {
                        x = mix((uint64_t)k << 32 | version, i);
                        step = x | 1;
                }
                p[i] = i % 64 == 1 ? item_tenant_mark(item_tenant(k)) : (x += step);
        }
        p[0] = (uint64_t)version << 32 |
               k; /* identifies the key; a chunk may be as short as one byte */
}

struct key item_key(uint32_t k)
{
        struct key key = { { 0 } };

        memcpy(key.bytes, &k, sizeof(k));
        key.bytes[31] = 1;
        return key;
}

/* Searches from the newest version, which is the most likely. */
uint32_t item_version_with(uint32_t k, uint32_t length, uint32_t crc)
{
        static char buf[CAMPAIGN_ROOM];

        for (uint32_t v = world.items[k].version; v > 0; v--) {
                if (item_length(k, v) != length)
                        continue;
                item_payload(k, v, buf);
                if (kio_crc32c(buf, length) == crc)
                        return v;
        }
        return 0;
}
