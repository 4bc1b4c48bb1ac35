/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what a host offers cuFile: libraries, kernel module, configuration, file systems. The
 * checks only read: they initialize neither cuFile's driver nor CUDA's. Each check adds an
 * object {name, ok, found, remedy} to an array, and lowers the verdict if it rules out a way of
 * transfer. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Ways in which blocks on disk reach device memory, from worst to best. The verdict is the best way
 * that all checks allow. */
enum gds_way {
        GDS_STAGING, /* through the daemon's pool */
        GDS_UNKNOWN, /* no check requires staging, but a fact is missing: no daemon answered, or its
                        volumes or the file system of one are not known */
        GDS_COMPATIBLE, /* through cuFile, which copies through host memory */
        GDS_DIRECT,
};

enum { GDS_TEXT = 512 };

struct gds_verdict {
        enum gds_way way;      /* GDS_DIRECT at first */
        char reason[GDS_TEXT]; /* reason of the first check that lowered `way` to its value; ""
                                  for GDS_DIRECT */
};

const char *gds_way_name(enum gds_way way);
/* Lowers the verdict to `way` and records the formatted reason, unless the verdict is as low
 * already. */
void gds_at_most(struct gds_verdict *v, enum gds_way way, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
/* Adds a check to the array; the remedy is kept only if `ok` is false. Returns `ok`. */
bool gds_check(cJSON *checks, const char *name, bool ok, const char *remedy, const char *format,
               ...) __attribute__((format(printf, 5, 6)));

/* Checks the host. `root` is prepended to the paths of its files: "", or a test's directory. */
void gds_check_host(const char *root, cJSON *checks, struct gds_verdict *v);
/* Checks a volume: O_DIRECT, the file system, udev's entry of its device, and whether this user may
 * open its files. `direct`: the daemon opens them with O_DIRECT. */
void gds_check_volume(const char *root, const char *path, bool direct, cJSON *checks,
                      struct gds_verdict *v);
