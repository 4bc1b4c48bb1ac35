/* SPDX-License-Identifier: Apache-2.0 */
/* Loans: GET with WIRE_F_LEND, LENT_FILE and GIVE_BACK. client_may_borrow() decides who may borrow.
 * Loop thread.
 *
 * A loan is charged to its user when it is made, and uncharged when the client returns it or its
 * connection is closed. Failures: a chunk that cannot be lent is read through the pool like any
 * other, and the result gives the reason. */
#include "request/internal.h"

#include <unistd.h>

#include "checked.h"

enum { LOAN_PAGE = 4096 };

/* Corrects the charges after a loan has ended or was refused. */
static void settle(struct client *client)
{
        quota_settle(&client->holds, QUOTA_LOANS, client->loans.count);
        quota_settle(&client->holds, QUOTA_LOANED_BYTES, client->loans.bytes);
}

static enum wire_not_lent lend(struct client *client, struct store_ref ref, uint32_t length,
                               struct wire_get_result *result)
{
        struct store_extent extent;
        struct store_loan loan;
        int r;

        if (!client_may_borrow(client))
                return WIRE_LEND_DENIED;
        if (client_charge(client, QUOTA_LOANS, 1) != WIRE_OK ||
            client_charge(client, QUOTA_LOANED_BYTES, round_up(length, LOAN_PAGE)) != WIRE_OK) {
                settle(client);
                return WIRE_LEND_LIMIT;
        }
        r = store_lend(client->tenant->service->store, &client->loans, ref, &loan, &extent);
        if (r != 0)
                settle(client);
        switch (r) {
        case 0:
                result->flags = WIRE_RESULT_LENT;
                result->tier = CACHE_DISK;
                result->lease = (struct wire_lease){ loan.id, loan.generation };
                result->file = extent.file;
                result->offset = extent.offset;
                result->length = result->chunk_length = extent.length;
                return WIRE_LEND_NONE;
        case STORE_UNVERIFIED:
                return WIRE_LEND_UNVERIFIED;
        case STORE_NOT_LENT:
                return WIRE_LEND_VOLUME;
        default:
                return WIRE_LEND_LIMIT;
        }
}

bool loan_begin(struct batch *b, uint32_t i, const struct key *key)
{
        struct client *client = b->request.client;
        struct wire_get_result *result = batch_result(b, i);
        struct cache_place place;
        struct store_chunk info;
        enum wire_not_lent reason;

        /* Lend only a chunk that is on disk alone. If memory has it, or another request is reading
         * it, the pool serves it sooner than the client could read it. */
        if (cache_find(client->tenant->cache, b->head.namespace_id, key, batch_hash(b, i), &place,
                       &info) != CACHE_DISK)
                return false;
        reason = lend(client, place.ref, info.length, result);
        if (reason != WIRE_LEND_NONE) {
                client->tenant->traffic.not_lent[reason]++;
                result->file = reason;
                return false;
        }
        b->part->places[i] = place;
        b->keys.found++;
        histogram_add(&client->tenant->traffic.got[GOT_LENT], batch_age(b));
        result->status = WIRE_OK;
        batch_key_end(b, WIRE_OK);
        return true;
}

enum wire_status loan_end(struct client *client, const struct wire_lease *loan)
{
        int r = store_give_back(client->tenant->service->store, &client->loans,
                                (struct store_loan){ loan->id, loan->generation });

        settle(client);
        return r == 0 ? WIRE_OK : r == STORE_MISS ? WIRE_MISS : WIRE_STALE;
}

uint32_t loans_end_some(struct client *client, uint32_t most)
{
        uint32_t n = store_give_back_some(client->tenant->service->store, &client->loans, most);

        if (n > 0)
                settle(client);
        return n;
}

/* --- LENT_FILE: the data files of lent chunks --- */

struct file_open {
        struct store_lent_file store;
        struct request request;
};

static void on_file(struct store_lent_file *store)
{
        struct file_open *op = container_of(store, struct file_open, store);
        struct request req = op->request;
        int fd = store->fd, result = store->result;
        uint64_t bytes = store->bytes;

        request_operation_free(req, op, sizeof(*op));
        if (result < 0) {
                request_fail(req, WIRE_FAILED,
                             "this data file was removed, or cannot be opened; get the chunk "
                             "without a loan");
        } else if (!req.client->takes_fds(req.client, 1)) {
                request_fail(req, WIRE_BUSY, CLIENT_UNREAD);
        } else {
                req.client->tenant->traffic.lent_files++;
                request_reply_fds(req, 0, bytes, &fd, 1);
        }
        if (result == 0)
                close(fd);
}

void loan_file(struct request req, const struct wire_lent_file *msg)
{
        struct client *client = req.client;
        struct file_open *op;

        if (!client_may_borrow(client)) {
                request_fail(req, WIRE_DENIED,
                             "this daemon does not lend data files to this user (io.gds)");
                return;
        }
        op = request_operation_new(req, sizeof(*op), 0);
        if (!op)
                return;
        op->request = req;
        op->store.file = msg->file;
        op->store.tenant = client->tenant->store_tenant;
        op->store.complete = on_file;
        if (store_open_lent(client->tenant->service->store, &op->store) != 0) {
                request_operation_free(req, op, sizeof(*op));
                request_fail(req, WIRE_STALE, "no chunk of this data file is lent");
        }
}
