/* SPDX-License-Identifier: Apache-2.0 */
/* A file whose lock tells a client whether the I/O of a dead daemon has ended (rule R17 in
 * SECURITY.md): the file stays locked as long as any of that I/O may reach memory. The lock belongs
 * to an open file that every ring has registered, and a ring outlives its process until its I/O has
 * ended. Clients get a second open file of the same file, so that their attempt to lock it
 * conflicts with the daemon's lock. */
#pragma once

struct liveness {
        int locked_fd;  /* the locked open file; the caller registers it with every ring */
        int handout_fd; /* another open file of the same file, which clients get */
};

/* Creates and locks the file. Returns 0 or -errno. */
int liveness_open(struct liveness *ret);
/* Closes both descriptors. The lock stays with the rings that registered it. */
void liveness_close(struct liveness *l);
