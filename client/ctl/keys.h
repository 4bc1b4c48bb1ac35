/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that a command works on: its operands, or a file of keys (keyfile.h) of any length with
 * several namespaces. The command gets them in batches of one namespace each. The first failure
 * ends the walk. */
#pragma once

#include "options.h"

struct key_batch {
        const char *namespace_name;
        bool namespace_missing; /* then there is no handle */
        uint32_t namespace_handle;
        struct kvcache_key *keys;
        char *const *names; /* how the operands were typed; NULL: the keys are of a file */
        size_t n;
};

/* An exit status: anything but EXIT_OK ends the walk. */
typedef int (*key_batch_fn)(struct ctl *ctl, const struct key_batch *batch, void *userdata);

/* The option of a command that takes `from`; `value` is what option_next() returns for it. */
#define FROM_OPTION(value)                                                                         \
        {                                                                                          \
                value, "from", "FILE",                                                             \
                        "the keys in FILE, as `kvcache-bench replay --acks` writes them;\n\"-\": " \
                        "standard input"                                                           \
        }

/* What the daemon says of each key, in their order; of a namespace that is missing: KVCACHE_MISS.
 * `tiers` is for KVCACHE_OP_EVICT, and return_s for KVCACHE_OP_HINT. The caller frees `ret`.
 * Complains in the name of `command`. */
int keys_ask(struct ctl *ctl, const struct key_batch *batch, const char *command,
             enum kvcache_op op, uint32_t tiers, struct kvcache_result **ret);

/* How key `i` of the batch is called for people: as it was typed, else its digits. Safe for a
 * terminal; the text is in `room`. */
enum { KEY_NAME_BYTES = 128 };
const char *keys_name(const struct key_batch *batch, size_t i, char room[static KEY_NAME_BYTES]);

struct keys_wanted {
        const char *namespace_name; /* of the operands, and of a line without one */
        const char *from;           /* a file of keys, or */
        char **operands;
        int n_operands;
};

/* Of a command with NAMESPACE_OPTION and FROM_OPTION alone. False: it ends with ctl->exit_status.
 */
bool keys_options(struct ctl *ctl, const struct command *self, int argc, char **argv,
                  struct keys_wanted *ret);
/* The operands alone, from `first` on, after a command has read its options itself. */
bool keys_operands(struct ctl *ctl, const struct command *self, int argc, char **argv, int first,
                   struct keys_wanted *wanted);
/* Connects first. */
int keys_walk(struct ctl *ctl, const struct keys_wanted *wanted, key_batch_fn each, void *userdata);
