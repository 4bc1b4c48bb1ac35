/* SPDX-License-Identifier: Apache-2.0 */
#include "plot-option.h"

#include <string.h>

#include "session/output.h"

bool plot_option_read(struct ctl *ctl, const struct command *self, const char *argument,
                      bool *ret_plots, const char **ret_svg)
{
        size_t n = argument ? strlen(argument) : 0;

        if (!argument) {
                *ret_plots = true;
                return true;
        }
        if (n <= 4 || strcmp(argument + n - 4, ".svg") != 0) {
                ctl->exit_status = usage_error(
                        self, "--plot: '%s' does not end with .svg; plots in files are SVG",
                        argument);
                return false;
        }
        *ret_svg = argument;
        return true;
}

int plot_option_check(const struct ctl *ctl, const struct command *self, bool plots,
                      const char *svg)
{
        bool is_svg_printed = svg && strcmp(svg, "-") == 0;

        if (ctl->json && is_svg_printed)
                return usage_error(self, "--svg - and --json both print to standard output");
        if (ctl->json && plots)
                return usage_error(self, "--plot and --json both print to standard output; use "
                                         "--plot=FILE.svg");
        if (plots && is_svg_printed)
                return usage_error(self, "--plot and --svg - both print to standard output");
        return EXIT_OK;
}

int plot_option_write(const struct chart *chart, const char *svg)
{
        struct output out;
        int status = output_open(&out, svg);

        if (status != EXIT_OK)
                return status;
        chart_svg(chart, out.file);
        return output_close(&out, true);
}
