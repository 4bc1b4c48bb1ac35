/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table that finds a namespace by tenant and name. Its nodes are embedded in the caller's
 * namespaces. The table has a fixed number of buckets, because there are at most
 * STORE_MAX_NAMESPACES namespaces. The hash is keyed, so that a client cannot choose names that
 * share a bucket. The caller compares the names of nodes with an equal hash. Used by the list of a
 * volume and by that of the store. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "checked.h"
#include "key.h"

enum { NAMES_BUCKETS = 1024 };

struct name_node {
        struct name_node *next; /* next node of the bucket */
        uint64_t hash;
};

struct names {
        struct name_node *buckets[NAMES_BUCKETS];
};

/* Returns the hash of a namespace's tenant and name. Two tenants may use the same name. */
static inline uint64_t names_hash(const struct key_secret *secret, uint16_t tenant,
                                  const char *name, size_t length)
{
        uint64_t hash = (uint64_t)tenant << 16 | length;

        for (size_t done = 0; done < length; done += KEY_BYTES) {
                struct key part = { { 0 } };

                memcpy(part.bytes, name + done, MIN(length - done, (size_t)KEY_BYTES));
                hash = key_hash(secret, (uint32_t)(hash ^ hash >> 32), &part);
        }
        return hash;
}

static inline struct name_node **names_bucket(struct names *n, uint64_t hash)
{
        return &n->buckets[hash % NAMES_BUCKETS];
}

/* Returns the first node of the hash's bucket, which may hold nodes with other hashes, or NULL. */
static inline struct name_node *names_first(const struct names *n, uint64_t hash)
{
        return n->buckets[hash % NAMES_BUCKETS];
}

static inline void names_insert(struct names *n, struct name_node *node, uint64_t hash)
{
        node->hash = hash;
        node->next = names_first(n, hash);
        *names_bucket(n, hash) = node;
}

static inline void names_remove(struct names *n, struct name_node *node)
{
        struct name_node **link = names_bucket(n, node->hash);

        while (*link != node)
                link = &(*link)->next;
        *link = node->next;
}
