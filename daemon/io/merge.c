/* SPDX-License-Identifier: Apache-2.0 */
#include "io/merge.h"

#include <stdlib.h>

#include "io/backend.h"

/* Of a write KIO_JOINED_MAX, which makes its way through the file system cheap; of a read less: who
 * waits for the first part shall not wait for much more, and while it is checked others shall be on
 * their way. Measured, with chunks of 4 to 64 KiB. */
enum { JOINT_READ_MAX = 128 * 1024 };
/* How many requests are looked at for neighbours: those that come in together. */
enum { JOINT_WINDOW = 32 };

struct joint {
        struct kio_request req;
        struct list_node parts;
        struct iovec pieces[KIO_PIECES_MAX];
};

void joints_init(struct joints *j, unsigned n)
{
        list_init(&j->unused);
        j->all = calloc(n, sizeof(*j->all));
        for (unsigned i = 0; j->all && i < n; i++)
                list_append(&j->unused, &j->all[i].req.node);
}

void joints_fini(struct joints *j)
{
        free(j->all);
        *j = (struct joints){ 0 };
}

/* One that has failed before goes alone. */
static bool may_join(const struct kio_request *req)
{
        return (req->op == KIO_READ || req->op == KIO_WRITE) && req->progress == 0 &&
               req->attempts == 0;
}

static bool is_neighbour(const struct kio_request *req, const struct kio_request *next)
{
        uint64_t max = req->op == KIO_READ ? JOINT_READ_MAX : KIO_JOINED_MAX;

        return next->op == req->op && next->fd == req->fd && next->path == req->path &&
               next->region == req->region && may_join(next) && req->length + next->length <= max &&
               (next->offset == req->offset + req->length ||
                next->offset + next->length == req->offset);
}

/* The first neighbour among those that come first; NULL: none is. It may lie before `req` on the
 * disk: the chunks that replace those of a chain lie so, since its last was evicted first. */
static struct kio_request *find_neighbour(const struct kio_request *req, struct list_node *ready)
{
        unsigned left = JOINT_WINDOW;

        list_for_each (ready, n) {
                if (is_neighbour(req, kio_request_of(n)))
                        return kio_request_of(n);
                if (--left == 0)
                        break;
        }
        return NULL;
}

static void joint_add(struct joint *joint, struct kio_request *next)
{
        struct kio_request *req = &joint->req;

        list_unlink(&next->node);
        if (next->offset > req->offset) {
                list_append(&joint->parts, &next->node);
        } else {
                list_prepend(&joint->parts, &next->node);
                req->offset = next->offset;
        }
        req->length += next->length;
}

struct kio_request *joints_take(struct joints *j, struct list_node *ready)
{
        struct kio_request *first = kio_request_of(list_pop(ready)), *next;
        struct joint *joint;

        if (list_empty(&j->unused) || !may_join(first) || !(next = find_neighbour(first, ready)))
                return first;
        joint = container_of(list_pop(&j->unused), struct joint, req.node);
        joint->req = (struct kio_request){
                .op = first->op,
                .class = first->class,
                .path = first->path,
                .fd = first->fd,
                .offset = first->offset,
                .length = first->length,
                .region = first->region,
                .parts = &joint->parts,
                .pieces = joint->pieces,
        };
        list_init(&joint->req.node);
        list_init(&joint->parts);
        list_append(&joint->parts, &first->node);
        for (unsigned n = 1; n < KIO_PARTS_MAX && next; n++) {
                joint_add(joint, next);
                next = find_neighbour(&joint->req, ready);
        }
        return &joint->req;
}

void joints_part(struct joints *j, struct kio_request *req, struct list_node *ret_parts)
{
        struct joint *joint = container_of(req, struct joint, req);

        list_splice(ret_parts, &joint->parts);
        list_prepend(&j->unused, &joint->req.node); /* what was never used is not there yet */
}
