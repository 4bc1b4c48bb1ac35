/* SPDX-License-Identifier: Apache-2.0 */
/* Counts transfers of the program or of client/gpu: kvcache_count_transfer().
 *
 * Runs in the handle's thread; owns nothing. The first transfer that is counted requests the page
 * from which the daemon reads the counters (transfers.h), without waiting for it. If the page is
 * refused, the daemon never sees the counters, which is no error: the transfer itself was made. */
#include <errno.h>

#include "checked.h"
#include "kvcache-transfer.h"
#include "lib/abi.h"
#include "lib/message.h"
#include "lib/parts.h"

enum { TRANSFER_MIN = ABI_BYTES_TO(struct kvcache_transfer, duration_ns) };

static bool is_valid(const struct kvcache_transfer *t)
{
        return t->path < TRANSFER_PATHS && t->layout < TRANSFER_LAYOUTS &&
               t->technology < TRANSFER_TECHNOLOGIES && t->result < TRANSFER_RESULTS &&
               t->reserved == 0 && t->transfers > 0;
}

int parts_count_transfer(struct kvcache *kv, const struct kvcache_transfer *t)
{
        struct transfer_record sum = {
                .result = t->result,
                .blocks = t->blocks,
                .regions = t->regions,
                .bytes = t->bytes,
                .device_bytes = MAX(t->bytes, t->device_bytes),
                .latency_ns = t->duration_ns,
        };
        int r;

        if (!kv->conn)
                return -ENOTCONN;
        if (!(kv->conn->features & WIRE_FEATURE_TRANSFERS))
                return -EOPNOTSUPP;
        r = transfers_count(&kv->conn->transfers, transfer_key(t->path, t->layout, t->technology),
                            &sum, t->transfers, (uint64_t)handle_now_ns());
        if (r == 0)
                message_ask_for_transfers(kv);
        return r;
}

int kvcache_count_transfer(struct kvcache *kv, const struct kvcache_transfer *transfer)
{
        struct kvcache_transfer t = { 0 };
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!transfer || !abi_size_is_valid(transfer->size, TRANSFER_MIN))
                r = handle_fail(kv, -EINVAL, "the transfer is NULL, or its size is not set");
        else if (abi_copy_in(&t, sizeof(t), transfer, transfer->size) < 0)
                r = handle_is_newer(kv, "transfer");
        else if (!is_valid(&t))
                r = handle_fail(kv, -EINVAL,
                                "the transfer's path %u, layout %u, technology %u or result %u is "
                                "unknown, or its number of transfers, %llu, is 0",
                                t.path, t.layout, t.technology, t.result,
                                (unsigned long long)t.transfers);
        else
                r = parts_count_transfer(kv, &t);
        handle_leave(kv);
        return r;
}
