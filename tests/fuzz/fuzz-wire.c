/* SPDX-License-Identifier: Apache-2.0 */
/* One datagram from a client: a message that wire_check_request() accepts can be read to its end,
 * and never beyond.
 *
 * libFuzzer runs it. The bytes are copied to memory of their exact size, so that the address
 * sanitizer detects a read past them. The test reads every entry and release, as a session does
 * with an accepted message. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fingerprint.h"
#include "wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void read_all(const void *p, size_t n)
{
        const uint8_t *b = p;
        uint64_t sum = 0;

        for (size_t i = 0; i < n; i++)
                sum += b[i];
        sink += sum;
}

static void read_batch(const struct wire_batch *b)
{
        const struct wire_lease *releases = wire_batch_releases(b);
        size_t entry = wire_entry_bytes(b->hdr.op);

        assert(b->count <= WIRE_MAX_KEYS && b->releases <= WIRE_MAX_RELEASES);
        assert((b->count == 0) == (b->hdr.op == WIRE_RELEASE));
        for (unsigned i = 0; i < b->count; i++)
                read_all((const uint8_t *)(b + 1) + i * entry, entry);
        for (unsigned i = 0; i < b->releases; i++)
                read_all(&releases[i], sizeof(releases[i]));
        assert((const uint8_t *)(releases + b->releases) == (const uint8_t *)b + b->hdr.len);
        assert(sizeof(struct wire_reply) + b->count * wire_result_bytes(b->hdr.op) <=
               WIRE_MAX_MESSAGE);
}

static void read_namespace(const struct wire_namespace *n)
{
        const char *name = (const char *)(n + 1), *fingerprint = name + n->name_length;
        char difference[64];

        assert(wire_name_check(name, n->name_length) == 0);
        assert(memchr(name, '\0', n->name_length) == NULL);
        if (wire_fingerprint_check(fingerprint, n->fingerprint_length) == 0)
                assert(n->fingerprint_length == 0 ||
                       fingerprint[n->fingerprint_length - 1] == '\n');
        /* Compares it with the name, and with itself without its first byte, because any two texts
         * may meet. */
        wire_fingerprint_diff(name, n->name_length, fingerprint, n->fingerprint_length, difference,
                              sizeof(difference));
        assert(memchr(difference, '\0', sizeof(difference)));
        if (n->fingerprint_length > 0)
                wire_fingerprint_diff(fingerprint + 1, n->fingerprint_length - 1u, fingerprint,
                                      n->fingerprint_length, difference, sizeof(difference));
        assert(memchr(difference, '\0', sizeof(difference)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct wire_hdr *msg = malloc(size > 0 ? size : 1);

        if (!msg)
                return 0;
        memcpy(msg, data, size);

        /* Corrects the length in half of the inputs, because few would get further otherwise. */
        if (size >= sizeof(*msg) && (data[0] & 1))
                msg->len = (uint32_t)size;

        if (!wire_check_request(msg, size)) {
                assert(msg->len == size && size <= WIRE_MAX_MESSAGE);
                assert(strcmp(wire_op_name(msg->op), "unknown") != 0);
                read_all(msg, size);
                switch (msg->op) {
                case WIRE_HELLO:
                        assert(memchr(((struct wire_hello *)msg)->client, '\0', WIRE_CLIENT_NAME));
                        break;
                case WIRE_NAMESPACE:
                        read_namespace((struct wire_namespace *)msg);
                        break;
                case WIRE_PUT:
                case WIRE_GET:
                case WIRE_RELEASE:
                case WIRE_EXISTS:
                case WIRE_MATCH:
                case WIRE_TOUCH:
                case WIRE_EVICT:
                case WIRE_STAT:
                case WIRE_PREFETCH:
                case WIRE_HINT:
                        read_batch((struct wire_batch *)msg);
                        break;
                default:
                        break;
                }
        }
        free(msg);
        return 0;
}
