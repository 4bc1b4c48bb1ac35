/* SPDX-License-Identifier: Apache-2.0 */
/* Derives from --source and --destination the direction, and the memory at both ends, according to
 * the backend. These are KVBench's rules; if they override an option that was given, a warning says
 * so. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "checked.h"
#include "workload.h"

static const char *const place_names[] = {
        [KVBENCH_PLACE_UNSET] = "",        [KVBENCH_PLACE_FILE] = "file",
        [KVBENCH_PLACE_MEMORY] = "memory", [KVBENCH_PLACE_GPU] = "gpu",
        [KVBENCH_PLACE_OBJ] = "obj",
};

struct change {
        const struct kvbench_options *options;
        struct kvbench_workload *w;
};

static int rules_gds(struct change *c);
static int rules_file(struct change *c);
static int rules_network(struct change *c);
static int rules_obj(struct change *c);
static int rules_store(struct change *c);

static const struct backend {
        const char *name;
        bool nixlbench, profile; /* tools that have the backend */
        int (*rules)(struct change *c);
} backends[KVBENCH_N_BACKENDS] = {
        [KVBENCH_BACKEND_KVCACHE] = { "KVCACHE", false, true, rules_store },
        [KVBENCH_BACKEND_RAW] = { "RAW", false, true, rules_file },
        [KVBENCH_BACKEND_GDS] = { "GDS", true, true, rules_gds },
        [KVBENCH_BACKEND_GDS_MT] = { "GDS_MT", true, false, rules_gds },
        [KVBENCH_BACKEND_POSIX] = { "POSIX", true, true, rules_file },
        [KVBENCH_BACKEND_HF3FS] = { "HF3FS", true, false, rules_file },
        [KVBENCH_BACKEND_OBJ] = { "OBJ", true, false, rules_obj },
        [KVBENCH_BACKEND_UCX] = { "UCX", true, false, rules_network },
        [KVBENCH_BACKEND_GPUNETIO] = { "GPUNETIO", true, false, rules_network },
        [KVBENCH_BACKEND_MOONCAKE] = { "Mooncake", true, false, rules_network },
};

const char *kvbench_place_name(enum kvbench_place place)
{
        return place_names[place];
}

const char *kvbench_backend_name(enum kvbench_backend backend)
{
        return backends[backend].name;
}

int kvbench_place_parse(const char *text, enum kvbench_place *ret)
{
        for (size_t i = KVBENCH_PLACE_FILE; i < ARRAY_SIZE(place_names); i++)
                if (strcmp(place_names[i], text) == 0) {
                        *ret = (enum kvbench_place)i;
                        return 0;
                }
        return -EINVAL;
}

/* Sets a parameter that the rules determine. Warns if the command line gives another value. */
static void decide(struct change *c, enum kvbench_parameter id, const char *text)
{
        struct kvbench_parameters *p = &c->w->parameters;

        if (parameters_given(p, id) && strcmp(parameters_text(p, id), text) != 0)
                complain(0,
                         "warning: --%s %s is replaced by %s, because this backend and source need "
                         "it",
                         kvbench_parameter_rows[id].name, parameters_text(p, id), text);
        p->value[id].text = text;
}

static void decide_op(struct change *c, enum kvbench_op op)
{
        c->w->op = op;
        decide(c, KVBENCH_OP_TYPE, op == KVBENCH_READ ? "READ" : "WRITE");
}

static bool local(enum kvbench_place place)
{
        return place == KVBENCH_PLACE_MEMORY || place == KVBENCH_PLACE_GPU;
}

static const char *segment(enum kvbench_place place)
{
        return place == KVBENCH_PLACE_GPU ? "VRAM" : "DRAM";
}

static int wrong_end(const struct change *c, const char *end, enum kvbench_place place,
                     const char *able)
{
        return complain(KVBENCH_FAILED, "%s: --%s %s: %s %s", c->w->shown, end,
                        kvbench_place_name(place), kvbench_backend_name(c->w->backend), able);
}

/* Applies the rules for transfers between GPU memory and files. KVBench prints FILE as the target
 * of a write, but nixlbench rejects that: its segment types are those of memory, and the file is
 * implied. */
static int rules_gds(struct change *c)
{
        if (c->options->target == KVBENCH_TARGET_NIXLBENCH_2025_06 &&
            c->options->which == KVBENCH_PLAN && c->w->source == KVBENCH_PLACE_MEMORY) {
                decide_op(c, KVBENCH_WRITE);
                decide(c, KVBENCH_INITIATOR_SEG_TYPE, "DRAM");
                decide(c, KVBENCH_TARGET_SEG_TYPE, "DRAM");
                return EXIT_OK;
        }
        if (c->w->source != KVBENCH_PLACE_FILE && c->w->source != KVBENCH_PLACE_GPU)
                return wrong_end(c, "source", c->w->source, "reads from file and writes from gpu");
        decide_op(c, c->w->source == KVBENCH_PLACE_FILE ? KVBENCH_READ : KVBENCH_WRITE);
        decide(c, KVBENCH_TARGET_SEG_TYPE, "VRAM");
        return EXIT_OK;
}

/* Applies the rules for transfers between host memory and files. */
static int rules_file(struct change *c)
{
        switch (c->w->source) {
        case KVBENCH_PLACE_FILE:
                decide_op(c, KVBENCH_READ);
                decide(c, KVBENCH_TARGET_SEG_TYPE, "DRAM");
                return EXIT_OK;
        case KVBENCH_PLACE_MEMORY:
                decide_op(c, KVBENCH_WRITE);
                decide(c, KVBENCH_INITIATOR_SEG_TYPE, "DRAM");
                return EXIT_OK;
        default:
                return wrong_end(c, "source", c->w->source,
                                 "reads from file and writes from memory");
        }
}

/* Applies the rules for transfers from memory to memory, whose direction the user chooses. */
static int rules_network(struct change *c)
{
        static const char able[] = "moves between memory and gpu";
        enum kvbench_place destination =
                c->w->destination == KVBENCH_PLACE_UNSET ? KVBENCH_PLACE_MEMORY : c->w->destination;

        if (!local(c->w->source))
                return wrong_end(c, "source", c->w->source, able);
        if (!local(destination))
                return wrong_end(c, "destination", destination, able);
        c->w->op = strcmp(parameters_text(&c->w->parameters, KVBENCH_OP_TYPE), "READ") == 0
                           ? KVBENCH_READ
                           : KVBENCH_WRITE;
        decide(c, KVBENCH_INITIATOR_SEG_TYPE, segment(c->w->source));
        decide(c, KVBENCH_TARGET_SEG_TYPE, segment(destination));
        return EXIT_OK;
}

/* Applies the rules for transfers between memory and an object store. An end that is neither memory
 * nor gpu counts as the store, also if it is unset or is called file. */
static int rules_obj(struct change *c)
{
        static const char able[] = "needs memory or gpu at one end, and its store at the other";

        if (local(c->w->source) && local(c->w->destination))
                return wrong_end(c, "destination", c->w->destination, able);
        if (local(c->w->source)) {
                decide_op(c, KVBENCH_WRITE);
                decide(c, KVBENCH_INITIATOR_SEG_TYPE, segment(c->w->source));
                return EXIT_OK;
        }
        if (c->w->destination != KVBENCH_PLACE_UNSET && !local(c->w->destination))
                return wrong_end(c, "destination", c->w->destination, able);
        decide_op(c, KVBENCH_READ);
        decide(c, KVBENCH_INITIATOR_SEG_TYPE, segment(c->w->destination));
        return EXIT_OK;
}

/* Applies the rules for the daemon, which writes from memory or a GPU, or reads into one of them.
 */
static int rules_store(struct change *c)
{
        if (local(c->w->source)) {
                if (local(c->w->destination))
                        return wrong_end(c, "destination", c->w->destination,
                                         "writes into its store: file");
                decide_op(c, KVBENCH_WRITE);
                decide(c, KVBENCH_INITIATOR_SEG_TYPE, segment(c->w->source));
                return EXIT_OK;
        }
        if (c->w->destination != KVBENCH_PLACE_UNSET && !local(c->w->destination))
                return wrong_end(c, "destination", c->w->destination, "reads into memory or gpu");
        decide_op(c, KVBENCH_READ);
        decide(c, KVBENCH_TARGET_SEG_TYPE, segment(c->w->destination));
        return EXIT_OK;
}

/* Returns whether the tool that will run the command has the backend. */
static bool usable(const struct kvbench_options *options, const struct backend *backend)
{
        if (options->which == KVBENCH_PROFILE || options->target == KVBENCH_TARGET_KVCACHE_BENCH)
                return backend->profile;
        return backend->nixlbench;
}

static int find_backend(const struct kvbench_options *options, struct kvbench_workload *w)
{
        const char *name = parameters_text(&w->parameters, KVBENCH_BACKEND);
        const char *tool = "nixlbench";
        char known[128] = "";
        size_t i;

        if (options->which == KVBENCH_PROFILE)
                tool = "profile";
        else if (options->target == KVBENCH_TARGET_KVCACHE_BENCH)
                tool = "kvcache-bench profile";

        if (!parameters_given(&w->parameters, KVBENCH_BACKEND)) {
                w->backend = KVBENCH_BACKEND_KVCACHE;
                if (strcmp(tool, "nixlbench") == 0)
                        w->backend = w->source == KVBENCH_PLACE_GPU ? KVBENCH_BACKEND_GDS
                                                                    : KVBENCH_BACKEND_POSIX;
                w->parameters.value[KVBENCH_BACKEND].text = backends[w->backend].name;
                return EXIT_OK;
        }
        for (i = 0; i < KVBENCH_N_BACKENDS; i++)
                if (strcasecmp(backends[i].name, name) == 0)
                        break;
        if (i < KVBENCH_N_BACKENDS && usable(options, &backends[i])) {
                w->backend = (enum kvbench_backend)i;
                return EXIT_OK;
        }
        for (size_t k = 0; k < KVBENCH_N_BACKENDS; k++)
                if (usable(options, &backends[k])) {
                        strcat(known, *known ? ", " : "");
                        strcat(known, backends[k].name);
                }
        return complain(KVBENCH_FAILED, "%s: --backend %s: %s supports only %s%s", w->shown, name,
                        tool, known,
                        i < KVBENCH_N_BACKENDS && backends[i].profile
                                ? "; --target kvcache-bench prints the command for this one"
                                : "");
}

/* Sets `*ret` to the option's value, otherwise to that of the deployment file, otherwise to
 * KVBENCH_PLACE_UNSET. Returns EXIT_OK, or KVBENCH_FAILED after reporting that the file's text is
 * not a place. */
static int find_place(struct kvbench_workload *w, const char *key, enum kvbench_place given,
                      const char *word, enum kvbench_place *ret)
{
        *ret = given;
        if (given != KVBENCH_PLACE_UNSET || *word == '\0' || kvbench_place_parse(word, ret) == 0)
                return EXIT_OK;
        return complain(KVBENCH_FAILED, "%s: system.%s: '%s' is not one of file, memory, gpu",
                        w->shown, key, word);
}

bool kvbench_uses_gpu(const struct kvbench_workload *w)
{
        return w->source == KVBENCH_PLACE_GPU || w->destination == KVBENCH_PLACE_GPU ||
               w->backend == KVBENCH_BACKEND_GDS || w->backend == KVBENCH_BACKEND_GDS_MT;
}

int kvbench_backend_apply(const struct kvbench_options *options, struct kvbench_workload *w)
{
        struct change change = { .options = options, .w = w };
        int r = find_place(w, "source", options->source, w->deployment.system.source, &w->source);

        if (r == EXIT_OK)
                r = find_place(w, "destination", options->destination,
                               w->deployment.system.destination, &w->destination);
        if (r != EXIT_OK)
                return r;
        if (w->source == KVBENCH_PLACE_UNSET)
                w->source = KVBENCH_PLACE_FILE;
        r = find_backend(options, w);
        if (r != EXIT_OK)
                return r;
        return backends[w->backend].rules(&change);
}
