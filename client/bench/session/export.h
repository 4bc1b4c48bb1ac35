/* SPDX-License-Identifier: Apache-2.0 */
/* Exports the raw counters of a session for other programs. */
#pragma once

#include <stdio.h>

#include "snapshot.h"

enum export_format {
        EXPORT_JSON,   /* the snapshot */
        EXPORT_CSV,    /* a line for each counter, and for each bucket of a histogram that is not
                          empty */
        EXPORT_JSONL,  /* a line for each metric, with the name of the session */
        EXPORT_DYNAMO, /* the object of Dynamo's layout benchmark */
};

/* Writes the counters. Returns 0 or -ENOMEM. */
int session_export(const struct snapshot *s, enum export_format format, FILE *out);
