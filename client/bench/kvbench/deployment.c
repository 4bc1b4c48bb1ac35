/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a deployment file by a table of its keys. Unknown keys cause a warning rather than an
 * error, because engines keep keys of their own in such files. */
#include "deployment.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "yaml-file.h"

enum kind { COUNT, NUMBER, TEXT, OPTIONAL_TEXT };

struct key {
        const char *section, *name;
        enum kind kind;
        size_t offset;
};

#define AT(member) offsetof(struct kvbench_deployment, member)
static const struct key keys[] = {
        { "strategy", "tp_size", COUNT, AT(strategy.tp_size) },
        { "strategy", "pp_size", COUNT, AT(strategy.pp_size) },
        { "strategy", "model_quant_mode", TEXT, AT(strategy.model_quant_mode) },
        { "strategy", "kvcache_quant_mode", TEXT, AT(strategy.kvcache_quant_mode) },
        { "runtime", "num_requests", NUMBER, AT(runtime.num_requests) },
        { "runtime", "isl", NUMBER, AT(runtime.isl) },
        { "runtime", "osl", NUMBER, AT(runtime.osl) },
        { "system", "backend", OPTIONAL_TEXT, AT(system.backend) },
        { "system", "hardware", OPTIONAL_TEXT, AT(system.hardware) },
        { "system", "page_size", COUNT, AT(system.page_size) },
        { "system", "access_pattern", OPTIONAL_TEXT, AT(system.access_pattern) },
        { "system", "source", OPTIONAL_TEXT, AT(system.source) },
        { "system", "destination", OPTIONAL_TEXT, AT(system.destination) },
};

struct reading {
        struct kvbench_deployment *deployment;
        const char *section;
};

static const struct kvbench_deployment defaults = {
        .strategy = {
                .tp_size = 1,
                .pp_size = 1,
                .model_quant_mode = "fp8",
                .kvcache_quant_mode = "fp8",
        },
        .runtime = {
                .num_requests = { 1, "1" },
                .isl = { 1, "1" },
                .osl = { 1, "1" },
        },
        .system = {
                .backend = "SGLANG",
                .page_size = 1,
        },
};

static int read_key(struct yaml_file *f, const yaml_node_t *key_node, const char *name,
                    const yaml_node_t *value, void *data)
{
        struct reading *reading = data;
        const struct key *key = NULL;
        char full[KVBENCH_WORD_BYTES], word[48];
        struct kvbench_number *number;
        char *at;

        for (size_t i = 0; i < ARRAY_SIZE(keys) && !key; i++)
                if (strcmp(keys[i].section, reading->section) == 0 &&
                    strcmp(keys[i].name, name) == 0)
                        key = &keys[i];
        if (!key) {
                yaml_file_warn(f, key_node, "%s.%s is an unknown key, and is not used",
                               reading->section, yaml_file_shown(name, word, sizeof(word)));
                return 0;
        }
        snprintf(full, sizeof(full), "%s.%s", key->section, key->name);
        at = (char *)reading->deployment + key->offset;
        switch (key->kind) {
        case COUNT:
                return yaml_file_count(f, full, value, (uint64_t *)at);
        case NUMBER:
                number = (struct kvbench_number *)at;
                return yaml_file_number(f, full, value, &number->value, number->text,
                                        sizeof(number->text));
        case OPTIONAL_TEXT:
                if (yaml_file_is_null(value)) {
                        *at = '\0';
                        return 0;
                }
                return yaml_file_text(f, full, value, at, KVBENCH_WORD_BYTES);
        case TEXT:
                break;
        }
        return yaml_file_text(f, full, value, at, KVBENCH_WORD_BYTES);
}

static int read_section(struct yaml_file *f, const yaml_node_t *key_node, const char *name,
                        const yaml_node_t *value, void *data)
{
        struct reading reading = { .deployment = data };
        char word[48];

        for (size_t i = 0; i < ARRAY_SIZE(keys) && !reading.section; i++)
                if (strcmp(keys[i].section, name) == 0)
                        reading.section = keys[i].section;
        if (!reading.section) {
                yaml_file_warn(f, key_node, "%s is an unknown section, and is not used",
                               yaml_file_shown(name, word, sizeof(word)));
                return 0;
        }
        if (yaml_file_is_null(value))
                return 0;
        if (value->type != YAML_MAPPING_NODE) {
                yaml_file_warn(f, value, "%s is not a mapping of keys to values, and is not used",
                               name);
                return 0;
        }
        return yaml_file_each(f, value, read_key, &reading);
}

static int read_deployment(struct yaml_file *f, struct kvbench_deployment *ret)
{
        struct kvbench_deployment d = defaults;
        int r = yaml_file_each(f, f->root, read_section, &d);

        if (r < 0)
                return r;
        if (d.runtime.isl.value < 1)
                return yaml_file_error(f, NULL, "runtime.isl: %s is less than one token",
                                       d.runtime.isl.text);
        *ret = d;
        return 0;
}

int deployment_load(struct kvbench_deployment *ret, const char *path)
{
        struct yaml_file f;
        int r = yaml_file_open(&f, path);

        if (r >= 0)
                r = read_deployment(&f, ret);
        yaml_file_close(&f);
        return r;
}

int deployment_parse(struct kvbench_deployment *ret, const char *path, const void *text,
                     size_t bytes)
{
        struct yaml_file f;
        int r = yaml_file_parse(&f, path, text, bytes);

        if (r >= 0)
                r = read_deployment(&f, ret);
        yaml_file_close(&f);
        return r;
}

static void set_number(struct kvbench_number *number, uint64_t value)
{
        if (value == 0)
                return;
        number->value = (double)value;
        snprintf(number->text, sizeof(number->text), "%" PRIu64, value);
}

void deployment_override(struct kvbench_deployment *d, const struct kvbench_overrides *overrides)
{
        if (overrides->tp > 0)
                d->strategy.tp_size = overrides->tp;
        if (overrides->pp > 0)
                d->strategy.pp_size = overrides->pp;
        set_number(&d->runtime.isl, overrides->isl);
        set_number(&d->runtime.osl, overrides->osl);
        set_number(&d->runtime.num_requests, overrides->num_requests);
        if (overrides->page_size > 0)
                d->system.page_size = overrides->page_size;
        if (overrides->access_pattern)
                snprintf(d->system.access_pattern, sizeof(d->system.access_pattern), "%s",
                         overrides->access_pattern);
}
