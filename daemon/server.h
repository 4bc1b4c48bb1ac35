/* SPDX-License-Identifier: Apache-2.0 */
/* The composition root: builds and connects all parts, owns the event base, and runs until SIGTERM
 * or SIGINT. */
#pragma once

#include <stdbool.h>

struct config;

struct server_params {
        struct config *config;   /* loaded, checked and resolved; the caller frees it afterwards */
        const char *config_path; /* read again by a reload; NULL if none */
        uint64_t config_read_unix_ms; /* Unix time just before the configuration was read */
        char **sets;                  /* --set options, in order; a reload applies them again */
        unsigned n_sets;
        bool config_must_exist; /* the file was named by --config, so it must exist */
};

/* Runs the daemon. Returns the process's exit status, an enum exit_status. */
int server_run(const struct server_params *params);

/* Documented in kvcache-daemon(8); numbers as in sysexits.h where one fits. */
enum exit_status {
        EXIT_STATUS_OK = 0,
        EXIT_STATUS_FAILURE = 1, /* any other failure at startup */
        EXIT_STATUS_USAGE = 2,
        EXIT_STATUS_STORE =
                65, /* the store cannot be used: not a store, damaged, or of another version */
        EXIT_STATUS_IO = 74,         /* I/O error, the disk is full, or a device hung at the stop */
        EXIT_STATUS_BUSY = 75,       /* store or socket is in use by another daemon: try later */
        EXIT_STATUS_PERMISSION = 77, /* permission denied, or the file system is read-only */
        EXIT_STATUS_CONFIG = 78,
};
