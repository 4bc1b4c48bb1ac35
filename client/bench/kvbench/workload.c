/* SPDX-License-Identifier: Apache-2.0 */
/* Computes workloads from files: one model, and each deployment that the command line names by
 * name or by pattern. A deployment that is named twice is used once. Owns the models and
 * deployments until kvbench_set_fini(). */
#include "workload.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "data-file.h"
#include "yaml-file.h"

struct names {
        char **names;
        size_t n, room;
};

static void names_fini(struct names *names)
{
        for (size_t i = 0; i < names->n; i++)
                free(names->names[i]);
        free(names->names);
}

/* Adds a copy of a name unless the name is in the list. Returns an exit status. */
static int names_add(struct names *names, const char *name)
{
        for (size_t i = 0; i < names->n; i++)
                if (strcmp(names->names[i], name) == 0)
                        return EXIT_OK;
        if (names->n == names->room) {
                size_t room = MAX(names->room * 2, (size_t)16);
                char **p = reallocarray(names->names, room, sizeof(*p));

                if (!p)
                        return complain_memory();
                names->names = p;
                names->room = room;
        }
        names->names[names->n] = strdup(name);
        if (!names->names[names->n])
                return complain_memory();
        names->n++;
        return EXIT_OK;
}

/* Expands a pattern, also in the directories of data_file_find(). Returns as glob(). */
static int find_pattern(const char *given, glob_t *found)
{
        char directories[DATA_FILE_DIRECTORIES][DATA_FILE_BYTES],
                path[DATA_FILE_BYTES + sizeof(".yaml")];
        const char *example = data_file_of_example(given), *pattern = example ? example : given;
        size_t n = strchr(pattern, '/') ? 0 : data_file_directories("deployments", directories);
        int r = glob(given, GLOB_NOESCAPE, NULL, found);

        for (size_t i = 0; i < 2 * n && r == GLOB_NOMATCH; i++) {
                globfree(found);
                if (snprintf(path, sizeof(path), "%s/%s%s", directories[i / 2], pattern,
                             i % 2 ? ".yaml" : "") < (int)sizeof(path))
                        r = glob(path, GLOB_NOESCAPE, NULL, found);
                if (r == 0)
                        data_file_note(given, path);
        }
        return r;
}

static int names_add_pattern(struct names *names, const char *pattern)
{
        char shown[KVBENCH_SHOWN_BYTES];
        glob_t found = { 0 };
        int status = EXIT_OK;

        switch (find_pattern(pattern, &found)) {
        case 0:
                for (size_t i = 0; i < found.gl_pathc && status == EXIT_OK; i++)
                        status = names_add(names, found.gl_pathv[i]);
                break;
        case GLOB_NOMATCH:
                complain(0, "warning: --model_configs %s: no file of this name exists",
                         yaml_file_shown(pattern, shown, sizeof(shown)));
                break;
        case GLOB_NOSPACE:
                status = complain_memory();
                break;
        default:
                status = complain(KVBENCH_FAILED, "--model_configs %s: cannot be searched: %s",
                                  yaml_file_shown(pattern, shown, sizeof(shown)), strerror(errno));
                break;
        }
        globfree(&found);
        return status;
}

/* Collects the names of all deployment files. If --model_config names a missing file and other
 * files are given, a warning is printed and the file is left out. Returns an exit status. */
static int find_files(const struct kvbench_options *options, struct names *names)
{
        char path[DATA_FILE_BYTES];
        int status = EXIT_OK;

        if (options->model_config)
                status = names_add(names, options->model_config);
        for (size_t i = 0; i < options->n_model_configs && status == EXIT_OK; i++)
                status = names_add_pattern(names, options->model_configs[i]);
        if (status != EXIT_OK)
                return status;
        if (names->n > 1 && options->model_config &&
            !data_file_find("deployments", names->names[0], path)) {
                char shown[KVBENCH_SHOWN_BYTES];

                complain(0, "warning: %s: no such file; continuing without it",
                         yaml_file_shown(names->names[0], shown, sizeof(shown)));
                free(names->names[0]);
                names->n--;
                memmove(names->names, names->names + 1, names->n * sizeof(*names->names));
        }
        if (names->n == 0)
                return complain(KVBENCH_FAILED,
                                "none of the deployment files of --model_configs exists");
        return EXIT_OK;
}

/* Sets a number that the workload determines. The command line overrides it only for profile. */
static void set_computed(const struct kvbench_options *options, struct kvbench_workload *w,
                         enum kvbench_parameter id, uint64_t number)
{
        if (parameters_given(&options->parameters, id)) {
                if (options->which == KVBENCH_PROFILE)
                        return;
                /* The plan of 2025-06 prints the buffer size that was given. */
                if ((id != KVBENCH_TOTAL_BUFFER_SIZE ||
                     options->target != KVBENCH_TARGET_NIXLBENCH_2025_06) &&
                    parameters_number(&options->parameters, id) != number)
                        complain(0,
                                 "warning: --%s %" PRIu64
                                 " is not used: the model and %s need %" PRIu64,
                                 kvbench_parameter_rows[id].name,
                                 parameters_number(&options->parameters, id), w->shown, number);
        }
        w->parameters.value[id].number = number;
}

static void tell_figures(const struct kvbench_workload *w)
{
        const struct kvbench_figures *f = &w->figures;

        complain(0,
                 "%s: %s: %" PRIu64 " bytes a token, %" PRIu64 " a token and layer, %" PRIu64
                 " a request of %s tokens; an I/O of %" PRIu64 " tokens is %" PRIu64
                 " bytes, and the number of I/Os is %" PRIu64,
                 w->shown, w->model->name, f->bytes_per_token, f->bytes_per_token_and_layer,
                 f->bytes_per_request, w->deployment.runtime.isl.text,
                 w->deployment.system.page_size, f->io_size, f->batch_size);
}

static int load_one(const struct kvbench_options *options, struct kvbench_workload *w)
{
        char why[FORMULA_WHY_BYTES];

        char path[DATA_FILE_BYTES];

        if (!data_file_find("deployments", w->config_file, path))
                return data_file_complain("deployments", w->config_file);
        data_file_note(w->config_file, path);
        if (deployment_load(&w->deployment, path) < 0)
                return KVBENCH_FAILED;
        deployment_override(&w->deployment, &options->overrides);
        if (formula_compute(w->model, &w->deployment, &w->figures, why) < 0)
                return complain(KVBENCH_FAILED, "%s: %s", w->shown, why);
        if (options->debug)
                tell_figures(w);
        if (options->which != KVBENCH_PLAN && options->which != KVBENCH_PROFILE)
                return EXIT_OK;
        set_computed(options, w, KVBENCH_START_BLOCK_SIZE, w->figures.io_size);
        set_computed(options, w, KVBENCH_MAX_BLOCK_SIZE, w->figures.io_size);
        set_computed(options, w, KVBENCH_START_BATCH_SIZE, w->figures.batch_size);
        set_computed(options, w, KVBENCH_MAX_BATCH_SIZE, w->figures.batch_size);
        set_computed(options, w, KVBENCH_TOTAL_BUFFER_SIZE, w->figures.total_buffer_size);
        return kvbench_backend_apply(options, w);
}

int kvbench_workloads_load(const struct kvbench_options *options, struct kvbench_set *ret)
{
        _cleanup_(names_fini) struct names names = { 0 };
        char path[DATA_FILE_BYTES];
        int status;

        *ret = (struct kvbench_set){ 0 };
        if (!data_file_find("models", options->model, path))
                return data_file_complain("models", options->model);
        data_file_note(options->model, path);
        if (model_load(&ret->model, path) < 0)
                return KVBENCH_FAILED;
        status = find_files(options, &names);
        if (status != EXIT_OK)
                return status;
        ret->workloads = calloc(names.n, sizeof(*ret->workloads));
        if (!ret->workloads)
                return complain_memory();
        for (size_t i = 0; i < names.n; i++) {
                struct kvbench_workload *w = &ret->workloads[ret->n];

                *w = (struct kvbench_workload){
                        .config_file = TAKE_PTR(names.names[i]),
                        .model = ret->model,
                        .parameters = options->parameters,
                };
                yaml_file_shown(w->config_file, w->shown, sizeof(w->shown));
                if (load_one(options, w) == EXIT_OK) {
                        ret->n++;
                } else {
                        ret->n_failed++;
                        free(w->config_file);
                        w->config_file = NULL;
                }
        }
        return ret->n > 0 ? EXIT_OK : KVBENCH_FAILED;
}

void kvbench_set_fini(struct kvbench_set *set)
{
        for (size_t i = 0; i < set->n; i++)
                free(set->workloads[i].config_file);
        free(set->workloads);
        model_free(set->model);
        *set = (struct kvbench_set){ 0 };
}

int kvbench_print_json(const struct kvbench_options *options, cJSON *configurations)
{
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;

        if (!options->json_object)
                return print_json(configurations);
        object = cJSON_CreateObject();
        if (!cJSON_AddItemReferenceToObject(object, "configurations", configurations))
                return complain_memory();
        return print_json(object);
}

int kvbench_set_exit(const struct kvbench_set *set, int status)
{
        if (status == EXIT_OK && set->n_failed > 0)
                return KVBENCH_FAILED;
        return status;
}
