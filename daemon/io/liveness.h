/* SPDX-License-Identifier: Apache-2.0 */
/* How a client learns that the I/O of a dead daemon has ended (rule R17): a file that stays locked
 * as long as any of it may still reach memory. The lock belongs to an open file that every ring has
 * registered, and a ring outlives its process until its I/O has ended. Clients get the same file
 * opened anew, so that their own attempt to lock it conflicts with the daemon's lock. */
#pragma once

struct liveness {
        int locked_fd;  /* to be registered with every ring */
        int handout_fd; /* what clients get */
};

int liveness_open(struct liveness *ret);
void liveness_close(struct liveness *l);
