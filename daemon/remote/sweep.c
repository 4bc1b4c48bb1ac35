/* SPDX-License-Identifier: Apache-2.0 */
/* The sweeper. Loop thread. */
#include <errno.h>

#include "remote/internal.h"

void remote_sweep(struct remote *r, struct remote_sweep *sweep)
{
        (void)r;
        sweep->result = -ENOTSUP;
        sweep->complete(sweep);
}

void sweep_stop(struct remote *r)
{
        (void)r;
}

bool sweep_fini(struct remote *r)
{
        return r->sweeper == NULL;
}
