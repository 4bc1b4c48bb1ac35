/* SPDX-License-Identifier: Apache-2.0 */
/* Maps tenants' names to ids. Ids are stored as namespaces of a reserved tenant. Such an entry is
 * written to every volume before anything refers to it, and is never removed; a store without
 * tenants needs no new format.
 *
 * A new name gets the lowest id that no name ever had. Runs at startup, on the loop thread, before
 * the loop. */
#include "tenant/ids.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/list.h"
#include "cleanup.h"
#include "io/io.h"
#include "store/store.h"

enum { WAIT_S = 60, POLL_MS = 100 };

/* Returns the number in a fingerprint of the form "number=3\n", or -1 if it has another form. */
static int number_of(const struct store_namespace *ns)
{
        unsigned long number;
        char *end;

        if (strncmp(ns->fingerprint, "number=", 7) != 0 || ns->fingerprint[7] < '1' ||
            ns->fingerprint[7] > '9')
                return -1;
        errno = 0;
        number = strtoul(ns->fingerprint + 7, &end, 10);
        return errno == 0 && strcmp(end, "\n") == 0 && number < TENANT_IDS ? (int)number : -1;
}

/* Marks the ids that a tenant's name or a namespace uses. Returns 0, or -EUCLEAN with a sentence in
 * `ret_error`. */
static int mark_used_numbers(const struct store *store, bool *used, char *ret_error)
{
        const struct store_namespace *ns;

        memset(used, 0, TENANT_IDS);
        for (unsigned i = 0; (ns = store_namespace_at(store, i)); i++) {
                int number;

                if (ns->tenant != TENANT_IDS)
                        continue;
                number = number_of(ns);
                if (number < 0 || used[number]) {
                        snprintf(ret_error, 256,
                                 "store: cannot determine the number of tenant \"%.80s\": the "
                                 "records of its namespaces are damaged",
                                 ns->name);
                        return -EUCLEAN;
                }
                used[number] = true;
        }
        /* A number with namespaces but without a name belongs to no tenant, and must not be
         * assigned again. */
        for (unsigned i = 0; (ns = store_namespace_at(store, i)); i++)
                if (ns->tenant != TENANT_IDS)
                        used[ns->tenant] = true;
        return 0;
}

uint16_t tenant_id_of(const struct store *store, const char *name)
{
        const struct store_namespace *ns =
                store_namespace_find(store, TENANT_IDS, name, strlen(name));

        return ns ? (uint16_t)number_of(ns) : 0;
}

struct name_search {
        uint16_t number;
        const char *name;
};

static bool has_number(void *userdata, const struct store_namespace *ns)
{
        struct name_search *search = userdata;

        if (ns->tenant == TENANT_IDS && number_of(ns) == search->number)
                search->name = ns->name;
        return !search->name;
}

const char *tenant_id_name(const struct store *store, uint16_t number)
{
        struct name_search search = { .number = number };

        store_namespaces_walk(store, false, has_number, &search);
        return search.name;
}

struct opening {
        struct store_namespace_open req;
        struct openings *all; /* NULL if the name already had a number */
        char fingerprint[32];
};

struct openings {
        unsigned left;
        struct opening ops[];
};

static void on_opened(struct store_namespace_open *req)
{
        container_of(req, struct opening, req)->all->left--;
}

static void opening_init(struct opening *op, const char *name, unsigned number,
                         struct openings *all)
{
        int length = snprintf(op->fingerprint, sizeof(op->fingerprint), "number=%u\n", number);

        op->all = all;
        op->req = (struct store_namespace_open){
                .tenant = TENANT_IDS,
                .name = name,
                .name_length = (uint16_t)strlen(name),
                .fingerprint = op->fingerprint,
                .fingerprint_length = (uint16_t)length,
                .owner = STORE_NO_OWNER,
                .complete = on_opened,
        };
}

/* Runs the store until all names are written, or returns -ETIMEDOUT after WAIT_S. The names are
 * written together, with one sync. A volume that hangs is bypassed, as it would be later. */
static int wait_for(struct store *store, struct kio *io, const unsigned *left)
{
        uint64_t late = clock_mono_ns() + (uint64_t)WAIT_S * 1000000000;

        while (*left > 0) {
                if (clock_mono_ns() > late)
                        return -ETIMEDOUT;
                store_tick(store);
                store_iterate(store);
                kio_wait(io, *left > 0 ? POLL_MS : 0);
        }
        return 0;
}

int tenant_ids_assign(struct store *store, struct kio *io, const char *const *names, unsigned n,
                      uint16_t *ret_numbers, char ret_error[static 256])
{
        _cleanup_(freep) bool *used = malloc(TENANT_IDS);
        /* The store uses this memory while it writes. */
        struct openings *all = calloc(1, sizeof(*all) + n * sizeof(all->ops[0]));
        unsigned number = 1;
        int r = used && all ? mark_used_numbers(store, used, ret_error) : -ENOMEM;

        for (unsigned i = 0; r == 0 && i < n; i++) {
                ret_numbers[i] = tenant_id_of(store, names[i]);
                if (ret_numbers[i] != 0 || strcmp(names[i], "default") == 0)
                        continue;
                while (number < TENANT_IDS && used[number])
                        number++;
                if (number == TENANT_IDS) {
                        r = -ENOSPC;
                        break;
                }
                used[number] = true;
                ret_numbers[i] = (uint16_t)number;
                opening_init(&all->ops[i], names[i], number, all);
        }
        for (unsigned i = 0; r == 0 && i < n; i++)
                if (all->ops[i].all) {
                        all->left++;
                        store_namespace_open(store, &all->ops[i].req);
                }
        if (r == 0)
                r = wait_for(store, io, &all->left);
        if (r == -ETIMEDOUT)
                all = NULL; /* the store may still use the requests, so they are not freed */
        for (unsigned i = 0; r == 0 && i < n; i++)
                if (all->ops[i].all && all->ops[i].req.result != 0)
                        r = all->ops[i].req.result < 0 ? all->ops[i].req.result : -EIO;
        free(all);
        if (r < 0 && r != -EUCLEAN)
                snprintf(ret_error, 256, "store: cannot assign numbers to the tenants: %s",
                         strerror(-r));
        return r;
}
