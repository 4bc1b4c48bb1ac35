/* SPDX-License-Identifier: Apache-2.0 */
#include "workload-source.h"

#include <errno.h>
#include <string.h>

#include "common.h"
#include "human.h"

bool workload_source_kind(struct ctl *ctl, const struct command *self, const char *argument,
                          struct workload_source *source)
{
        source->synthetic = argument;
        if (strcmp(argument, "chat") == 0)
                return true;
        ctl->exit_status = usage_error(self, "--synthetic: '%s' is not known; use chat", argument);
        return false;
}

bool workload_source_unit(struct ctl *ctl, const struct command *self, const char *argument,
                          struct workload_source *source)
{
        bool seconds = strcmp(argument, "s") == 0;

        if (!seconds && strcmp(argument, "ms") != 0) {
                ctl->exit_status = usage_error(self, "--time-unit: '%s' is not s or ms", argument);
                return false;
        }
        source->format.unit = seconds ? TRACE_SECONDS : TRACE_MILLISECONDS;
        return true;
}

bool workload_source_tokens(struct ctl *ctl, const char *argument, struct workload_source *source)
{
        unsigned long long tokens;

        if (!option_count(ctl, "--tokens-per-block", argument, 1, WORKLOAD_SOURCE_MOST_TOKENS,
                          &tokens))
                return false;
        source->format.block_tokens = tokens;
        return true;
}

bool workload_source_share(struct ctl *ctl, const struct command *self, const char *option,
                           const char *text, double *ret)
{
        size_t n = strlen(text);
        char number[24];
        double value;

        if (n > 0 && n <= sizeof(number) && text[n - 1] == '%') {
                memcpy(number, text, n - 1);
                number[n - 1] = '\0';
                if (human_parse_number(number, &value) == 0 && value <= 100) {
                        *ret = value / 100;
                        return true;
                }
        }
        ctl->exit_status = usage_error(
                self, "%s: '%s' is not a share from 0%% to 100%%; write it with %%", option, text);
        return false;
}

int workload_source_operand(const struct command *self, int argc, char **argv, int first,
                            struct workload_source *source)
{
        if (argc - first > 1)
                return usage_error(self, "give only one trace file");
        source->trace = first < argc ? argv[first] : NULL;
        if (!source->trace == !source->synthetic)
                return usage_error(
                        self, source->trace
                                      ? "give either a trace file or --synthetic chat, not both"
                                      : "either a trace file or --synthetic chat is needed");
        return EXIT_OK;
}

int workload_source_load(const struct workload_source *source, uint64_t chat_requests,
                         struct workload **ret)
{
        char error[WORKLOAD_ERROR_BYTES] = "";
        int r;

        if (source->synthetic)
                r = workload_chat(ret, source->requests ? source->requests : chat_requests,
                                  source->seed);
        else
                r = workload_load(ret, source->trace, &source->format, source->requests,
                                  source->seed, error);
        if (r == -ENOMEM)
                return complain_memory();
        return r < 0 ? complain(EXIT_BAD_INPUT, "%s", error) : EXIT_OK;
}
