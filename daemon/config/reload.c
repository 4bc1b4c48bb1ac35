/* SPDX-License-Identifier: Apache-2.0 */
/* Reload: compares the configuration in force with one that was just read, takes over the keys that
 * may change, and reports these and all others that differ.
 *
 * Runs on the loop thread. Keeps no state. Errors are found before anything is changed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "config/internal.h"

static bool row_equal(const void *a, const void *b, const struct config_row *row)
{
        const void *ma = config_member(a, row), *mb = config_member(b, row);
        const struct config_strings *sa = ma, *sb = mb;

        switch (row->type) {
        case CONFIG_SOCKET:
        case CONFIG_HTTP:
        case CONFIG_FILE:
        case CONFIG_TEXT:
        case CONFIG_CHOICE:
        case CONFIG_TENANT:
                return strcmp(*(char *const *)ma, *(char *const *)mb) == 0;
        case CONFIG_MODE:
                return *(const uint32_t *)ma == *(const uint32_t *)mb;
        case CONFIG_PATHS:
        case CONFIG_NAMES:
                if (sa->n != sb->n)
                        return false;
                for (unsigned i = 0; i < sa->n; i++)
                        if (strcmp(sa->items[i], sb->items[i]) != 0)
                                return false;
                return true;
        case CONFIG_BYTES:
        case CONFIG_COUNT:
        case CONFIG_TIME:
                return *(const uint64_t *)ma == *(const uint64_t *)mb;
        case CONFIG_SWITCH:
                return *(const bool *)ma == *(const bool *)mb;
        }
        return false;
}

/* Takes over the place where a value was given. If memory for the file's name is short, the place
 * becomes unknown. */
static void take_place(struct config *c, struct config_place *place, const struct config *next,
                       const struct config_place *from)
{
        int file = from->from == CONFIG_FROM_FILE
                           ? config_file_add(c, next->files.items[from->file])
                           : 0;

        *place = *from;
        place->file = (uint16_t)MAX(file, 0);
        if (file < 0)
                place->from = CONFIG_FROM_NOWHERE;
}

static unsigned reload_tenant(struct config *c, struct config_tenant *t,
                              const struct config *next_c, const struct config_tenant *next,
                              const struct config_report *report)
{
        char why[CONFIG_WHY], text[2 * CONFIG_WHY];
        unsigned changed = 0;

        for (unsigned i = 0; i < config_n_tenant_rows; i++) {
                const struct config_row *row = &config_tenant_rows[i];
                const char *key = row->name + strlen("tenants.");
                _cleanup_(freep) char *from = NULL, *to = NULL;

                if (config_bit(t->automatic, i) ? config_row_is_auto(next, row)
                                                : row_equal(t, next, row)) {
                        take_place(c, &t->place[i], next_c, &next->place[i]);
                        continue;
                }
                from = config_format(t, row);
                to = config_format(next, row);
                if (!from || !to) {
                        report->say(report->userdata, CONFIG_KEPT,
                                    "out of memory: the remaining keys keep their values");
                        return changed;
                }
                if (!(row->flags & CONFIG_RELOAD)) {
                        snprintf(text, sizeof(text),
                                 "tenant %s: %s: %.160s becomes %.160s only after a restart",
                                 t->name, key, from, to);
                        report->say(report->userdata, CONFIG_NEEDS_RESTART, text);
                        continue;
                }
                if (config_assign_to(t, row, to, false, why) < 0)
                        continue; /* cannot fail, because formatting a valid value produced this
                                   * text */
                config_bit_set(t->given, i, config_bit(next->given, i));
                take_place(c, &t->place[i], next_c, &next->place[i]);
                snprintf(text, sizeof(text), "tenant %s: %s: %.160s is now %.160s", t->name, key,
                         from, to);
                report->say(report->userdata, CONFIG_APPLIED, text);
                changed++;
        }
        return changed;
}

/* Reloads the tenants' limits. The set of tenants and their order need a restart. */
static unsigned reload_tenants(struct config *c, const struct config *next,
                               const struct config_report *report)
{
        unsigned changed = 0;
        bool same = c->n_tenants == next->n_tenants;

        for (unsigned i = 0; i < c->n_tenants && same; i++)
                same = strcmp(c->tenants[i].name, next->tenants[i].name) == 0;
        if (!same) {
                report->say(report->userdata, CONFIG_NEEDS_RESTART,
                            "tenants: added, removed or reordered entries take effect only after a "
                            "restart; no tenant was changed");
                return 0;
        }
        for (unsigned i = 0; i < c->n_tenants; i++)
                changed += reload_tenant(c, &c->tenants[i], next, &next->tenants[i], report);
        return changed;
}

int config_reload_check(const struct config *c, const struct config *next,
                        struct config_error *ret_error)
{
        char a[32], b[32], where[CONFIG_WHERE];

        /* A configuration with its own pool size may be valid after a restart; config_reload() then
         * defers the key. */
        if (next->limits.leased_bytes <= c->memory.pool || next->memory.pool != 0)
                return 0;
        config_exact_bytes(next->limits.leased_bytes, a);
        config_exact_bytes(c->memory.pool, b);
        return config_fail(ret_error, -EINVAL,
                           "%slimits.leased_bytes: %s is more than the pool, which is %s",
                           config_where(next, "limits.leased_bytes", where), a, b);
}

static bool is_above_pool(const struct config *c, const struct config *next,
                          const struct config_row *row)
{
        return row->offset == offsetof(struct config, limits.leased_bytes) &&
               next->limits.leased_bytes > c->memory.pool;
}

unsigned config_reload(struct config *c, const struct config *next,
                       const struct config_report *report)
{
        char why[CONFIG_WHY], text[2 * CONFIG_WHY];
        unsigned changed = 0;

        for (unsigned i = 0; i < config_n_rows; i++) {
                const struct config_row *row = &config_rows[i];
                _cleanup_(freep) char *from = NULL, *to = NULL;
                bool to_auto = config_row_is_auto(next, row);
                int r = 0;

                if (config_bit(c->automatic, i) ? to_auto : row_equal(c, next, row)) {
                        take_place(c, &c->place[i], next, &next->place[i]);
                        continue;
                }
                from = config_format(c, row);
                to = config_format(next, row);
                if (!from || !to) {
                        report->say(report->userdata, CONFIG_KEPT,
                                    "out of memory: the remaining keys keep their values");
                        return changed;
                }
                if (!(row->flags & CONFIG_RELOAD) || is_above_pool(c, next, row)) {
                        snprintf(text, sizeof(text),
                                 "%s: %.160s becomes %.160s only after a restart", row->name, from,
                                 to);
                        report->say(report->userdata, CONFIG_NEEDS_RESTART, text);
                        continue;
                }
                /* The values of reloadable keys are single words, numbers or paths, so their text
                 * was not cut. */
                if (to_auto && row->offset == offsetof(struct config, limits.leased_bytes))
                        c->limits.leased_bytes = config_auto_leased_bytes(c->memory.pool);
                else
                        r = config_assign(c, i,
                                          row->type == CONFIG_FILE
                                                  ? *(char *const *)config_member(next, row)
                                                  : to, /* `to` may be quoted text */
                                          false, why);
                if (r < 0) {
                        snprintf(text, sizeof(text), "%s stays %.160s: %s", row->name, from, why);
                        report->say(report->userdata, CONFIG_KEPT, text);
                        continue;
                }
                config_bit_set(c->given, i, config_bit(next->given, i));
                take_place(c, &c->place[i], next, &next->place[i]);
                config_bit_set(c->automatic, i, to_auto && !config_row_is_auto(c, row));
                snprintf(text, sizeof(text), "%s: %.160s is now %.160s", row->name, from, to);
                report->say(report->userdata, CONFIG_APPLIED, text);
                changed++;
        }
        return changed + reload_tenants(c, next, report);
}
