/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the arguments, loads the configuration and runs the server. The configuration comes from a
 * file (--config, or the default file if it exists), its drop-ins, the environment and --set, in
 * this order.
 * A failure is one line on stderr or in the journal, or with --check-config one line for each
 * error, and an exit status that kvcache-daemon(8) explains. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "units.h"
#include "build-config.h"
#include "config/config.h"
#include "notify.h"
#include "report/http-token.h"
#include "server.h"
#include "suggest.h"
#include "text.h"

#define DEFAULT_CONFIG KVCACHE_SYSCONFDIR "/kvcache.yaml"

static void print_help(void)
{
        printf("Usage: kvcache-daemon [OPTION]...\n"
               "Keeps the KV cache of this host's inference engines in memory and on disk.\n"
               "\n"
               "  -c, --config FILE     read FILE instead of " DEFAULT_CONFIG ",\n"
               "                        which need not exist; then read FILE.d/*.yaml\n"
               "  -s, --set KEY=VALUE   override a key; may be repeated, lists are written a,b\n"
               "      --check-config    print every error in the configuration, and exit\n"
               "      --print-config    print the effective configuration, and exit\n"
               "  -h, --help            print this, and exit\n"
               "  -V, --version         print the version, and exit\n"
               "\n"
               "Order: default, file, drop-ins (FILE.d/*.yaml), environment (store.limit is\n"
               "KVCACHE_STORE_LIMIT), --set.\n"
               "Sizes are written 64GiB, times 5s. Keys, with their defaults:\n"
               "\n");
        config_print_keys(stdout);
        printf("\n"
               "SIGTERM and SIGINT: write chunks that are not on disk yet, then exit. SIGHUP: "
               "reload the configuration.\n"
               "Exit status: 0 stopped on request, 1 failed, 2 usage, 65 the store cannot be used, "
               "74 I/O error or disk\n"
               "full, 75 in use by another daemon, 77 not permitted, 78 the configuration is "
               "wrong.\n"
               "More in kvcache-daemon(8) and kvcache.yaml(5).\n");
}

enum { CHECK = 256, PRINT };
static const struct option options[] = {
        { "config", required_argument, NULL, 'c' },
        { "set", required_argument, NULL, 's' },
        { "check-config", no_argument, NULL, CHECK },
        { "print-config", no_argument, NULL, PRINT },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        {},
};

static int usage(void)
{
        fprintf(stderr, "Try 'kvcache-daemon --help'.\n");
        return EXIT_STATUS_USAGE;
}

#define SHORT_OPTIONS ":c:s:hV"

/* Reports an option that getopt_long() rejected with '?', or with ':' if an argument is missing.
 * `argument`: the argument before optind, which has a rejected long option; a rejected letter is
 * in optopt, because other letters may follow it. */
static int wrong_option(int answer, char *argument)
{
        const char *written = text_clean(argument);
        const char *name = strncmp(written, "--", 2) == 0 ? written + 2 : "";
        struct suggestion meant = suggest_init(name);
        size_t length = strcspn(name, "=");
        const char *first = NULL;

        if (answer == ':') {
                fprintf(stderr, "kvcache-daemon: option '%s' needs an argument\n", written);
                return usage();
        }
        if (optopt > 0 && optopt < CHECK && !strchr(SHORT_OPTIONS, optopt)) {
                char letter[] = { '-', (char)optopt, '\0' };

                fprintf(stderr, "kvcache-daemon: unknown option '%s'\n", text_clean(letter));
                return usage();
        }
        for (const struct option *o = options; o->name; o++) {
                if (length > 0 && strncmp(o->name, name, length) == 0 && o->name[length]) {
                        if (first) {
                                fprintf(stderr,
                                        "kvcache-daemon: option '%s' is ambiguous: --%s or --%s\n",
                                        written, first, o->name);
                                return usage();
                        }
                        first = o->name;
                }
                if (strlen(o->name) == length && strncmp(o->name, name, length) == 0) {
                        fprintf(stderr, "kvcache-daemon: option '--%s' takes no argument\n",
                                o->name);
                        return usage();
                }
                suggest_try(&meant, name, o->name);
        }
        fprintf(stderr, "kvcache-daemon: unknown option '%s'", written);
        if (meant.text)
                fprintf(stderr, "; did you mean \"--%s\"?", meant.text);
        fputc('\n', stderr);
        return usage();
}

static int finish_output(void)
{
        if (fflush(stdout) == 0 && !ferror(stdout))
                return EXIT_STATUS_OK;
        log_error("cannot write to standard output: %s", strerror(errno));
        return EXIT_STATUS_IO;
}

static void warn(const char *text)
{
        log_warning("%s", text);
}

static void say(const char *text)
{
        log_info("%s", text);
}

static int fail_config(int r, const struct config_error *error)
{
        log_error("%s", error->text);
        switch (r) {
        case -EACCES:
        case -EPERM:
        case -EROFS:
                return EXIT_STATUS_PERMISSION;
        case -EIO:
        case -ENOSPC:
                return EXIT_STATUS_IO;
        case -ENOMEM:
        case -EMFILE:
        case -ENFILE:
                return EXIT_STATUS_FAILURE;
        default:
                return EXIT_STATUS_CONFIG;
        }
}

static void say_error(void *userdata, const char *text)
{
        log_error("%s", text);
}

/* Reports all errors that would prevent startup, each with its place. If a file cannot be read, the
 * errors after that point are not found. */
static int check_all(const struct server_params *params)
{
        struct config_error error = { .each = say_error };
        struct config *config = params->config;
        struct http_token token;
        char why[256];
        char errors[UNITS_TEXT];
        int r;

        r = config_load_all(config, params->config_path, params->config_must_exist, environ,
                            params->sets, params->n_sets, warn, &error);
        if (!error.broken && r != -ENOMEM) {
                r = config_note(&error, config_resolve(config, NULL, warn, &error));
                if (r == 0)
                        r = config_check_host(config, &error);
                if (r == 0)
                        r = config_check_places(config, warn, &error);
                if (r == 0 && strcmp(config->listen.http, "off") != 0 &&
                    (r = http_token_read(&token, config->http.token_file, why)) < 0) {
                        snprintf(error.text, sizeof(error.text), "%s", why);
                        r = config_note(&error, r);
                }
                explicit_bzero(&token, sizeof(token));
        }
        if (r == -ENOMEM)
                return fail_config(r, &error);
        if (error.n > 0) {
                log_error("the configuration is wrong: %s", units_count(error.n, "error", errors));
                return EXIT_STATUS_CONFIG;
        }
        printf("configuration ok\n");
        for (unsigned i = 0; i < config->files.n && config->files.n > 1; i++)
                printf("  %s\n", text_clean(config->files.items[i]));
        return finish_output();
}

static int run(const struct server_params *params, bool check, bool print)
{
        struct config *config = params->config;
        struct config_error error = {};
        char drop_ins[UNITS_TEXT];
        enum log_level level;
        int r;

        if (check)
                return check_all(params);
        r = config_load_all(config, params->config_path, params->config_must_exist, environ,
                            params->sets, params->n_sets, warn, &error);
        if (r < 0)
                return fail_config(r, &error);
        if (log_level_from_name(config->log.level, &level) == 0)
                log_set_level(level);
        if (log_set_format(config->log.format) == -ENOTSUP)
                log_warning("log.format: journal: stderr is not connected to the journal; messages "
                            "go to stderr as text");
        config->kept_bytes = notify_kept_bytes();
        r = config_resolve(config, print ? NULL : say, print ? NULL : warn, &error);
        if (r < 0)
                return fail_config(r, &error);
        if (print) {
                config_print(config, stdout);
                return finish_output();
        }
        r = config_check_host(config, &error);
        if (r < 0)
                return fail_config(r, &error);
        if (config->files.n > 1)
                log_info("the configuration is read from %s and %s", config->files.items[0],
                         units_count(config->files.n - 1, "drop-in", drop_ins));
        return server_run(params);
}

int main(int argc, char **argv)
{
        struct config config;
        struct server_params params = { .config = &config, .config_path = DEFAULT_CONFIG };
        bool check = false, print = false;
        int option, status;

        log_open();
        params.sets = calloc((size_t)argc, sizeof(*params.sets));
        if (!params.sets) {
                log_error("cannot start: out of memory");
                return EXIT_STATUS_FAILURE;
        }
        opterr = 0;
        while ((option = getopt_long(argc, argv, SHORT_OPTIONS, options, NULL)) >= 0) {
                switch (option) {
                case 'c':
                        params.config_path = optarg;
                        params.config_must_exist = true;
                        break;
                case 's':
                        params.sets[params.n_sets++] = optarg;
                        break;
                case CHECK:
                        check = true;
                        break;
                case PRINT:
                        print = true;
                        break;
                case 'h':
                        print_help();
                        free(params.sets);
                        return finish_output();
                case 'V':
                        printf("kvcache-daemon " KVCACHE_BUILD_VERSION "\n");
                        free(params.sets);
                        return finish_output();
                default:
                        free(params.sets);
                        return wrong_option(option, argv[optind - 1]);
                }
        }
        if (optind < argc) {
                fprintf(stderr, "kvcache-daemon: unexpected argument '%s'\n",
                        text_clean(argv[optind]));
                free(params.sets);
                return usage();
        }

        config_init(&config);
        params.config_read_unix_ms = clock_unix_ms();
        status = run(&params, check, print);
        config_fini(&config);
        free(params.sets);
        return status;
}
