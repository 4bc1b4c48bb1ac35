/* SPDX-License-Identifier: Apache-2.0 */
/* An object of the shared tier: one chunk that proves itself, and how it is named.
 *
 * The name is <prefix>/<generation>/<id>/<kk>/<key>: the generation in decimal; the first 32 hex
 * digits of the namespace's identity; the first byte of the key, in hex; 64 hex digits of the key.
 * The number of a namespace's generation is in the object <prefix>/generation/<id>, which is a
 * header alone, with the root as its key; no such object is generation 0.
 *
 * The object is a header of 4 KiB and the payload, so that one aligned read fetches both and the
 * payload is page-aligned. The header, little-endian, zeros up to its end:
 *
 *      0  magic "KVCREMOT"        24  key, 32 bytes
 *      8  version, 4 bytes        56  identity of the namespace, 32 bytes
 *     12  CRC32C of the header,   88  length of the payload, 4 bytes
 *         this field as zero      92  CRC32C of the payload
 *     16  generation, 8 bytes     96  created, ms since 1970, 8 bytes
 *
 * All here is a function of its arguments; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "key.h"

enum {
        REMOTE_HEADER_BYTES = 4096,
        REMOTE_PREFIX_MAX = 128,
        REMOTE_NAME_MAX = 320, /* with its NUL */
        REMOTE_CHUNK_MAX = 64 << 20,
};

/* What hosts have to have in common to share chunks: SHA-256 over the sharing secret of the tenant
 * (none: empty), the namespace's name and its canonical fingerprint, each preceded by its length.
 */
struct remote_identity {
        uint8_t bytes[32];
};

/* 0; -ELIBACC: there is no libcrypto, which is loaded at run time. */
int remote_identify(const void *secret, size_t secret_length, const char *name,
                    const char *fingerprint, struct remote_identity *ret);

struct remote_object {
        struct key key;
        struct remote_identity identity;
        uint64_t generation;
        uint32_t length, crc; /* of the payload */
        uint64_t created_ms;
};

/* Why an object is not served. In the order of the metric's values. */
enum remote_rejection {
        REMOTE_ACCEPTED,
        REMOTE_BAD_HEADER,   /* magic, checksum, or shorter than a header */
        REMOTE_BAD_VERSION,  /* of a later format */
        REMOTE_OTHER_OBJECT, /* key, identity or generation of another */
        REMOTE_BAD_LENGTH,   /* too large, or not the length of the object */
        REMOTE_BAD_CHECKSUM, /* of the payload */
        REMOTE_REJECTIONS,
};

void remote_object_write(const struct remote_object *o,
                         uint8_t ret_header[static REMOTE_HEADER_BYTES]);
/* `size`: of the whole object, header included; UINT64_MAX: not known, and not compared. `want`:
 * key, identity and generation that it must have. The payload's checksum is left to the caller. */
enum remote_rejection remote_object_read(const uint8_t header[static REMOTE_HEADER_BYTES],
                                         uint64_t size, const struct remote_object *want,
                                         struct remote_object *ret);

/* The object with the generation of a namespace, from 1 on. */
void remote_generation_write(const struct remote_identity *id, uint64_t generation,
                             uint64_t created_ms, uint8_t ret[static REMOTE_HEADER_BYTES]);
enum remote_rejection remote_generation_read(const uint8_t header[static REMOTE_HEADER_BYTES],
                                             uint64_t size, const struct remote_identity *id,
                                             uint64_t *ret);
/* That it says it is of; not checked. */
void remote_generation_identity(const uint8_t header[static REMOTE_HEADER_BYTES],
                                struct remote_identity *ret);

void remote_object_name(const char *prefix, uint64_t generation, const struct remote_identity *id,
                        const struct key *key, char ret[static REMOTE_NAME_MAX]);
void remote_generation_name(const char *prefix, const struct remote_identity *id,
                            char ret[static REMOTE_NAME_MAX]);
