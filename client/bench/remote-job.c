/* SPDX-License-Identifier: Apache-2.0 */
#include "remote-job.h"

#include <string.h>

#include "checked.h"

void remote_key_of(uint64_t object, uint8_t ret[static KEY_BYTES])
{
        uint64_t mixed = (object + 1) * 0x9e3779b97f4a7c15u;

        memset(ret, 0, KEY_BYTES);
        for (unsigned i = 0; i < sizeof(mixed); i++)
                ret[i] = (uint8_t)(mixed >> (56 - 8 * i));
}

void remote_fill(void *memory, uint64_t bytes)
{
        uint64_t state = 1;

        for (uint64_t at = 0; at < bytes; at += sizeof(state)) {
                uint64_t word;

                state = state * 6364136223846793005u + 1442695040888963407u;
                word = state ^ state >> 29;
                memcpy((char *)memory + at, &word, MIN(sizeof(word), bytes - at));
        }
}

static uint64_t mark_of(uint64_t object, uint64_t at)
{
        return (object + 1) * 0xff51afd7ed558ccdu ^ at;
}

void remote_stamp(uint64_t object, void *payload, uint64_t bytes)
{
        for (uint64_t at = 0; at < bytes; at += REMOTE_STAMP_BYTES) {
                uint64_t mark = mark_of(object, at);

                memcpy((char *)payload + at, &mark, MIN(sizeof(mark), bytes - at));
        }
}

bool remote_is_stamped(uint64_t object, const void *payload, uint64_t bytes)
{
        for (uint64_t at = 0; at < bytes; at += REMOTE_STAMP_BYTES) {
                uint64_t mark = mark_of(object, at);

                if (memcmp((const char *)payload + at, &mark, MIN(sizeof(mark), bytes - at)) != 0)
                        return false;
        }
        return true;
}
