/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "keyfile.h"
#include "progress.h"
#include "text.h"

enum { BATCH_KEYS = 4096 };

DEFINE_CLEANUP(struct keyfile *, keyfile_close);

struct walk {
        struct ctl *ctl;
        struct keyfile *file; /* NULL: the keys are operands */
        struct progress progress;
        uint64_t done;
        key_batch_fn each;
        void *userdata;
        struct key_batch batch;
        char name[KEYFILE_NAMESPACE_BYTES]; /* namespace of the batch; "" before the first */
};

static int flush(struct walk *w)
{
        int r = EXIT_OK;

        if (w->batch.n > 0)
                r = w->each(w->ctl, &w->batch, w->userdata);
        if (w->batch.names)
                w->batch.names += w->batch.n;
        w->done += w->batch.n;
        w->batch.n = 0;
        return r;
}

static int enter_namespace(struct walk *w, const char *name)
{
        struct kvcache_namespace_options options = {
                .size = sizeof(options),
                .flags = KVCACHE_ATTACH,
                .name = name,
        };
        int r = kvcache_namespace_open(w->ctl->kv, &options, &w->batch.namespace_handle);

        if (r < 0 && r != -ENOENT)
                return complain_call(w->ctl, r, name);
        snprintf(w->name, sizeof(w->name), "%s", name);
        w->batch.namespace_name = w->name;
        w->batch.namespace_missing = r < 0;
        return EXIT_OK;
}

static int add(struct walk *w, const char *namespace_name, const struct kvcache_key *key)
{
        int r;

        if (strcmp(w->name, namespace_name) != 0) {
                r = flush(w);
                if (r == EXIT_OK)
                        r = enter_namespace(w, namespace_name);
                if (r)
                        return r;
        }
        w->batch.keys[w->batch.n++] = *key;
        if (w->batch.n < BATCH_KEYS)
                return EXIT_OK;
        r = flush(w);
        if (r == EXIT_OK && w->file)
                progress_note(&w->progress, keyfile_part(w->file), "done", w->done, "key");
        return r;
}

const char *keys_name(const struct key_batch *batch, size_t i, char room[static KEY_NAME_BYTES])
{
        static_assert((int)KEY_NAME_BYTES >= (int)KEY_TEXT_BYTES, "digits fit");
        if (!batch->names)
                key_print(&batch->keys[i], room);
        else
                snprintf(room, KEY_NAME_BYTES, "%s", batch->names[i]);
        return text_clean(room);
}

int keys_ask(struct ctl *ctl, const struct key_batch *batch, const char *command,
             enum kvcache_op op, uint32_t tiers, struct kvcache_result **ret)
{
        _cleanup_(freep) struct kvcache_result *results = calloc(batch->n, sizeof(*results));
        struct kvcache_request request;
        int r;

        if (!results)
                return complain_memory();
        if (batch->namespace_missing) {
                for (size_t i = 0; i < batch->n; i++)
                        results[i].status = KVCACHE_MISS;
        } else {
                kvcache_prep(&request, op, batch->namespace_handle, batch->n, results);
                request.keys = batch->keys;
                if (op == KVCACHE_OP_ADVISE)
                        request.advice = (enum kvcache_advice)tiers;
                else if (op == KVCACHE_OP_HINT)
                        request.return_s = tiers;
                else
                        request.tiers = tiers;
                r = kvcache_submit_and_wait(ctl->kv, &request, NULL);
                if (r < 0)
                        return complain_call(ctl, r, command);
        }
        *ret = TAKE_PTR(results);
        return EXIT_OK;
}

bool keys_options(struct ctl *ctl, const struct command *self, int argc, char **argv,
                  struct keys_wanted *ret)
{
        const char *argument;
        int r, first;

        *ret = (struct keys_wanted){ .namespace_name = DEFAULT_NAMESPACE };
        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (r == 'n')
                        ret->namespace_name = argument;
                else
                        ret->from = argument;
        if (r < 0)
                return false;
        return keys_operands(ctl, self, argc, argv, first, ret);
}

bool keys_operands(struct ctl *ctl, const struct command *self, int argc, char **argv, int first,
                   struct keys_wanted *wanted)
{
        if (!wanted->from == (first == argc)) {
                ctl->exit_status = usage_error(self, "either keys or --from FILE are needed");
                return false;
        }
        wanted->operands = argv + first;
        wanted->n_operands = argc - first;
        return true;
}

int keys_walk(struct ctl *ctl, const struct keys_wanted *wanted, key_batch_fn each, void *userdata)
{
        _cleanup_(freep) struct kvcache_key *keys = calloc(BATCH_KEYS, sizeof(*keys));
        _cleanup_(keyfile_closep) struct keyfile *file = NULL;
        struct walk w = { .ctl = ctl, .each = each, .userdata = userdata, .batch.keys = keys };
        char error[KEYFILE_ERROR_BYTES];
        struct keyfile_entry entry;
        int r;

        if (!keys)
                return complain_memory();
        if (wanted->from) {
                r = keyfile_open(&file, wanted->from, error);
                if (r < 0)
                        return r == -ENOMEM ? complain_memory()
                                            : complain(EXIT_BAD_INPUT, "%s", error);
        }
        r = ctl_connect(ctl);
        if (r)
                return r;

        w.file = file;
        progress_init(&w.progress);
        if (!file)
                w.batch.names = wanted->operands;
        for (int i = 0; i < wanted->n_operands; i++) {
                struct kvcache_key key;

                if (key_parse(wanted->operands[i], &key) < 0)
                        return complain(EXIT_WRONG_USAGE, KEY_REFUSED, wanted->operands[i]);
                r = add(&w, wanted->namespace_name, &key);
                if (r)
                        return r;
        }
        if (file) {
                while ((r = keyfile_next(file, &entry, error)) > 0) {
                        r = add(&w, entry.namespace ?: wanted->namespace_name, &entry.key);
                        if (r)
                                return r;
                }
                if (r < 0)
                        return complain(EXIT_BAD_INPUT, "%s", error);
        }
        r = flush(&w);
        progress_end(&w.progress);
        return r;
}
