/* SPDX-License-Identifier: Apache-2.0 */
/* Joins client and daemon times; see waterfall.h. An operation belongs to a batch if it lies
 * between the client's call and the batch's reply, unless the daemon ran it in the background.
 * Operations of other clients distort the times, so nothing else should run. */
#include "waterfall.h"

#include <errno.h>
#include <string.h>

#include "checked.h"

enum { BATCH_STAMPS = 4, OPERATION_STAMPS = 5 };

/* The times of one batch, ns; 0 in `at`: no operation passed the point. `begin`: start of the
 * client's call; `replied`: time of the daemon's reply, 0 if the report does not have the batch. */
struct passage {
        uint64_t begin, replied;
        uint64_t at[WATERFALL_POINTS];
};

const char *waterfall_point_name(enum waterfall_point point)
{
        static const char *const names[] = {
                [WATERFALL_RECEIVED] = "the daemon's loop has the request",
                [WATERFALL_SUBMITTED] = "the loop has begun all keys",
                [WATERFALL_COPY_BEGUN] = "a worker begins to copy, or to compute checksums",
                [WATERFALL_COPY_DONE] = "the last copy or checksum is done",
                [WATERFALL_COPY_TAKEN] = "the loop has the last copy or checksum",
                [WATERFALL_READ_BEGUN] = "a worker gives the device the first read",
                [WATERFALL_READ_DEVICE] = "the device is done with the last read",
                [WATERFALL_READ_DONE] = "the last read's checksum is compared",
                [WATERFALL_READ_TAKEN] = "the loop has the last read",
                [WATERFALL_WRITE_BEGUN] = "a worker gives the device the first write",
                [WATERFALL_WRITE_DEVICE] = "the device is done with the last write",
                [WATERFALL_WRITE_TAKEN] = "the loop has the last write",
                [WATERFALL_TABLE_BEGUN] = "a worker gives the device the table's page",
                [WATERFALL_TABLE_DEVICE] = "the device is done with the table's page",
                [WATERFALL_TABLE_TAKEN] = "the loop has the table's page",
                [WATERFALL_REPLIED] = "the reply is in the socket",
                [WATERFALL_ENDED] = "the client's call returns",
        };

        return names[point];
}

/* Reads the first `n` stamps of an event, ns. Returns false if there are fewer, or one is invalid.
 */
static bool read_stamps(const cJSON *event, unsigned n, uint64_t *ret)
{
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(event, "at_ns");

        for (unsigned i = 0; i < n; i++) {
                const cJSON *item = cJSON_GetArrayItem(list, (int)i);

                if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 9e15)
                        return false;
                ret[i] = (uint64_t)item->valuedouble;
        }
        return true;
}

static void first(uint64_t *point, uint64_t at)
{
        if (*point == 0 || at < *point)
                *point = at;
}

static void last(uint64_t *point, uint64_t at)
{
        *point = MAX(*point, at);
}

static void add_operation(struct passage *p, const char *name, uint64_t chunks, const uint64_t *at)
{
        bool is_write = strcmp(name, "write") == 0;

        if (at[0] < p->begin || at[4] > p->replied)
                return;
        if (strcmp(name, "copy") == 0) {
                first(&p->at[WATERFALL_COPY_BEGUN], at[1]);
                last(&p->at[WATERFALL_COPY_DONE], at[3]);
                last(&p->at[WATERFALL_COPY_TAKEN], at[4]);
        } else if (strcmp(name, "read") == 0) {
                first(&p->at[WATERFALL_READ_BEGUN], at[1]);
                last(&p->at[WATERFALL_READ_DEVICE], at[2]);
                last(&p->at[WATERFALL_READ_DONE], at[3]);
                last(&p->at[WATERFALL_READ_TAKEN], at[4]);
        } else if (is_write && chunks > 0) {
                first(&p->at[WATERFALL_WRITE_BEGUN], at[1]);
                last(&p->at[WATERFALL_WRITE_DEVICE], at[2]);
                last(&p->at[WATERFALL_WRITE_TAKEN], at[4]);
        } else if (is_write) {
                first(&p->at[WATERFALL_TABLE_BEGUN], at[1]);
                last(&p->at[WATERFALL_TABLE_DEVICE], at[2]);
                last(&p->at[WATERFALL_TABLE_TAKEN], at[4]);
        }
}

static uint64_t number(const cJSON *event, const char *key)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, key);

        return cJSON_IsNumber(item) && item->valuedouble > 0 ? (uint64_t)item->valuedouble : 0;
}

/* Finds the batch of `keys` keys that began within the call, and sets its times in `p`. Returns 0,
 * also if there is no such batch; -EINVAL if the report is malformed. */
static int find_batch(struct passage *p, const cJSON *events, const char *operation, uint64_t keys,
                      uint64_t end_ns)
{
        const cJSON *event;
        uint64_t at[BATCH_STAMPS];

        cJSON_ArrayForEach(event, events)
        {
                const cJSON *batch = cJSON_GetObjectItemCaseSensitive(event, "batch");

                if (!cJSON_IsString(batch))
                        continue;
                if (!read_stamps(event, BATCH_STAMPS, at))
                        return -EINVAL;
                if (strcmp(batch->valuestring, operation) != 0 || number(event, "keys") != keys ||
                    at[1] < p->begin || at[1] > end_ns)
                        continue;
                /* If the loop thread was already awake, its first stamp may be earlier than the
                 * call. */
                p->at[WATERFALL_RECEIVED] = MAX(at[0], p->begin);
                p->at[WATERFALL_SUBMITTED] = at[2];
                /* The client may have read the reply before the loop thread read the clock. */
                p->at[WATERFALL_REPLIED] = MIN(at[3], end_ns);
                p->replied = at[3];
        }
        return 0;
}

static int add_operations(struct passage *p, const cJSON *events)
{
        const cJSON *event;
        uint64_t at[OPERATION_STAMPS];

        cJSON_ArrayForEach(event, events)
        {
                const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "operation");

                if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(event, "batch")))
                        continue;
                if (!cJSON_IsString(name) || !read_stamps(event, OPERATION_STAMPS, at))
                        return -EINVAL;
                if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(event, "background")))
                        add_operation(p, name->valuestring, number(event, "chunks"), at);
        }
        return 0;
}

int waterfall_add(struct waterfall *w, const cJSON *report, const char *operation, uint64_t keys,
                  uint64_t begin_ns, uint64_t end_ns)
{
        const cJSON *events = cJSON_GetObjectItemCaseSensitive(report, "events");
        struct passage p = { .begin = begin_ns };

        if (!cJSON_IsArray(events) || find_batch(&p, events, operation, keys, end_ns) < 0 ||
            add_operations(&p, events) < 0)
                return -EINVAL;
        if (p.at[WATERFALL_RECEIVED] == 0) {
                w->unseen++;
                return 0;
        }
        p.at[WATERFALL_ENDED] = end_ns;
        for (unsigned i = 0; i < WATERFALL_POINTS; i++)
                if (p.at[i] > 0)
                        latency_add(&w->points[i], p.at[i] - MIN(begin_ns, p.at[i]));
        return 0;
}

unsigned waterfall_order(struct waterfall *w, enum waterfall_point ret[static WATERFALL_POINTS])
{
        size_t all = w->points[WATERFALL_ENDED].n;
        unsigned n = 0;

        for (unsigned i = 0; i < WATERFALL_POINTS; i++) {
                uint64_t at;
                unsigned k = n;

                if (w->points[i].n == 0 || 2 * w->points[i].n < all)
                        continue;
                at = latency_quantile(&w->points[i], 0.5);
                for (; k > 0 && latency_quantile(&w->points[ret[k - 1]], 0.5) > at; k--)
                        ret[k] = ret[k - 1];
                ret[k] = (enum waterfall_point)i;
                n++;
        }
        return n;
}

void waterfall_fini(struct waterfall *w)
{
        for (unsigned i = 0; i < WATERFALL_POINTS; i++)
                latency_fini(&w->points[i]);
}
