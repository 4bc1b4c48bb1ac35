/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the copies of a sweep's clients between layouts and chunks, as the snapshot of a session:
 * host_to_host by memcpy(), for each layout. Only measured passes count. */
#pragma once

#include "snapshot.h"
#include "sweep.h"

struct sweep_tally {
        struct snapshot_metric metrics[SWEEP_LAYOUTS];
        struct snapshot_layout layouts[SNAPSHOT_MAX_LAYOUTS];
        size_t n_layouts;
        double enabled_secs; /* duration of the measured passes */
        uint64_t begun_ms;   /* start, in Unix time */
};

void sweep_tally_init(struct sweep_tally *t);
/* Returns an observer that counts into `t`, which must outlive it. Its `pass` fails only with
 * -ENOMEM. */
struct sweep_observer sweep_tally_observer(struct sweep_tally *t);
/* Makes a snapshot with this name. Its arrays belong to `t`. */
void sweep_tally_snapshot(struct sweep_tally *t, const char *name, struct snapshot *ret);
