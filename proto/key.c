/* SPDX-License-Identifier: Apache-2.0 */
#include "key.h"

#include <assert.h>
#include <errno.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are taken as they lie");

static inline uint64_t rotl(uint64_t x, int b)
{
        return (x << b) | (x >> (64 - b));
}

static inline void sip_round(uint64_t v[4])
{
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotl(v[1], 13) ^ v[0];
        v[3] = rotl(v[3], 16) ^ v[2];
        v[0] = rotl(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotl(v[1], 17) ^ v[2];
        v[3] = rotl(v[3], 21) ^ v[0];
        v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 of 36 bytes: the key's four words, then a word of the namespace's id with the length,
 * 36, in its top byte. Words are little-endian, because daemon and clients must compute equal
 * values for the lookup index. */
uint64_t key_hash(const struct key_secret *secret, uint32_t namespace_id, const struct key *k)
{
        uint64_t k0 = secret->words[0], k1 = secret->words[1];
        uint64_t v[4] = {
                k0 ^ 0x736f6d6570736575u,
                k1 ^ 0x646f72616e646f6du,
                k0 ^ 0x6c7967656e657261u,
                k1 ^ 0x7465646279746573u,
        };
        uint64_t words[5];

        memcpy(words, k->bytes, KEY_BYTES);
        words[4] = (uint64_t)36 << 56 | namespace_id;

        for (int i = 0; i < 5; i++) {
                v[3] ^= words[i];
                sip_round(v);
                v[0] ^= words[i];
        }
        v[2] ^= 0xff;
        for (int i = 0; i < 3; i++)
                sip_round(v);
        return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void key_to_hex(const struct key *k, char ret_hex[static KEY_HEX_BYTES + 1])
{
        static const char digits[] = "0123456789abcdef";

        for (int i = 0; i < KEY_BYTES; i++) {
                ret_hex[2 * i] = digits[k->bytes[i] >> 4];
                ret_hex[2 * i + 1] = digits[k->bytes[i] & 15];
        }
        ret_hex[KEY_HEX_BYTES] = '\0';
}

static int hex_digit(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        if (c >= 'A' && c <= 'F')
                return c - 'A' + 10;
        return -1;
}

int key_from_hex(const char *hex, struct key *ret)
{
        struct key k;

        for (int i = 0; i < KEY_BYTES; i++) {
                int high = hex_digit(hex[2 * i]);
                int low = high < 0 ? -1 : hex_digit(hex[2 * i + 1]);

                if (low < 0)
                        return -EINVAL;
                k.bytes[i] = (uint8_t)(high << 4 | low);
        }
        if (hex[KEY_HEX_BYTES] != '\0')
                return -EINVAL;
        *ret = k;
        return 0;
}
