/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the shared tier, as another host would write them. A part of request-fixture.c, apart
 * from it because the shared tier and the request layer each have a struct buffers. */
#pragma once

#include <stdint.h>

struct key;
struct remote;

/* Puts a chunk of `length` bytes of this value there. The namespace's generation is known. */
void request_shared_put(struct remote *remote, uint32_t namespace_id, const struct key *key,
                        uint32_t value, uint32_t length);
