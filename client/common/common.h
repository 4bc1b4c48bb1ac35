/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of both tools share: the connection to the daemon, exit statuses, messages,
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
        EXIT_NOT_FOUND = 1, /* a key or namespace is not there; replay: wrong bytes */
        EXIT_WRONG_USAGE = 2,
        EXIT_UNREACHABLE = 3, /* no daemon, it went away, or did not answer in time */
        EXIT_REFUSED = 4,     /* the daemon said no, or failed */
        EXIT_BAD_INPUT = 5,   /* a file to read is missing or malformed */
        EXIT_LOCAL = 6,       /* this machine: output not writable, no memory */
        EXIT_INTERRUPTED = 130,
};

struct ctl {
        const char *socket_path; /* --socket */
        bool json;
        bool debug;             /* --debug: tell more, on stderr */
        int exit_status;        /* of option_next() */
        int request_timeout_ms; /* 0: the library's; set before ctl_connect() */
        struct kvcache *kv;
};

/* Of calls that end when the store's devices have done much, or one of them is given up: far more
 * than io.hang, after which the daemon gives a device up. */
enum { LONG_CALL_MS = 10 * 60 * 1000 };

DEFINE_CLEANUP(cJSON *, cJSON_Delete);

static inline void fclosep(FILE **f)
{
        if (*f)
                fclose(*f);
}

/* The name of the tool, in front of every message. */
void complain_as(const char *name);
const char *complain_name(void);
/* Messages are JSON: with --json. */
void complain_in_json(bool json);
bool complain_is_json(void);
/* "NAME: ..." on stderr, or in JSON an object with the member "error", or "warning" when `status`
 * is EXIT_OK; one line each. Returns `status`. */
int complain(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int complain_list(int status, const char *format, va_list arguments)
        __attribute__((format(printf, 2, 0)));
int complain_memory(void);
/* Of a write to standard output; main() does not report it once more. */
int complain_output(int error);
/* What a failed call (a negative errno) means, with the library's words. */
int complain_call(struct ctl *ctl, int r, const char *what);
/* EXIT_REFUSED, for -EACCES of a call that is for admins. */
int complain_admin(const char *what);
/* What a key's status means. Nothing is said for KVCACHE_OK, KVCACHE_EXISTS: EXIT_OK. */
int complain_status(int status, const char *what);
/* Is this errno one of a daemon that is not there, went away, or did not answer in time? */
bool errno_unreachable(int r);

/* ctl->kv, or an explanation. */
int ctl_connect(struct ctl *ctl);
/* The same without a message on stderr: 0 or a negative errno, and what is to be said. */
enum { CTL_ERROR_BYTES = 512 };
int ctl_try_connect(struct ctl *ctl, char ret_error[static CTL_ERROR_BYTES]);
/* A name for messages: --socket, $KVCACHE_SOCKET or "the default socket". */
const char *ctl_socket_name(const struct ctl *ctl);

#define NAMESPACE_OPTION                                                                           \
        {                                                                                          \
                'n', "namespace", "NS", "the namespace (default: " DEFAULT_NAMESPACE ")"           \
        }
#define DEFAULT_NAMESPACE "default"

/* Opens a namespace that exists, whatever its fingerprint. When there is none of that name:
 * EXIT_NOT_FOUND, and the names that there are. */
int namespace_attach(struct ctl *ctl, const char *name, uint32_t *ret);
/* "k=v,k=v" to canonical text: lines sorted by key. 0; -EINVAL: not of that form, or a key twice;
 * -ENOMEM. */
int fingerprint_parse(const char *text, char **ret);

/* 64 hex digits are a key; any other text names the chunk under its SHA-256. "hex:" and "text:" in
 * front force the one or the other. 0, -EINVAL: "hex:" without 64 digits, or empty. */
#define KEY_HELP                                                                                   \
        "KEY is 64 hex digits, or any other text, which stands for its SHA-256.\n"                 \
        "\"hex:\" or \"text:\" in front says which of the two is meant."
int key_parse(const char *text, struct kvcache_key *ret);
enum { KEY_TEXT_BYTES = 65 };
void key_print(const struct kvcache_key *key, char ret[static KEY_TEXT_BYTES]);

/* "accepted", "written", "durable". */
#define ACK_VALUES "accepted written durable"
bool ack_parse(const char *text, enum kvcache_ack *ret);
/* "memory, disk" */
const char *tiers_text(uint32_t tiers);
cJSON *tiers_json(uint32_t tiers);

/* One object on stdout, in one line. */
int print_json(const cJSON *object);
/* Text on one line of a terminal: as text_clean() does. */
void print_safe(const char *text, FILE *out);
