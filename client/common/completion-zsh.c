/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for zsh: a function that describes each command to _arguments. zsh finds the function
 * by its name, _TOOL, in a directory of $fpath. */
#include <string.h>

#include "completion.h"

/* Prints text for use between single quotes, in which _arguments also interprets colons and
 * brackets. */
static void print_text(const char *text, FILE *out)
{
        for (; *text; text++) {
                if (*text == '\'') {
                        fputs("'\\''", out);
                        continue;
                }
                if (strchr(":[]\\", *text))
                        fputc('\\', out);
                fputc(*text == '\n' ? ' ' : *text, out);
        }
}

/* Returns the action of _arguments that completes an option's argument; " " if there is none. */
static const char *action_of(const struct option_row *row)
{
        if (strcmp(row->argument, "DIR") == 0)
                return "_files -/";
        if (strcmp(row->argument, "FILE") == 0 || strcmp(row->argument, "PATH") == 0)
                return "_files";
        return " ";
}

/* Prints the action of _arguments that asks the tool for words of a kind (words.h), and also offers
 * files if `files` is set. */
static void print_words(const char *tool, const char *kind, bool files, FILE *out)
{
        fprintf(out, "{_%s_words %s%s}", tool, kind, files ? "; _files" : "");
}

static void print_argument(const char *tool, const struct option_row *row, FILE *out)
{
        const char *kind = completion_kind(row->values);

        if (!row->argument)
                return;
        fputs(*row->argument == '[' ? "::" : ":", out);
        print_text(row->argument, out);
        if (kind) {
                fputc(':', out);
                print_words(tool, kind, *action_of(row) == '_', out);
        } else if (row->values)
                fprintf(out, ":(%s)", row->values);
        else
                fprintf(out, ":%s", action_of(row));
}

/* Prints rows such as: '*'{-o+,--output=}'[write to FILE]:FILE:_files' \ */
static void print_options(const char *tool, const struct option_row *rows, FILE *out)
{
        for (; rows && rows->id; rows++) {
                bool takes = rows->argument, may = takes && *rows->argument == '[';

                fputs("                        ", out);
                if (rows->id < OPTION_LONG)
                        fprintf(out, "'*'{-%c%s,--%s%s}'[", rows->id,
                                may     ? "-"
                                : takes ? "+"
                                        : "",
                                rows->name,
                                may     ? "=-"
                                : takes ? "="
                                        : "");
                else
                        fprintf(out, "'*--%s%s[", rows->name, may ? "=-" : takes ? "=" : "");
                print_text(rows->help, out);
                fputc(']', out);
                print_argument(tool, rows, out);
                fputs("' \\\n", out);
        }
}

static void print_command(const char *tool, const struct command *command, FILE *out)
{
        fprintf(out, "                %s)\n                        _arguments \\\n", command->name);
        print_options(tool, command->options, out);
        print_options(tool, options_shared(), out);
        if (command->actions) {
                fputs("                        '1:action:(", out);
                for (const char *const *action = command->actions; *action; action++)
                        fprintf(out, "%s%s", action == command->actions ? "" : " ", *action);
                fputs(")' \\\n", out);
        }
        fputs("                        ", out);
        if (command->operands) {
                fputs("'*:argument:", out);
                print_words(tool, command->operands, false, out);
                fputc('\'', out);
        } else {
                fputs(*command->arguments ? "'*:argument:_files'" : "&& return", out);
        }
        fputs("\n                        ;;\n", out);
}

void completion_print_zsh(const struct completion *tool, FILE *out)
{
        fprintf(out,
                "#compdef %s\n"
                "# SPDX-License-Identifier: Apache-2.0\n"
                "# Completion of %s for zsh, made from the tables of its commands and options.\n"
                "_%s_words()\n{\n"
                "        local -a names\n"
                "        names=(${(f)\"$(%s --complete $1 2>/dev/null)\"})\n"
                "        compadd -a names\n"
                "}\n"
                "_%s()\n{\n"
                "        local curcontext=\"$curcontext\" state line\n"
                "        local -a commands\n"
                "        typeset -A opt_args\n"
                "        commands=(\n",
                tool->name, tool->name, tool->name, tool->name, tool->name);
        for (size_t i = 0; i < tool->n_commands; i++) {
                fprintf(out, "                '%s:", tool->commands[i]->name);
                print_text(tool->commands[i]->summary, out);
                fputs("'\n", out);
        }
        fputs("        )\n"
              "        _arguments -C \\\n",
              out);
        print_options(tool->name, options_shared(), out);
        fputs("                        '*--debug[explain more on standard error]' \\\n"
              "                        '*--version[print the version]' \\\n"
              "                        '1:command:->command' '*::argument:->argument' && return\n"
              "        case $state in\n"
              "        command)\n"
              "                commands+=('help:explain a command')\n"
              "                _describe -t commands command commands\n"
              "                ;;\n"
              "        argument)\n"
              "                case $words[1] in\n"
              "                help)\n"
              "                        _arguments '1:command:{_describe -t commands command "
              "commands}'\n"
              "                        ;;\n",
              out);
        for (size_t i = 0; i < tool->n_commands; i++)
                print_command(tool->name, tool->commands[i], out);
        fprintf(out,
                "                esac\n"
                "                ;;\n"
                "        esac\n"
                "}\n"
                "_%s \"$@\"\n",
                tool->name);
}
