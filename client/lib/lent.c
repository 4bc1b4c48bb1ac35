/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of the data files that loans refer to.
 *
 * Runs in the handle's thread. The library caches no descriptors: a program that reads the files
 * keeps its own state for each, such as a cuFile handle, and closes that state together with the
 * descriptor. */
#include <errno.h>

#include "lib/admin.h"
#include "lib/flow.h"

int kvcache_lent_file(struct kvcache *kv, const struct kvcache_loan *loan, int *ret_fd)
{
        struct control c = { .fd = -1 };
        struct wire_lent_file *w;
        struct message *m;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!loan || !ret_fd || loan->generation == 0)
                return handle_fail(kv, -EINVAL,
                                   "the loan or the result is NULL, or the loan is empty");
        flow_check_idle(kv);
        if (!kv->conn || loan->session != kv->sessions) {
                handle_leave(kv);
                return handle_fail(kv, -ESTALE, "the loan is of a session that has ended");
        }
        m = message_new(WIRE_LENT_FILE, sizeof(*w));
        if (!m) {
                handle_leave(kv);
                return handle_no_memory(kv);
        }
        w = (struct wire_lent_file *)m->data;
        w->file = loan->file;
        r = admin_call(kv, m, &c);
        if (r == 0)
                *ret_fd = c.fd;
        return r;
}
