/* SPDX-License-Identifier: Apache-2.0 */
/* An object of the shared tier, which holds one chunk and everything needed to verify it, and the
 * object's name.
 *
 * The name is <prefix>/<generation>/<id>/<kk>/<key>: the generation in decimal; the first 32 hex
 * digits of the namespace's identity; the first byte of the key, in hex; 64 hex digits of the key.
 * The object <prefix>/generation/<id> stores the number of a namespace's generation. It consists of
 * a header only, with the root as its key; without such an object the generation is 0.
 *
 * The object is a header of 4 KiB and the payload, so that one aligned read fetches both and the
 * payload is page-aligned. The header is little-endian, with zeros up to its end:
 *
 *      0  magic "KVCREMOT"        24  key, 32 bytes
 *      8  version, 4 bytes        56  identity of the namespace, 32 bytes
 *     12  CRC32C of the header,   88  length of the payload, 4 bytes
 *         this field as zero      92  CRC32C of the payload
 *     16  generation, 8 bytes     96  created, ms since 1970, 8 bytes
 *
 * All functions depend on their arguments only. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key.h"

enum {
        REMOTE_HEADER_BYTES = 4096,
        REMOTE_PREFIX_MAX = 128,
        REMOTE_NAME_MAX = 320, /* including the NUL */
        REMOTE_CHUNK_MAX = 64 << 20,
};

/* Two hosts share chunks only if their identities are equal. An identity is the SHA-256 of the
 * tenant's sharing secret (empty without one), the namespace's name and its canonical fingerprint,
 * each preceded by its length. */
struct remote_identity {
        uint8_t bytes[32];
};

/* Computes an identity. Returns 0, -ELIBACC if libcrypto, which is loaded at run time, is missing,
 * or -ENOMEM. */
int remote_identify(const void *secret, size_t secret_length, const char *name,
                    const char *fingerprint, struct remote_identity *ret);

struct remote_object {
        struct key key;
        struct remote_identity identity;
        uint64_t generation;
        uint32_t length, crc; /* length and CRC32C of the payload */
        uint64_t created_ms;
};

/* The reason why an object is not served, in the order of the metric's values. */
enum remote_rejection {
        REMOTE_ACCEPTED,
        REMOTE_BAD_HEADER,   /* the header has a wrong magic or checksum, or is incomplete */
        REMOTE_BAD_VERSION,  /* the object has a later format */
        REMOTE_OTHER_OBJECT, /* key, identity or generation differ from the expected */
        REMOTE_BAD_LENGTH,   /* the length is 0, too large, or different from the size of the
                              * object */
        REMOTE_BAD_CHECKSUM, /* payload differs from its checksum */
        REMOTE_REJECTIONS,
};

/* Writes the header of an object. */
void remote_object_write(const struct remote_object *o,
                         uint8_t ret_header[static REMOTE_HEADER_BYTES]);
/* Checks a header against `want`, which has the expected key, identity and generation, and decodes
 * it. `size` is that of the whole object with its header, or UINT64_MAX if it is unknown. The
 * caller checks the payload's checksum. */
enum remote_rejection remote_object_read(const uint8_t header[static REMOTE_HEADER_BYTES],
                                         uint64_t size, const struct remote_object *want,
                                         struct remote_object *ret);

/* Write and read the object that stores the generation of a namespace, which starts at 1. */
void remote_generation_write(const struct remote_identity *id, uint64_t generation,
                             uint64_t created_ms, uint8_t ret[static REMOTE_HEADER_BYTES]);
enum remote_rejection remote_generation_read(const uint8_t header[static REMOTE_HEADER_BYTES],
                                             uint64_t size, const struct remote_identity *id,
                                             uint64_t *ret);
/* Returns the identity that a header claims, without checking the header. */
void remote_generation_identity(const uint8_t header[static REMOTE_HEADER_BYTES],
                                struct remote_identity *ret);

/* Compose the names of a chunk's object and of a generation's object. */
void remote_object_name(const char *prefix, uint64_t generation, const struct remote_identity *id,
                        const struct key *key, char ret[static REMOTE_NAME_MAX]);
void remote_generation_name(const char *prefix, const struct remote_identity *id,
                            char ret[static REMOTE_NAME_MAX]);
