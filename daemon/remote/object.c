/* SPDX-License-Identifier: Apache-2.0 */
/* Implements object.h. Owns only libcrypto, which is loaded at first use and stays loaded.
 *
 * The bytes of an object may come from a host that failed while writing, or from a storage system
 * that returns another object. Therefore no field is used before the checksum of the header has
 * been compared. Magic, version and checksum have the same place in every version, so that an
 * object of a later version is not mistaken for a damaged one. */
#include "remote/object.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <isa-l/crc.h>

static const char magic[8] = { 'K', 'V', 'C', 'R', 'E', 'M', 'O', 'T' };

enum {
        REMOTE_VERSION = 1,
        AT_VERSION = 8,
        AT_CRC = 12,
        AT_GENERATION = 16,
        AT_KEY = 24,
        AT_IDENTITY = 56,
        AT_LENGTH = 88,
        AT_PAYLOAD_CRC = 92,
        AT_CREATED = 96,
        ID_BYTES = 16, /* bytes of the identity that a name contains */
};

/* --- identity --- */

static uint8_t *append(uint8_t *to, const void *bytes, size_t n)
{
        uint64_t length = htole64(n);

        memcpy(to, &length, sizeof(length));
        if (n > 0)
                memcpy(to + sizeof(length), bytes, n);
        return to + sizeof(length) + n;
}

int remote_identify(const void *secret, size_t secret_length, const char *name,
                    const char *fingerprint, struct remote_identity *ret)
{
        typedef unsigned char *sha256(const unsigned char *, size_t, unsigned char *);
        size_t n = 3 * sizeof(uint64_t) + secret_length + strlen(name) + strlen(fingerprint);
        void *library = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        uint8_t *bytes, *end;
        void *symbol;
        sha256 *hash;

        symbol = library ? dlsym(library, "SHA256") : NULL;
        if (!symbol)
                return -ELIBACC;
        memcpy(&hash, &symbol, sizeof(hash));
        bytes = malloc(n);
        if (!bytes)
                return -ENOMEM;
        end = append(bytes, secret, secret_length);
        end = append(end, name, strlen(name));
        append(end, fingerprint, strlen(fingerprint));
        hash(bytes, n, ret->bytes);
        explicit_bzero(bytes, n);
        free(bytes);
        return 0;
}

/* --- the header --- */

static uint32_t extend(uint32_t crc, const uint8_t *bytes, size_t n)
{
        /* crc32_iscsi() does not write to the buffer; its prototype merely lacks the const. */
        return crc32_iscsi((unsigned char *)(uintptr_t)bytes, (int)n, crc);
}

static uint32_t header_crc(const uint8_t header[static REMOTE_HEADER_BYTES])
{
        static const uint8_t zeros[4];
        uint32_t crc = ~UINT32_C(0);

        crc = extend(crc, header, AT_CRC);
        crc = extend(crc, zeros, sizeof(zeros));
        crc = extend(crc, header + AT_CRC + 4, REMOTE_HEADER_BYTES - AT_CRC - 4);
        return ~crc;
}

static void set32(uint8_t *at, uint32_t value)
{
        value = htole32(value);
        memcpy(at, &value, sizeof(value));
}

static void set64(uint8_t *at, uint64_t value)
{
        value = htole64(value);
        memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
        uint32_t value;

        memcpy(&value, at, sizeof(value));
        return le32toh(value);
}

static uint64_t get64(const uint8_t *at)
{
        uint64_t value;

        memcpy(&value, at, sizeof(value));
        return le64toh(value);
}

void remote_object_write(const struct remote_object *o,
                         uint8_t ret_header[static REMOTE_HEADER_BYTES])
{
        memset(ret_header, 0, REMOTE_HEADER_BYTES);
        memcpy(ret_header, magic, sizeof(magic));
        set32(ret_header + AT_VERSION, REMOTE_VERSION);
        set64(ret_header + AT_GENERATION, o->generation);
        memcpy(ret_header + AT_KEY, o->key.bytes, sizeof(o->key.bytes));
        memcpy(ret_header + AT_IDENTITY, o->identity.bytes, sizeof(o->identity.bytes));
        set32(ret_header + AT_LENGTH, o->length);
        set32(ret_header + AT_PAYLOAD_CRC, o->crc);
        set64(ret_header + AT_CREATED, o->created_ms);
        set32(ret_header + AT_CRC, header_crc(ret_header));
}

/* Decodes a valid header, without comparing it with an expected object. */
static enum remote_rejection parse(const uint8_t header[static REMOTE_HEADER_BYTES], uint64_t size,
                                   struct remote_object *ret)
{
        if (size < REMOTE_HEADER_BYTES || memcmp(header, magic, sizeof(magic)) != 0 ||
            get32(header + AT_CRC) != header_crc(header))
                return REMOTE_BAD_HEADER;
        if (get32(header + AT_VERSION) != REMOTE_VERSION)
                return REMOTE_BAD_VERSION;
        memcpy(ret->key.bytes, header + AT_KEY, sizeof(ret->key.bytes));
        memcpy(ret->identity.bytes, header + AT_IDENTITY, sizeof(ret->identity.bytes));
        ret->generation = get64(header + AT_GENERATION);
        ret->length = get32(header + AT_LENGTH);
        ret->crc = get32(header + AT_PAYLOAD_CRC);
        ret->created_ms = get64(header + AT_CREATED);
        return REMOTE_ACCEPTED;
}

static bool same_identity(const struct remote_identity *a, const struct remote_identity *b)
{
        return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

static bool has_length(const struct remote_object *o, uint64_t size)
{
        return o->length <= REMOTE_CHUNK_MAX &&
               (size == UINT64_MAX || size - REMOTE_HEADER_BYTES == o->length);
}

enum remote_rejection remote_object_read(const uint8_t header[static REMOTE_HEADER_BYTES],
                                         uint64_t size, const struct remote_object *want,
                                         struct remote_object *ret)
{
        struct remote_object o;
        enum remote_rejection r = parse(header, size, &o);

        if (r != REMOTE_ACCEPTED)
                return r;
        if (!key_equal(&o.key, &want->key) || !same_identity(&o.identity, &want->identity) ||
            o.generation != want->generation)
                return REMOTE_OTHER_OBJECT;
        if (o.length == 0 || !has_length(&o, size))
                return REMOTE_BAD_LENGTH;
        *ret = o;
        return REMOTE_ACCEPTED;
}

/* --- the generation of a namespace --- */

void remote_generation_write(const struct remote_identity *id, uint64_t generation,
                             uint64_t created_ms, uint8_t ret[static REMOTE_HEADER_BYTES])
{
        struct remote_object o = { .identity = *id,
                                   .generation = generation,
                                   .created_ms = created_ms };

        remote_object_write(&o, ret);
}

enum remote_rejection remote_generation_read(const uint8_t header[static REMOTE_HEADER_BYTES],
                                             uint64_t size, const struct remote_identity *id,
                                             uint64_t *ret)
{
        struct remote_object o;
        enum remote_rejection r = parse(header, size, &o);

        if (r != REMOTE_ACCEPTED)
                return r;
        if (!key_is_root(&o.key) || !same_identity(&o.identity, id) || o.generation == 0)
                return REMOTE_OTHER_OBJECT;
        if (o.length != 0 || !has_length(&o, size))
                return REMOTE_BAD_LENGTH;
        *ret = o.generation;
        return REMOTE_ACCEPTED;
}

void remote_generation_identity(const uint8_t header[static REMOTE_HEADER_BYTES],
                                struct remote_identity *ret)
{
        memcpy(ret->bytes, header + AT_IDENTITY, sizeof(ret->bytes));
}

/* --- names --- */

static void id_to_hex(const struct remote_identity *id, char ret[static 2 * ID_BYTES + 1])
{
        for (unsigned i = 0; i < ID_BYTES; i++)
                snprintf(ret + (size_t)2 * i, 3, "%02x", id->bytes[i]);
}

void remote_object_name(const char *prefix, uint64_t generation, const struct remote_identity *id,
                        const struct key *key, char ret[static REMOTE_NAME_MAX])
{
        char hex[KEY_HEX_BYTES + 1], id_hex[2 * ID_BYTES + 1];

        key_to_hex(key, hex);
        id_to_hex(id, id_hex);
        snprintf(ret, REMOTE_NAME_MAX, "%.*s/%" PRIu64 "/%s/%.2s/%s", REMOTE_PREFIX_MAX, prefix,
                 generation, id_hex, hex, hex);
}

void remote_generation_name(const char *prefix, const struct remote_identity *id,
                            char ret[static REMOTE_NAME_MAX])
{
        char id_hex[2 * ID_BYTES + 1];

        id_to_hex(id, id_hex);
        snprintf(ret, REMOTE_NAME_MAX, "%.*s/generation/%s", REMOTE_PREFIX_MAX, prefix, id_hex);
}
