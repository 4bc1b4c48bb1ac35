/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes batches over ZeroMQ as vLLM does: a PUB socket with messages [topic, sequence number,
 * payload], and a ROUTER socket that answers requests for earlier batches.
 *
 * The first sequence number is the time of startup in microseconds, so that a subscriber notices
 * a gap when this process has restarted. libzmq drops messages to a subscriber that does not
 * read them; the publisher never waits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct publisher;

struct publisher_params {
        const char *endpoint, *replay_endpoint; /* replay_endpoint may be NULL */
        const char *topic;
        size_t batches; /* maximum number of batches that are kept for replay */
        size_t bytes;   /* maximum total bytes of these batches */
};
/* Binds the sockets. Returns 0, or -errno and in `*ret_what` the endpoint that failed or
 * "memory". */
int publisher_new(struct publisher **ret, const struct publisher_params *params,
                  const char **ret_what);
struct publisher *publisher_free(struct publisher *p);

/* Publishes a payload, which is copied. An empty batch, which only shows subscribers the sequence
 * number, is not `kept` for replay. Returns 0, or -ENOMEM if the batch cannot be kept; a failure to
 * send is ignored, because subscribers notice the gap. */
int publisher_send(struct publisher *p, const uint8_t *payload, size_t bytes, bool kept);
/* Returns the sequence number of the last batch. */
uint64_t publisher_last(const struct publisher *p);

/* Takes a request for earlier batches and sets *ret_from to the first sequence number wanted.
 * Returns false if there is no request, or a malformed one was dropped. */
bool publisher_take_request(struct publisher *p, uint64_t *ret_from);
/* Returns whether all batches from the sequence number `from` on are kept; false also if `from` is
 * above that of the next batch. */
bool publisher_has(const struct publisher *p, uint64_t from);
/* Answers the request that was taken last: sends `payload`, unless it is NULL, with the sequence
 * number `number`, then the kept batches from `from` on, and then the end marker. */
void publisher_answer(struct publisher *p, uint64_t from, const uint8_t *payload, size_t bytes,
                      uint64_t number);
