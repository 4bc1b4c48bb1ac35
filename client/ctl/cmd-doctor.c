/* SPDX-License-Identifier: Apache-2.0 */
/* `doctor`: checks the daemon and this host for common faults, and says for each finding what to
 * do. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timex.h>

#include "answer.h"
#include "check.h"
#include "color.h"
#include "commands.h"
#include "common.h"
#include "doctor.h"

static const char *const level_names[DOCTOR_LEVELS] = {
        [DOCTOR_OK] = "ok",
        [DOCTOR_UNKNOWN] = "unknown",
        [DOCTOR_WARNING] = "warning",
        [DOCTOR_PROBLEM] = "problem",
};

const char *doctor_level_name(enum doctor_level level)
{
        return level_names[level];
}

enum doctor_level doctor_level_of(const cJSON *check)
{
        const char *name = answer_text(check, "level");

        for (unsigned i = 0; i < DOCTOR_LEVELS; i++)
                if (strcmp(name, level_names[i]) == 0)
                        return (enum doctor_level)i;
        return DOCTOR_UNKNOWN;
}

void doctor_add(cJSON *checks, enum doctor_level level, const char *name, const char *remedy,
                const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        check_add(checks, name, "level", cJSON_CreateString(level_names[level]),
                  level == DOCTOR_OK ? "" : remedy, format, arguments);
        va_end(arguments);
}

static void count_levels(const cJSON *checks, unsigned ret[static DOCTOR_LEVELS])
{
        const cJSON *one;

        cJSON_ArrayForEach(one, checks)
        {
                ret[doctor_level_of(one)]++;
        }
}

static void print_checks(const cJSON *checks)
{
        static const enum color colors[DOCTOR_LEVELS] = {
                [DOCTOR_WARNING] = COLOR_WARNING,
                [DOCTOR_PROBLEM] = COLOR_BAD,
        };
        bool wanted = color_wanted(stdout);
        const cJSON *one;

        cJSON_ArrayForEach(one, checks)
        {
                enum doctor_level level = doctor_level_of(one);
                const char *remedy = answer_text(one, "remedy");

                printf("%s%-7s%s  %-17s  %s\n", color_begin(colors[level], wanted),
                       level_names[level], color_end(colors[level], wanted),
                       answer_text(one, "name"), answer_text(one, "found"));
                if (*remedy)
                        printf("%-7s  %-17s  remedy: %s\n", "", "", remedy);
        }
}

static void print_sum(const unsigned counts[static DOCTOR_LEVELS])
{
        char problems[HUMAN_BYTES], warnings[HUMAN_BYTES];

        human_things(counts[DOCTOR_PROBLEM], "problem", problems);
        human_things(counts[DOCTOR_WARNING], "warning", warnings);
        printf("\n%s, %s, %u unknown, %u ok\n", problems, warnings, counts[DOCTOR_UNKNOWN],
               counts[DOCTOR_OK]);
}

/* Adds the check of a daemon that does not answer. Returns EXIT_UNREACHABLE. */
static int add_unreachable(cJSON *checks, int r, const char *error)
{
        doctor_add(checks, DOCTOR_PROBLEM, "daemon",
                   r == -EACCES ? "a member of the socket's group may connect, usually kvcache (as "
                                  "root, \"usermod -aG kvcache USER\", and log in again), if the "
                                  "daemon's configuration admits the user"
                   : errno_unreachable(r)
                           ? "systemctl status kvcache shows whether it runs and why not, "
                             "and otherwise its log; --socket names another socket"
                           : "see the daemon's log: journalctl -u kvcache",
                   "%s", error);
        return EXIT_UNREACHABLE;
}

int doctor_examine(struct ctl *ctl, cJSON *checks, cJSON **ret_status)
{
        const char *root = getenv("KVCACHE_TEST_ROOT") ?: ""; /* a directory before all paths of the
                                                                 host; set by tests only */
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        _cleanup_(freep) char *text = NULL;
        char error[CTL_ERROR_BYTES];
        struct timex clock = { 0 };
        int r;

        doctor_check_clock(adjtimex(&clock), checks);

        r = ctl_try_connect(ctl, error);
        if (r < 0)
                return add_unreachable(checks, r, error);
        r = kvcache_report(ctl->kv, KVCACHE_REPORT_STATUS, &text);
        if (errno_unreachable(r)) {
                const char *why = kvcache_error(ctl->kv);

                snprintf(error, sizeof(error), "the daemon does not report its status: %s",
                         *why ? why : strerror(-r));
                return add_unreachable(checks, r, error);
        }
        if (r < 0)
                return complain_call(ctl, r, "doctor");
        status = cJSON_Parse(text);
        if (!cJSON_IsObject(status))
                return complain(EXIT_REFUSED, "doctor: the daemon's status is malformed");
        doctor_check_daemon(status, checks);
        doctor_check_socket(answer_text(status, "socket"), checks);
        doctor_check_host(root, status, checks);
        doctor_check_health(status, checks);
        *ret_status = TAKE_PTR(status);
        return EXIT_OK;
}

static int run_doctor(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(cJSON_Deletep) cJSON *answer = NULL, *status = NULL;
        unsigned counts[DOCTOR_LEVELS] = { 0 };
        cJSON *checks;
        int r, printed = EXIT_OK;

        if (!answer_no_arguments(ctl, self, argc, argv))
                return ctl->exit_status;
        answer = cJSON_CreateObject();
        checks = cJSON_AddArrayToObject(answer, "checks");
        r = doctor_examine(ctl, checks, &status);
        if (r != EXIT_OK && r != EXIT_UNREACHABLE)
                return r;
        count_levels(checks, counts);
        for (unsigned i = 0; i < DOCTOR_LEVELS; i++)
                if (!cJSON_AddNumberToObject(answer, level_names[i], counts[i]))
                        return complain_memory();
        if (ctl->json) {
                printed = print_json(answer);
        } else {
                print_checks(checks);
                print_sum(counts);
        }
        if (printed != EXIT_OK || r != EXIT_OK)
                return printed != EXIT_OK ? printed : r;
        return counts[DOCTOR_PROBLEM] > 0 ? EXIT_NOT_FOUND : EXIT_OK;
}

const struct command command_doctor = {
        .name = "doctor",
        .arguments = "",
        .summary = "check the daemon and this host, and say what to do",
        .help = "Checks what an operator would check: version, health, changes that wait for a\n"
                "restart, io_uring, O_DIRECT, each volume's state, errors and room, the file\n"
                "system beneath it, the shared tier, limits that refused requests, locked\n"
                "memory, the memory pool against the host's memory and the cgroup, the memory "
                "nodes\n"
                "of GPUs, changed configuration files, the clock, and the socket's mode. Each "
                "finding comes with its remedy. Nothing is changed. Run\n"
                "it as root on the daemon's host: checks that this user or this host does not\n"
                "allow are \"unknown\". The exit status is 1 if there is a problem, and 0 with\n"
                "warnings only.",
        .run = run_doctor,
};
