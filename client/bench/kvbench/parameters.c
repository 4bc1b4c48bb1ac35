/* SPDX-License-Identifier: Apache-2.0 */
#include "parameters.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static_assert(KVBENCH_N_PARAMETERS <= 64, "the bits of kvbench_parameters.given");

const struct kvbench_parameter_row kvbench_parameter_rows[KVBENCH_N_PARAMETERS] = {
#define X(id, name, kind, number, text, in_2025_06, argument, help)                                \
        [KVBENCH_##id] = { name, KVBENCH_##kind, number, text, in_2025_06 },
        KVBENCH_PARAMETERS(X)
#undef X
};

void parameters_init(struct kvbench_parameters *p)
{
        *p = (struct kvbench_parameters){ .given = 0 };
        for (int id = 0; id < KVBENCH_N_PARAMETERS; id++) {
                const struct kvbench_parameter_row *row = &kvbench_parameter_rows[id];

                if (row->kind == KVBENCH_WORD)
                        p->value[id].text = row->text;
                else
                        p->value[id].number = row->number;
        }
}

bool parameters_is_default(const struct kvbench_parameters *p, enum kvbench_parameter id)
{
        const struct kvbench_parameter_row *row = &kvbench_parameter_rows[id];

        if (row->kind == KVBENCH_WORD)
                return strcmp(p->value[id].text, row->text) == 0;
        return p->value[id].number == row->number;
}

const char *parameters_print(const struct kvbench_parameters *p, enum kvbench_parameter id,
                             char buffer[static KVBENCH_NUMBER_BYTES])
{
        switch (kvbench_parameter_rows[id].kind) {
        case KVBENCH_WORD:
                return p->value[id].text;
        case KVBENCH_FLAG:
                return p->value[id].number ? "True" : "False";
        case KVBENCH_COUNT:
                break;
        }
        snprintf(buffer, KVBENCH_NUMBER_BYTES, "%" PRIu64, p->value[id].number);
        return buffer;
}

bool parameters_add_json(const struct kvbench_parameters *p, enum kvbench_parameter id,
                         const char *name, cJSON *object)
{
        char buffer[KVBENCH_NUMBER_BYTES];

        switch (kvbench_parameter_rows[id].kind) {
        case KVBENCH_WORD:
                return cJSON_AddStringToObject(object, name, p->value[id].text);
        case KVBENCH_FLAG:
                return cJSON_AddBoolToObject(object, name, p->value[id].number != 0);
        case KVBENCH_COUNT:
                break;
        }
        /* Raw, because a double would round numbers above 2^53. */
        return cJSON_AddRawToObject(object, name, parameters_print(p, id, buffer));
}
