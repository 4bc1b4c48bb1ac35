/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of `tenants`: adding, removing, merging and checking them.
 *
 * Runs on the loop thread, at startup and at a reload. An entry belongs to struct config. A later
 * file may give some keys of a tenant again; its entry is read as a tenant of its own and then
 * merged into the earlier one. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "config/internal.h"

int config_tenant_add(struct config *c, struct config_tenant **ret)
{
        void *p = realloc(c->tenants, (c->n_tenants + 1) * sizeof(*c->tenants));

        if (!p)
                return -ENOMEM;
        c->tenants = p;
        c->tenants[c->n_tenants] = (struct config_tenant){};
        *ret = &c->tenants[c->n_tenants++];
        /* Set the defaults that are not zero; numbers and lists have theirs already. */
        for (unsigned i = 0; i < config_n_tenant_rows; i++) {
                const struct config_row *row = &config_tenant_rows[i];
                char why[CONFIG_WHY];

                if ((row->type == CONFIG_SWITCH || row->type == CONFIG_FILE) &&
                    config_assign_to(*ret, row, row->initial, false, why) < 0)
                        return -ENOMEM;
        }
        return 0;
}

void config_tenant_drop(struct config *c, struct config_tenant *t)
{
        struct config_tenant *last = &c->tenants[--c->n_tenants];

        config_rows_fini(t, config_tenant_rows, config_n_tenant_rows);
        memmove(t, t + 1, (size_t)(last - t) * sizeof(*t));
}

static size_t member_bytes(const struct config_row *row)
{
        switch (row->type) {
        case CONFIG_MODE:
                return sizeof(uint32_t);
        case CONFIG_PATHS:
        case CONFIG_NAMES:
                return sizeof(struct config_strings);
        case CONFIG_BYTES:
        case CONFIG_COUNT:
        case CONFIG_TIME:
                return sizeof(uint64_t);
        case CONFIG_SWITCH:
                return sizeof(bool);
        default:
                return sizeof(char *);
        }
}

/* Exchanges a member of two tenants, so that dropping one of them frees the value that is not
 * kept. */
static void swap_member(struct config_tenant *a, struct config_tenant *b,
                        const struct config_row *row)
{
        char bytes[sizeof(struct config_strings)];
        size_t n = member_bytes(row);

        assert(n <= sizeof(bytes));
        memcpy(bytes, config_member(a, row), n);
        memcpy(config_member(a, row), config_member(b, row), n);
        memcpy(config_member(b, row), bytes, n);
}

struct config_tenant *config_tenant_merge(struct config *c, unsigned file)
{
        struct config_tenant *last = &c->tenants[c->n_tenants - 1], *t = c->tenants;

        last->file = (uint16_t)file;
        if (!last->name)
                return last;
        while (strcmp(t->name, last->name) != 0)
                t++;
        if (t == last || t->file == file)
                return last;
        for (unsigned i = 0; i < config_n_tenant_rows; i++) {
                if (!config_bit(last->given, i))
                        continue;
                swap_member(t, last, &config_tenant_rows[i]);
                t->place[i] = last->place[i];
                config_bit_set(t->given, i, true);
        }
        t->file = last->file;
        config_tenant_drop(c, last);
        return t;
}

int config_tenant_check(const struct config *c, const struct config_tenant *t,
                        char why[static CONFIG_WHY])
{
        bool is_default = t->name && strcmp(t->name, "default") == 0;
        unsigned others = 0;

        if (!t->name)
                return config_refuse(why, "this tenant has no name; add \"name: NAME\"");
        for (const struct config_tenant *o = c->tenants; o < t; o++) {
                others += strcmp(o->name, "default") != 0;
                if (strcmp(o->name, t->name) == 0)
                        return config_refuse(why, "there are two tenants \"%s\"", t->name);
        }
        if (is_default && (t->users.n > 0 || t->groups.n > 0 || t->pool > 0))
                return config_refuse(why, "tenant \"default\" has limits only: set its users and "
                                          "groups by access.users "
                                          "and access.groups, and its pool by memory.pool");
        if (!is_default && t->users.n == 0 && t->groups.n == 0)
                return config_refuse(
                        why, "tenant \"%s\" has neither users nor groups; list some of either",
                        t->name);
        if (!is_default && others + 1 >= CONFIG_MAX_TENANTS)
                return config_refuse(why, "more than %d tenants, \"default\" included; remove some",
                                     CONFIG_MAX_TENANTS);
        return 0;
}
