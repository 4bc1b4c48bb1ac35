/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a configuration file, as the value of each key, and as an assignment. What is
 * accepted must print as YAML that is accepted again and means the same. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "config-internal.h"

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

static void check_round_trip(const struct config *c)
{
        _cleanup_(freep) char *first = NULL, *second = NULL;
        size_t first_size, second_size;
        struct config_error error;
        struct config again;

        first = print(c, &first_size);
        config_init(&again);
        assert(config_load_text(&again, "again", first, first_size, &error) == 0);
        memcpy(again.given, c->given, sizeof(again.given)); /* comments tell what was given */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        _cleanup_(freep) char *text = malloc(size + 1), *variable = malloc(size + 16);
        struct config_error error = {};
        char why[CONFIG_WHY];
        struct config c;

        if (!text || !variable)
                return 0;
        memcpy(text, data, size);
        text[size] = '\0';

        config_init(&c);
        if (config_load_text(&c, "fuzz.yaml", (const char *)data, size, &error) == 0)
                check_round_trip(&c);
        else
                check_error(&error);
        config_fini(&c);

        if (size > 4096)
                return 0;
        config_init(&c);
        for (unsigned i = 0; i < config_n_rows; i++)
                config_assign(&c, i, text, i % 2, why);
        check_round_trip(&c);
        if (config_set(&c, text, "--set", &error) < 0)
                check_error(&error);
        sprintf(variable, "KVCACHE_%s", text);
        if (config_load_environment(&c, (char *[]){ variable, NULL }, NULL, &error) < 0)
                check_error(&error);
        check_round_trip(&c);
        config_fini(&c);
        return 0;
}
