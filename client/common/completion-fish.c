/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for fish: a `complete` command for each word, with the condition under which it is
 * offered. fish finds the file by its name, TOOL.fish. */
#include <string.h>

#include "completion.h"

/* Prints text in single quotes of the shell, with line breaks replaced by blanks. */
static void print_text(const char *text, FILE *out)
{
        fputc('\'', out);
        for (; *text; text++) {
                if (*text == '\'' || *text == '\\')
                        fputc('\\', out);
                fputc(*text == '\n' ? ' ' : *text, out);
        }
        fputc('\'', out);
}

static bool is_file(const char *argument)
{
        return strcmp(argument, "FILE") == 0 || strcmp(argument, "PATH") == 0 ||
               strcmp(argument, "DIR") == 0;
}

static void print_option(const char *tool, const char *condition, const struct option_row *row,
                         FILE *out)
{
        fprintf(out, "complete -c %s -n '%s' -l %s", tool, condition, row->name);
        if (row->id < OPTION_LONG)
                fprintf(out, " -s %c", row->id);
        if (row->argument && *row->argument != '[')
                fputs(is_file(row->argument) ? " -r -F" : " -x", out);
        if (completion_kind(row->values))
                fprintf(out, " -a '(__%s_offer %s)'", tool, completion_kind(row->values));
        else if (row->values)
                fprintf(out, " -a '%s'", row->values);
        fputs(" -d ", out);
        print_text(row->help, out);
        fputc('\n', out);
}

static void print_options(const char *tool, const char *condition, const struct option_row *rows,
                          FILE *out)
{
        for (; rows && rows->id; rows++)
                print_option(tool, condition, rows, out);
}

static void print_command(const char *tool, const struct command *command, FILE *out)
{
        char in[64], first[64];

        snprintf(in, sizeof(in), "__%s_in %s", tool, command->name);
        snprintf(first, sizeof(first), "__%s_after %s", tool, command->name);
        fprintf(out, "complete -c %s -n '__%s_in' -a %s -d ", tool, tool, command->name);
        print_text(command->summary, out);
        fprintf(out, "\ncomplete -c %s -n '__%s_after help' -a %s -d ", tool, tool, command->name);
        print_text(command->summary, out);
        fputc('\n', out);
        print_options(tool, in, command->options, out);
        print_options(tool, in, options_shared(), out);
        for (const char *const *action = command->actions; action && *action; action++)
                fprintf(out, "complete -c %s -n '%s' -a %s\n", tool, first, *action);
        if (command->operands)
                fprintf(out, "complete -c %s -n '%s%s%s' -a '(__%s_offer %s)'\n", tool, in,
                        command->actions ? "; and not " : "", command->actions ? first : "", tool,
                        command->operands);
        else if (*command->arguments && command->actions)
                fprintf(out, "complete -c %s -n '%s; and not %s' -F\n", tool, in, first);
        else if (*command->arguments)
                fprintf(out, "complete -c %s -n '%s' -F\n", tool, in);
}

void completion_print_fish(const struct completion *tool, FILE *out)
{
        const char *name = tool->name;
        char none[64];

        snprintf(none, sizeof(none), "__%s_in", name);
        fprintf(out,
                "# SPDX-License-Identifier: Apache-2.0\n"
                "# Completion of %s for fish, made from the tables of its commands and options.\n\n"
                "# The words from the command on, before the one that is completed.\n"
                "function __%s_words\n"
                "    set -l words (commandline -opc)\n"
                "    set -e words[1]\n"
                "    while set -q words[1]\n"
                "        switch $words[1]\n"
                "            case -s --socket --color\n"
                "                set -e words[1]\n"
                "            case '-*'\n"
                "            case '*'\n"
                "                printf '%%s\\n' $words\n"
                "                return\n"
                "        end\n"
                "        set -e words[1]\n"
                "    end\n"
                "end\n\n"
                "# Is this the command? Without an argument: is there none yet?\n"
                "function __%s_in\n"
                "    set -l words (__%s_words)\n"
                "    test \"$words[1]\" = \"$argv[1]\"\n"
                "end\n\n"
                "# Is its first operand the word that is completed?\n"
                "function __%s_after\n"
                "    set -l words (__%s_words)\n"
                "    test (count $words) -eq 1; and test \"$words[1]\" = $argv[1]\n"
                "end\n\n"
                "# The words that the tool itself knows.\n"
                "function __%s_offer\n"
                "    set -l tool (commandline -opc)[1]\n"
                "    type -q $tool; and $tool --complete $argv[1] 2>/dev/null\n"
                "end\n\n"
                "complete -c %s -f\n",
                name, name, name, name, name, name, name, name);
        print_options(name, none, options_shared(), out);
        fprintf(out,
                "complete -c %s -n '%s' -l debug -d 'explain more on standard error'\n"
                "complete -c %s -n '%s' -l version -d 'print the version'\n"
                "complete -c %s -n '%s' -a help -d 'explain a command'\n",
                name, none, name, none, name, none);
        for (size_t i = 0; i < tool->n_commands; i++)
                print_command(name, tool->commands[i], out);
}
