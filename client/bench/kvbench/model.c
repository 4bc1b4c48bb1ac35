/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a model file in two steps, because the family determines the allowed keys, and a key
 * determines the family. The first step reads every key that any family has; the second rejects
 * keys that the model's family does not have. */
#include "model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "common.h"
#include "family.h"
#include "yaml-file.h"

enum { NAME_BYTES = 128, FAMILY_BYTES = 32 };

struct reading {
        struct kvbench_model *model;
        char name[NAME_BYTES];
        const yaml_node_t *name_node;
        char family[FAMILY_BYTES];
        const yaml_node_t *family_node;
};

DEFINE_CLEANUP(struct kvbench_model *, model_free);

struct kvbench_model *model_free(struct kvbench_model *model)
{
        if (!model)
                return NULL;
        free(model->name);
        free(model);
        return NULL;
}

/* Reads one pair in the first pass over the file: the model's name, the family, or a number. A null
 * value counts as a missing key. */
static int read_pair(struct yaml_file *f, const yaml_node_t *key_node, const char *key,
                     const yaml_node_t *value, void *data)
{
        struct reading *reading = data;
        const struct kvbench_key *known;

        if (strcmp(key, "model_name") == 0 || strcmp(key, "model") == 0) {
                if (yaml_file_is_null(value))
                        return 0;
                if (reading->name_node)
                        return yaml_file_error(f, key_node,
                                               "model and model_name are the same key: give one");
                reading->name_node = value;
                return yaml_file_text(f, key, value, reading->name, sizeof(reading->name));
        }
        if (strcmp(key, "family") == 0) {
                if (yaml_file_is_null(value))
                        return 0;
                reading->family_node = value;
                return yaml_file_text(f, key, value, reading->family, sizeof(reading->family));
        }
        known = family_key(key);
        if (!known || yaml_file_is_null(value))
                return 0;
        return yaml_file_count(f, key, value, family_value(reading->model, known));
}

static int find_family(struct yaml_file *f, struct reading *reading)
{
        struct kvbench_model *model = reading->model;

        if (!reading->name_node)
                return yaml_file_error(f, NULL, "model_name: is missing");
        if (reading->name[0] == '\0')
                return yaml_file_error(f, reading->name_node, "model_name: is empty");
        if (reading->family_node) {
                model->family = family_by_name(reading->family);
                if (!model->family)
                        return yaml_file_error(f, reading->family_node,
                                               "family: '%s' is not one of %s", reading->family,
                                               family_names());
                return 0;
        }
        model->family = family_of_model(reading->name);
        if (!model->family)
                return yaml_file_error(
                        f, reading->name_node,
                        "model_name: '%s' contains the name of no known family (%s); \"family: "
                        "generic\" describes any model by num_kv_heads and head_dimension",
                        reading->name, family_names());
        return 0;
}

static bool is_one_of(const char *key, const char *const *list)
{
        for (; *list; list++)
                if (strcmp(*list, key) == 0)
                        return true;
        return false;
}

/* Checks one pair in the second pass: rejects a key that the family does not have. */
static int check_pair(struct yaml_file *f, const yaml_node_t *key_node, const char *key,
                      const yaml_node_t *value, void *data)
{
        const struct reading *reading = data;
        const struct kvbench_family *family = reading->model->family;
        char word[64];

        if (is_one_of(key, (const char *[]){ "model_name", "model", "family", NULL }) ||
            is_one_of(key, family->keys) || is_one_of(key, family->optional))
                return 0;
        return yaml_file_error(f, key_node, "%s: not a key of a model of family %s",
                               yaml_file_shown(key, word, sizeof(word)), family->name);
}

static int check(struct yaml_file *f, struct reading *reading)
{
        const struct kvbench_family *family = reading->model->family;
        int r = yaml_file_each(f, f->root, check_pair, reading);

        if (r < 0)
                return r;
        for (size_t i = 0; family->keys[i]; i++)
                if (*family_value(reading->model, family_key(family->keys[i])) == 0)
                        return yaml_file_error(f, NULL,
                                               "%s: is missing; a model of family %s needs it",
                                               family->keys[i], family->name);
        return 0;
}

static int read_model(struct yaml_file *f, struct kvbench_model **ret)
{
        _cleanup_(model_freep) struct kvbench_model *model = calloc(1, sizeof(*model));
        struct reading reading = { .model = model };
        int r;

        if (!model) {
                complain_memory();
                return -ENOMEM;
        }
        r = yaml_file_each(f, f->root, read_pair, &reading);
        if (r < 0)
                return r;
        r = find_family(f, &reading);
        if (r < 0)
                return r;
        r = check(f, &reading);
        if (r < 0)
                return r;
        model->name = strdup(reading.name);
        if (!model->name) {
                complain_memory();
                return -ENOMEM;
        }
        *ret = TAKE_PTR(model);
        return 0;
}

int model_load(struct kvbench_model **ret, const char *path)
{
        struct yaml_file f;
        int r = yaml_file_open(&f, path);

        if (r >= 0)
                r = read_model(&f, ret);
        yaml_file_close(&f);
        return r;
}

int model_parse(struct kvbench_model **ret, const char *path, const void *text, size_t bytes)
{
        struct yaml_file f;
        int r = yaml_file_parse(&f, path, text, bytes);

        if (r >= 0)
                r = read_model(&f, ret);
        yaml_file_close(&f);
        return r;
}
