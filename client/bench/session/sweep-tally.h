/* SPDX-License-Identifier: Apache-2.0 */
/* What the clients of a sweep copied between the layout and chunks, as the snapshot of a session:
 * host_to_host by memcpy(), in each layout. Only measured passes count. */
#pragma once

#include "snapshot.h"
#include "sweep.h"

struct sweep_tally {
        struct snapshot_metric metrics[SWEEP_LAYOUTS];
        struct snapshot_layout layouts[SNAPSHOT_MAX_LAYOUTS];
        size_t n_layouts;
        double enabled_secs; /* the measured passes */
        uint64_t begun_ms;   /* Unix time */
};

void sweep_tally_init(struct sweep_tally *t);
/* Of the tally, which must outlive it. Its passes fail with -ENOMEM only. */
struct sweep_observer sweep_tally_observer(struct sweep_tally *t);
/* As a snapshot with this name. Its arrays are the tally's. */
void sweep_tally_snapshot(struct sweep_tally *t, const char *name, struct snapshot *ret);
