/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a configuration file and its drop-ins, divided by form feeds, which no YAML has.
 * What is accepted prints as YAML that is accepted again and means the same. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "config/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *print(const struct config *c, size_t *ret_size)
{
        char *text = NULL;
        FILE *out = open_memstream(&text, ret_size);

        assert(out);
        config_print(c, out);
        assert(fclose(out) == 0);
        return text;
}

/* Loads the file and its drop-ins as config_load_all() does. */
static int load(struct config *c, const char *data, size_t size, struct config_error *error)
{
        const char *end = data + size, *feed;
        char name[32] = "fuzz.yaml";
        int r;

        for (unsigned i = 0;; i++) {
                feed = data < end ? memchr(data, '\f', (size_t)(end - data)) : NULL;
                r = config_load_text(c, name, data, (size_t)((feed ? feed : end) - data), error);
                if (r < 0 || error->broken || !feed || i == CONFIG_MAX_DROP_INS)
                        return r;
                snprintf(name, sizeof(name), "fuzz.yaml.d/%u.yaml", i);
                data = feed + 1;
        }
}

/* Copies where values were given: comments say it of those of drop-ins. */
static void copy_places(struct config *to, const struct config *from)
{
        config_strings_fini(&to->files);
        for (unsigned i = 0; i < from->files.n; i++)
                assert(config_file_add(to, from->files.items[i]) == (int)i);
        memcpy(to->place, from->place, sizeof(to->place));
        assert(to->n_tenants == from->n_tenants);
        for (unsigned i = 0; i < to->n_tenants; i++)
                memcpy(to->tenants[i].place, from->tenants[i].place, sizeof(to->tenants[i].place));
}

static void check_round_trip(const struct config *c)
{
        _cleanup_(freep) char *first = NULL, *second = NULL;
        size_t first_size, second_size;
        struct config_error error = {};
        struct config again;

        first = print(c, &first_size);
        config_init(&again);
        assert(config_load_text(&again, "again", first, first_size, &error) == 0);
        memcpy(again.given, c->given, sizeof(again.given)); /* comments tell what was given */
        copy_places(&again, c);
        second = print(&again, &second_size);
        assert(first_size == second_size && memcmp(first, second, first_size) == 0);
        config_fini(&again);
}

static void check_error(const struct config_error *error)
{
        assert(error->text[0] != '\0');
        for (const char *p = error->text; *p; p++)
                assert((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void note(void *userdata, const char *text)
{
        const struct config_error *first = userdata;

        assert(text[0] != '\0');
        /* The first is the one that ends a reading that stops at it. */
        if (first->n == 0)
                assert(strcmp(text, first->text) == 0);
        ((struct config_error *)userdata)->n++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct config_error error = {}, all = { .each = note, .userdata = &error };
        struct config c;

        config_init(&c);
        if (load(&c, (const char *)data, size, &error) == 0)
                check_round_trip(&c);
        else
                check_error(&error);
        config_fini(&c);

        config_init(&c);
        if (load(&c, (const char *)data, size, &all) == 0 && all.n == 0)
                assert(error.text[0] == '\0');
        else
                assert(error.text[0] != '\0');
        if (!all.broken)
                check_round_trip(&c);
        config_fini(&c);
        return 0;
}
