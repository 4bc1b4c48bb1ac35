/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that a command processes: its operands, or a file of keys (keyfile.h) of any length
 * with several namespaces. The command gets the keys in batches of one namespace each. The first
 * failure ends the iteration. */
#pragma once

#include "options.h"

struct key_batch {
        const char *namespace_name;
        bool namespace_missing; /* the namespace does not exist, and there is no handle */
        uint32_t namespace_handle;
        struct kvcache_key *keys;
        char *const *names; /* operands as typed; NULL: the keys come from a file or a listing */
        size_t n;
};

/* Processes a batch. Returns an exit status; anything but EXIT_OK ends the iteration. */
typedef int (*key_batch_fn)(struct ctl *ctl, const struct key_batch *batch, void *userdata);

/* The option of a command that reads keys from a file; `value` is the id that option_next() returns
 * for it. */
#define FROM_OPTION(value)                                                                         \
        {                                                                                          \
                value, "from", "FILE",                                                             \
                        "the keys in FILE, as `kvcache-bench replay --acks` writes them;\n\"-\": " \
                        "standard input"                                                           \
        }

/* Performs `op` on each key of a batch, and returns results in their order; keys of a missing
 * namespace are KVCACHE_MISS. `tiers`: the tiers of KVCACHE_OP_EVICT, the return_s of
 * KVCACHE_OP_HINT, or the advice of KVCACHE_OP_ADVISE; 0 for other operations. The caller frees
 * `*ret`. Messages name `command`. Returns an exit status. */
int keys_ask(struct ctl *ctl, const struct key_batch *batch, const char *command,
             enum kvcache_op op, uint32_t tiers, struct kvcache_result **ret);

/* Writes the name of key `i` for people to `room`: as the user typed it, cut to 127 bytes, or else
 * its hex digits. Control characters are replaced. Returns `room`. */
enum { KEY_NAME_BYTES = 128 };
const char *keys_name(const struct key_batch *batch, size_t i, char room[static KEY_NAME_BYTES]);

struct keys_wanted {
        const char *namespace_name; /* namespace of the operands, and of lines of the file that name
                                       none */
        const char *from;           /* path of a file of keys; NULL: the keys are the operands */
        char **operands;
        int n_operands;
};

/* Reads the options of a command that has only NAMESPACE_OPTION and FROM_OPTION. Returns false if
 * the command must end with ctl->exit_status. */
bool keys_options(struct ctl *ctl, const struct command *self, int argc, char **argv,
                  struct keys_wanted *ret);
/* Takes the operands from `first` on, after a command has read its options itself. Returns false if
 * the command must end with ctl->exit_status. */
bool keys_operands(struct ctl *ctl, const struct command *self, int argc, char **argv, int first,
                   struct keys_wanted *wanted);
/* Connects, and calls `each` for every batch. Returns an exit status. */
int keys_walk(struct ctl *ctl, const struct keys_wanted *wanted, key_batch_fn each, void *userdata);
