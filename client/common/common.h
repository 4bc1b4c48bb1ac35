/* SPDX-License-Identifier: Apache-2.0 */
/* Code shared by the commands of both tools: the connection to the daemon, exit statuses, messages,
 * keys on the command line, JSON.
 *
 * A function that can end the command returns an exit status: EXIT_OK continues; for anything else
 * the function has already printed a message, and main() returns the status. Standard output
 * carries the answer and nothing else. Commands run on the main thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kvcache-admin.h"
#include "cleanup.h"

enum exit_status {
        EXIT_OK = 0,
        /* a key, block, namespace or volume does not exist, or a check failed: doctor found a
         * problem, or a benchmark read wrong bytes */
        EXIT_NOT_FOUND = 1,
        EXIT_WRONG_USAGE = 2,
        EXIT_UNREACHABLE = 3, /* no daemon listens, or the daemon closed the connection or did not
                                 answer in time */
        EXIT_REFUSED = 4,     /* the daemon refused, or failed */
        EXIT_BAD_INPUT = 5,   /* an input file is missing or malformed */
        /* a failure of this machine; for example, the output is not writable, or memory is short */
        EXIT_LOCAL = 6,
        EXIT_INTERRUPTED = 130,
};

struct ctl {
        const char *socket_path; /* --socket; NULL: $KVCACHE_SOCKET, else the default path */
        bool json;
        bool debug;             /* --debug: print more on stderr */
        int exit_status;        /* set if a function of options.h ends the command */
        int request_timeout_ms; /* 0: the library's default; set before ctl_connect() */
        struct kvcache *kv;     /* NULL before ctl_connect() or ctl_try_connect() */
};

/* Timeout of calls that wait for much I/O of the store's devices. Far above the default of io.hang
 * (30 s), after which the daemon bypasses a device. */
enum { LONG_CALL_MS = 10 * 60 * 1000 };

DEFINE_CLEANUP(cJSON *, cJSON_Delete);

static inline void fclosep(FILE **f)
{
        if (*f)
                fclose(*f);
}

/* Sets or returns the name of the tool, with which every message begins. */
void complain_as(const char *name);
const char *complain_name(void);
/* Selects JSON for messages, as --json does. */
void complain_in_json(bool json);
bool complain_is_json(void);
/* Prints "NAME: ..." to stderr. With complain_in_json(), prints one line instead: an object with
 * the member "error", or "warning" if `status` is EXIT_OK. Returns `status`. */
int complain(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int complain_list(int status, const char *format, va_list arguments)
        __attribute__((format(printf, 2, 0)));
int complain_memory(void);
/* Reports a failed write to standard output, which main() then does not report again. `error`: its
 * errno, or 0 if that is no longer known. Returns the exit status. */
int complain_output(int error);
/* Reports the failure `r`, a negative errno, of a call of the library in the library's words.
 * Returns EXIT_LOCAL for -ENOMEM, EXIT_NOT_FOUND for -ENOENT, EXIT_UNREACHABLE for other errors of
 * errno_unreachable(), else EXIT_REFUSED. */
int complain_call(struct ctl *ctl, int r, const char *what);
/* Reports -EACCES of a call that only admins may make. Returns EXIT_REFUSED. */
int complain_admin(const char *what);
/* Reports a key's status. Prints nothing and returns EXIT_OK for KVCACHE_OK and KVCACHE_EXISTS;
 * otherwise returns the exit status. */
int complain_status(int status, const char *what);
/* Returns whether the negative errno `r` means that no daemon listens at the socket's path, that it
 * has ended, or that it did not answer in time. */
bool errno_unreachable(int r);

/* Connects ctl->kv, or reports why not. Returns an exit status. */
int ctl_connect(struct ctl *ctl);
/* Connects ctl->kv and prints nothing. Returns 0, or a negative errno with a message in
 * `ret_error`. */
enum { CTL_ERROR_BYTES = 512 };
int ctl_try_connect(struct ctl *ctl, char ret_error[static CTL_ERROR_BYTES]);
/* Returns a name for messages: --socket, $KVCACHE_SOCKET or "the default socket". */
const char *ctl_socket_name(const struct ctl *ctl);

#define NAMESPACE_OPTION                                                                           \
        {                                                                                          \
                'n', "namespace", "NS", "the namespace (default: " DEFAULT_NAMESPACE ")",          \
                        "@namespaces"                                                              \
        }
#define DEFAULT_NAMESPACE "default"

/* Opens an existing namespace, whatever its fingerprint. Returns an exit status: EXIT_NOT_FOUND,
 * after a message with up to 20 names of existing namespaces, if there is none of this name. */
int namespace_attach(struct ctl *ctl, const char *name, uint32_t *ret);
/* Converts "k=v,k=v" to canonical text: lines sorted by key. The caller frees `*ret`. Returns 0;
 * -EINVAL if the form is wrong, a key is repeated or there are more than 128; -ENOMEM. */
int fingerprint_parse(const char *text, char **ret);

/* Parses a key. 64 hex digits are the key itself; any other text names the chunk under its SHA-256.
 * The prefix "hex:" requires digits, and "text:" makes any text a name. Returns 0, or -EINVAL for
 * "hex:" without 64 digits, for an empty text, and for 64 zeros. */
#define KEY_HELP                                                                                   \
        "KEY is 64 hex digits, or any other text, which stands for its SHA-256.\n"                 \
        "\"hex:\" or \"text:\" in front says which of the two is meant."
int key_parse(const char *text, struct kvcache_key *ret);
/* Format of the error message for a text that key_parse() refuses; that text is the argument. */
#define KEY_REFUSED "'%s' is not a key: use any text, or hex: and 64 hex digits that are not all 0"
enum { KEY_TEXT_BYTES = 65 };
void key_print(const struct kvcache_key *key, char ret[static KEY_TEXT_BYTES]);

/* Parses "accepted", "written" or "durable". Returns false for any other text. */
#define ACK_VALUES "accepted written durable"
bool ack_parse(const char *text, enum kvcache_ack *ret);
/* Returns a static text such as "memory, disk"; "-" for neither tier. */
const char *tiers_text(uint32_t tiers);
cJSON *tiers_json(uint32_t tiers);
/* Adds the member `name` to an object: a number, or null if `value` is not finite. */
void json_add_number(cJSON *object, const char *name, double value);

/* Prints one object to stdout, in one line. Returns EXIT_OK, or EXIT_LOCAL if memory is short;
 * main() reports a failed write. */
int print_json(const cJSON *object);
/* Prints text that is made safe for one line of a terminal, as text_clean() does. */
void print_safe(const char *text, FILE *out);
