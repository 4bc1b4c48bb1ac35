/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the files of the world and not needed by campaigns: see campaign.h. */
#pragma once

#include "campaign.h"

/* The memory of all slots: those of puts, followed by those of gets. */
extern char *world_pool;

struct slot {
        struct store_put put;
        struct store_get get;
        uint32_t k, version;
        bool put_busy, get_busy, durable;
        char *put_buf, *get_buf;
};
extern struct slot world_slots[CAMPAIGN_SLOTS];

void world_wait_io(void); /* waits until an operation has ended, or waits at the simulated device */
void world_forget_requests(void); /* forgets all requests before a store is opened */

unsigned item_tenant(uint32_t k);
uint64_t item_tenant_mark(unsigned tenant); /* mark in each sector of the tenant */
struct key item_key(uint32_t k);
/* Returns the version of the key with that length and CRC; 0: none. */
uint32_t item_version_with(uint32_t k, uint32_t length, uint32_t crc);
