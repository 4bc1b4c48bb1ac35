/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a command that asks the daemon at every interval and shows the answer: on a terminal,
 * redrawn in place; otherwise, or with `batch` or --json, one answer below the other. If the
 * daemon stops answering, the command shows the error, and tries to connect again at every
 * interval. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common.h"

struct watch {
        struct ctl *ctl;
        double interval;          /* seconds */
        unsigned long long count; /* number of intervals; 0: until interrupted */
        bool batch;
        /* Whether the first answer counts as an interval. If false, the first answer is only the
         * basis for computing rates, and is shown only on a terminal, so that the screen is not
         * empty. */
        bool at_once;

        /* Asks the connected daemon. Returns 0; -ENOMEM; another -errno if it did not answer. */
        int (*ask)(struct ctl *ctl, void *userdata);
        /* Called when the connection is lost, so that rates are not computed across two
         * connections. May be NULL. */
        void (*forget)(void *userdata);
        /* Prints the last answer as JSON. Returns an exit status. */
        int (*print_json)(void *userdata);
        /* Prints the last answer in at most `lines` lines; 0: all. */
        void (*print)(void *userdata, unsigned lines, bool colored, FILE *out);
        void *userdata;

        /* The other members are private. */
        bool screen;
        uint64_t answered_ms; /* Unix time of the last answer; 0: none yet */
        uint64_t lost_ms; /* Unix time since which the daemon has not answered; 0: it answered the
                             last request */
        char error[CTL_ERROR_BYTES]; /* why the daemon did not answer */
};

/* Parses the seconds of an option, 0.1 to 3600. Returns false after reporting an error and setting
 * ctl->exit_status. */
bool watch_interval(struct ctl *ctl, const char *option, const char *text, double *ret);
/* Connects, and asks at every interval until `count` intervals were shown or the user ends the
 * command. Returns an exit status: EXIT_UNREACHABLE if the last request was not answered. */
int watch_run(struct watch *w);
