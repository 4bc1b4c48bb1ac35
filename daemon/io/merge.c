/* SPDX-License-Identifier: Apache-2.0 */
/* Implements merge.h. Runs on the worker's thread, which has as many merged operations as it may
 * have requests in flight. Owns the merged operations; the requests in them stay their owners'.
 * Cannot fail: a request without an adjacent one, or without a free merged operation, is
 * submitted alone. */
#include "io/merge.h"

#include <stdlib.h>

#include "io/backend.h"

/* Most bytes in a merged read. A write may have KIO_JOINED_MAX, since merging saves work in the
 * file system. Reads are smaller, so that the first request does not wait long and its checksum
 * is computed while the next reads are in flight. Measured with chunks of 4 to 64 KiB. */
enum { MERGE_READ_MAX = 128 * 1024 };
/* Most requests that a search for an adjacent request examines: about a batch. */
enum { MERGE_WINDOW = 32 };

struct merged {
        struct kio_request req;
        struct list_node parts;
        struct iovec pieces[KIO_PIECES_MAX];
};

void merge_init(struct merge *j, unsigned n)
{
        list_init(&j->unused);
        j->all = calloc(n, sizeof(*j->all));
        for (unsigned i = 0; j->all && i < n; i++)
                list_append(&j->unused, &j->all[i].req.node);
}

void merge_fini(struct merge *j)
{
        free(j->all);
        *j = (struct merge){ 0 };
}

/* Returns whether a request can be merged: a read or write without a vector, of which nothing was
 * transferred yet. A request that has failed before is submitted alone. */
static bool may_merge(const struct kio_request *req)
{
        return (req->op == KIO_READ || req->op == KIO_WRITE) && !req->vector &&
               req->progress == 0 && req->attempts == 0;
}

static bool is_adjacent(const struct kio_request *req, const struct kio_request *next)
{
        uint64_t max = req->op == KIO_READ ? MERGE_READ_MAX : KIO_JOINED_MAX;

        return next->op == req->op && next->fd == req->fd && next->volume == req->volume &&
               next->region == req->region && may_merge(next) &&
               req->length + next->length <= max &&
               (next->offset == req->offset + req->length ||
                next->offset + next->length == req->offset);
}

/* Returns a request adjacent to `req` near the head of `ready`, or NULL. The request found may lie
 * before `req` on the disk: the chunks that replace an evicted chain are in descending order,
 * because the end of the chain was evicted first. */
static struct kio_request *find_adjacent(const struct kio_request *req, struct list_node *ready)
{
        unsigned left = MERGE_WINDOW;

        list_for_each (ready, n) {
                if (is_adjacent(req, kio_request_of(n)))
                        return kio_request_of(n);
                if (--left == 0)
                        break;
        }
        return NULL;
}

static void merge_add(struct merged *merged, struct kio_request *next)
{
        struct kio_request *req = &merged->req;

        list_unlink(&next->node);
        if (next->offset > req->offset) {
                list_append(&merged->parts, &next->node);
        } else {
                list_prepend(&merged->parts, &next->node);
                req->offset = next->offset;
        }
        req->length += next->length;
}

struct kio_request *merge_take(struct merge *j, struct list_node *ready)
{
        struct kio_request *first = kio_request_of(list_pop(ready)), *next;
        struct merged *merged;

        if (list_empty(&j->unused) || !may_merge(first) || !(next = find_adjacent(first, ready)))
                return first;
        merged = container_of(list_pop(&j->unused), struct merged, req.node);
        merged->req = (struct kio_request){
                .op = first->op,
                .class = first->class,
                .volume = first->volume,
                .fd = first->fd,
                .offset = first->offset,
                .length = first->length,
                .region = first->region,
                .parts = &merged->parts,
                .pieces = merged->pieces,
        };
        list_init(&merged->req.node);
        list_init(&merged->parts);
        list_append(&merged->parts, &first->node);
        for (unsigned n = 1; n < KIO_PARTS_MAX && next; n++) {
                merge_add(merged, next);
                next = find_adjacent(&merged->req, ready);
        }
        return &merged->req;
}

void merge_split(struct merge *j, struct kio_request *req, struct list_node *ret_parts)
{
        struct merged *merged = container_of(req, struct merged, req);

        list_splice(ret_parts, &merged->parts);
        list_prepend(&j->unused, &merged->req.node); /* reuses the memory that was touched last,
                                                      * before memory never used */
}
