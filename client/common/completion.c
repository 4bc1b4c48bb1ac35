/* SPDX-License-Identifier: Apache-2.0 */
#include "completion.h"

static void print_option_names(const struct option_row *rows, bool with_argument, FILE *out)
{
        for (; rows && rows->id; rows++) {
                if (with_argument && !(rows->argument && *rows->argument != '['))
                        continue;
                fprintf(out, " --%s", rows->name);
                if (with_argument && rows->id < OPTION_LONG)
                        fprintf(out, " -%c", rows->id);
        }
}

static void print_names(const struct command *const *commands, size_t n_commands, FILE *out)
{
        for (size_t i = 0; i < n_commands; i++)
                fprintf(out, " %s", commands[i]->name);
}

/* What the shell has to know of one command: its options, those of them that take the next word,
 * and its actions. */
static void print_command(const struct command *command, FILE *out)
{
        fprintf(out, "        %s)\n                options='", command->name);
        print_option_names(command->options, false, out);
        print_option_names(options_shared(), false, out);
        fputs(" '\n                valued='", out);
        print_option_names(command->options, true, out);
        print_option_names(options_shared(), true, out);
        fputs(" '\n                actions='", out);
        for (const char *const *action = command->actions; action && *action; action++)
                fprintf(out, " %s", *action);
        fputs(" '\n                ;;\n", out);
}

void completion_print_bash(const char *tool, const struct command *const *commands,
                           size_t n_commands, FILE *out)
{
        fprintf(out,
                "# SPDX-License-Identifier: Apache-2.0\n"
                "# Completion of %s for bash, made from the tables of its commands and options.\n"
                "# Where no word is known, file names are completed.\n"
                "_kvcache_complete_%s()\n{\n",
                tool, tool);
        fputs("        local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
              "        local command='' options='' valued='' actions='' i at\n"
              "        COMPREPLY=()\n"
              "        for ((i = 1; i < COMP_CWORD; i++)); do\n"
              "                case ${COMP_WORDS[i]} in\n"
              "                -s | --socket)\n"
              "                        [[ ${COMP_WORDS[i+1]} == = ]] && ((i++))\n"
              "                        ((i++))\n"
              "                        ;;\n"
              "                -*) ;;\n"
              "                *)\n"
              "                        command=${COMP_WORDS[i]} at=$i\n"
              "                        break\n"
              "                        ;;\n"
              "                esac\n"
              "        done\n"
              "        case $command in\n"
              "        '')\n"
              "                options=' --socket --json --debug --help --version '\n"
              "                valued=' --socket -s '\n"
              "                actions='",
              out);
        print_names(commands, n_commands, out);
        fputs(" help '\n                at=$((COMP_CWORD - 1))\n                ;;\n"
              "        help)\n                actions='",
              out);
        print_names(commands, n_commands, out);
        fputs(" '\n                ;;\n", out);
        for (size_t i = 0; i < n_commands; i++)
                print_command(commands[i], out);
        fprintf(out,
                "        esac\n"
                "        [[ $previous == = || $word == = || $valued == *\" $previous \"* ]] && "
                "return\n"
                "        if [[ $word == -* ]]; then\n"
                "                COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
                "        elif ((COMP_CWORD == at + 1)); then\n"
                "                COMPREPLY=($(compgen -W \"$actions\" -- \"$word\"))\n"
                "        fi\n"
                "}\n"
                "complete -o default -F _kvcache_complete_%s %s\n",
                tool, tool);
}
