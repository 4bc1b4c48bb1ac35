/* SPDX-License-Identifier: Apache-2.0 */
/* What a host offers cuFile: libraries, kernel module, configuration, file systems. Only looks:
 * cuFile's driver and CUDA's are not initialised. Each check is an object {name, ok, found, remedy}
 * that is added to an array of checks, and lowers the verdict if blocks cannot come that way. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

/* How blocks on disk get into device memory. The verdict is the least that any check leaves. */
enum gds_way {
        GDS_STAGING,    /* by the daemon's pool */
        GDS_UNKNOWN,    /* not refused by what is known, but not all is: no daemon */
        GDS_COMPATIBLE, /* by cuFile, which copies through host memory */
        GDS_DIRECT,
};

enum { GDS_TEXT = 512 };

struct gds_verdict {
        enum gds_way way;      /* GDS_DIRECT at first */
        char reason[GDS_TEXT]; /* the first for no more than this */
};

const char *gds_way_name(enum gds_way way);
/* No more than this way is left, for this reason. */
void gds_at_most(struct gds_verdict *v, enum gds_way way, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* The remedy is kept if the check is not ok. Returns `ok`. */
bool gds_check(cJSON *checks, const char *name, bool ok, const char *remedy, const char *format,
               ...) __attribute__((format(printf, 5, 6)));

/* `root` stands in front of the paths of the host's own files: "", or a test's. */
void gds_check_host(const char *root, cJSON *checks, struct gds_verdict *v);
/* `direct`: the daemon opens its files there with O_DIRECT. */
void gds_check_volume(const char *root, const char *path, bool direct, cJSON *checks,
                      struct gds_verdict *v);
