/* SPDX-License-Identifier: Apache-2.0 */
#include "rest.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common.h"
#include "json.h"

enum { REST_QUIET = 3 /* consecutive quiet checks that count as rest */ };

int rest_look(struct rest *rest, struct kvcache *kv)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(cJSON_Deletep) cJSON *stats = NULL;
        const cJSON *item;
        double operations = 0;
        bool works;
        int r = kvcache_report(kv, KVCACHE_REPORT_STATS, &text);

        if (r < 0)
                return r;
        stats = cJSON_Parse(text);
        cJSON_ArrayForEach(item,
                           cJSON_GetObjectItemCaseSensitive(stats, "kvcache_io_operations_total"))
                operations += item->valuedouble;
        works = operations != rest->operations || json_number(stats, "kvcache_io_inflight") > 0 ||
                json_number(stats, "kvcache_io_queued") > 0 ||
                json_number(stats, "kvcache_pool_unwritten_bytes") > 0 ||
                json_number(stats, "kvcache_pool_size_bytes") >
                        json_number(stats, "kvcache_pool_populated_bytes");
        rest->quiet = works ? 0 : rest->quiet + 1;
        rest->operations = operations;
        return rest->quiet >= REST_QUIET;
}
