/* SPDX-License-Identifier: Apache-2.0 */
/* A command that asks the daemon again every interval and shows what it says: redrawn in place on a
 * terminal; elsewhere, with `batch` and with --json, one answer below the other. A daemon that
 * stops answering is shown as such, and connected to again every interval. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common.h"

struct watch {
        struct ctl *ctl;
        double interval;          /* seconds */
        unsigned long long count; /* of intervals; 0: until it is interrupted */
        bool batch;
        /* The first answer counts. If not, it is what the second one is compared with, and is shown
         * on a terminal only, so that the screen is not empty. */
        bool at_once;

        /* Asks the connected daemon. 0; -ENOMEM; other -errno: it did not answer. */
        int (*ask)(struct ctl *ctl, void *userdata);
        /* The connection is lost: the next answer is of another one. May be NULL. */
        void (*forget)(void *userdata);
        /* The last answer: an exit status. */
        int (*print_json)(void *userdata);
        /* The last answer in at most `lines` lines; 0: all. */
        void (*print)(void *userdata, unsigned lines, bool colored, FILE *out);
        void *userdata;

        /* The rest is private. */
        bool screen;
        uint64_t answered_ms;        /* Unix time of the last answer; 0: there has been none */
        uint64_t lost_ms;            /* since when there is none; 0: the last question has one */
        char error[CTL_ERROR_BYTES]; /* why */
};

/* Reads the seconds of an option, 0.1 to 3600. False: said so; ctl->exit_status is set. */
bool watch_interval(struct ctl *ctl, const char *option, const char *text, double *ret);
/* Connects, and runs until the count is reached or the user ends it. An exit status. */
int watch_run(struct watch *w);
