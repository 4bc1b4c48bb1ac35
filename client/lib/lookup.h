/* SPDX-License-Identifier: Apache-2.0 */
/* The tenant's lookup index as this session has it: EXISTS and MATCH answered from memory that the
 * daemon writes, without a word to it. See lookup.h of proto. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/lookup.h"

struct kvcache;
struct kvcache_request;
struct wire_reply;

/* Of a session. */
struct lookup_serial {
        const void *base; /* NULL: there is none */
        uint64_t bytes;
        struct lookup_view view;
        uint64_t serial;    /* of the handle's maps: which one the namespaces' secrets are of */
        bool asking;        /* a LOOKUP is in the queue or on its way */
        int64_t not_before; /* when the next one may be sent, ms */
        int64_t alive_ns;   /* when the daemon was last seen to live */
};

/* Answers the request if it can be answered here and now: fills in the results, and how long the
 * leading run of a MATCH is. False: ask the daemon. */
bool lookup_answer(struct kvcache *kv, const struct kvcache_request *user, uint64_t *ret_value);
/* The daemon is being asked: for the index, too, if there is one to be had. */
void lookup_want(struct kvcache *kv);
/* The reply to LOOKUP; the descriptors stay the caller's: of the index, of the tally. -1: none. */
void lookup_take(struct kvcache *kv, const struct wire_reply *reply, int fd, int tally_fd);
/* Unmaps it. */
void lookup_fini(struct lookup_serial *l);
