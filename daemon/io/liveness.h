/* SPDX-License-Identifier: Apache-2.0 */
/* How a client learns that a dead daemon's I/O is over (rule R17): a file that is locked as long as
 * any of it may still land. The lock is on an open file that every ring has registered, and a ring
 * outlives its process until its I/O has ended. Clients get the same file opened anew, so that
 * their own attempt to lock it conflicts with ours. */
#pragma once

struct liveness {
        int locked_fd;  /* to be registered with every ring */
        int handout_fd; /* what clients get */
};

int liveness_open(struct liveness *ret);
void liveness_close(struct liveness *l);
