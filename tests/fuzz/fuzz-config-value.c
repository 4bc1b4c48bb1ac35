/* SPDX-License-Identifier: Apache-2.0 */
/* Reads any bytes as an assignment (key=value), as an option and an environment variable. An
 * accepted value, written to a file, is read back as the same value. */
#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "config/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_error(const struct config_error *error)
{
        assert(error->text[0] != '\0');
        for (const char *p = error->text; *p; p++)
                assert((unsigned char)*p >= 0x20 && *p != 0x7f);
}

/* Converts section.key=value to KVCACHE_SECTION_KEY=value. */
static char *variable_of(const char *assignment)
{
        size_t n = strlen("KVCACHE_"), size = n + strlen(assignment) + 1;
        char *text = malloc(size);

        assert(text);
        snprintf(text, size, "KVCACHE_%s", assignment);
        for (char *p = text + n; *p && *p != '='; p++)
                *p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
        return text;
}

static void check_same(const struct config *a, const struct config *b, int row)
{
        _cleanup_(freep) char *first = config_format(a, &config_rows[row]);
        _cleanup_(freep) char *second = config_format(b, &config_rows[row]);

        assert(first && second && strcmp(first, second) == 0);
}

static void check_file(const struct config *c, int row)
{
        const char *name = config_rows[row].name, *key = strchr(name, '.') + 1;
        _cleanup_(freep) char *value = config_format(c, &config_rows[row]), *text = NULL;
        struct config_error error = {};
        struct config again;

        assert(value);
        assert(asprintf(&text, "%.*s:\n  %s: %s\n", (int)(key - 1 - name), name, key, value) > 0);
        config_init(&again);
        assert(config_load_text(&again, "again", text, strlen(text), &error) == 0);
        check_same(c, &again, row);
        config_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        _cleanup_(freep) char *text = strndup((const char *)data, size), *variable = NULL;
        struct config_error error = {}, variable_error = {};
        struct config option, environment;
        int row = -1, option_r, variable_r;
        const char *equals;

        assert(text);
        variable = variable_of(text);
        equals = strchr(text, '=');
        if (equals && equals - text < 64) {
                _cleanup_(freep) char *name = strndup(text, (size_t)(equals - text));

                assert(name);
                row = config_row_find(name);
        }

        config_init(&option);
        config_init(&environment);
        option_r = config_set(&option, text, "--set", &error);
        variable_r = config_load_environment(&environment, (char *[]){ variable, NULL }, NULL,
                                             &variable_error);
        if (option_r < 0)
                check_error(&error);
        if (variable_r < 0)
                check_error(&variable_error);
        assert(row >= 0 || option_r < 0);
        if (row >= 0 && equals[1] != '\0') { /* an empty variable is none */
                assert(option_r == variable_r);
                check_same(&option, &environment, row);
        }
        if (option_r == 0)
                check_file(&option, row);
        config_fini(&environment);
        config_fini(&option);
        return 0;
}
