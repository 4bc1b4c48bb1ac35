/* SPDX-License-Identifier: Apache-2.0 */
/* See request-shared.h. */
#include "request-shared.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fake-backend.h"
#include "io/io.h"
#include "remote/internal.h"

void request_shared_put(struct remote *remote, uint32_t namespace_id, const struct key *key,
                        uint32_t value, uint32_t length)
{
        const struct namespace *ns = remote_namespace_find(remote, namespace_id);
        size_t bytes = REMOTE_HEADER_BYTES + (size_t)length;
        uint8_t *object = calloc(1, bytes);
        struct remote_object o = { .key = *key,
                                   .identity = ns->identity,
                                   .generation = ns->generation,
                                   .length = length,
                                   .created_ms = 5 };
        char name[REMOTE_NAME_MAX];

        assert_non_null(object);
        memset(object + REMOTE_HEADER_BYTES, (int)value, length);
        o.crc = kio_crc32c(object + REMOTE_HEADER_BYTES, length);
        remote_object_write(&o, object);
        remote_object_name("kvcache", ns->generation, &ns->identity, key, name);
        fake_put(name, object, bytes, value);
        free(object);
}
