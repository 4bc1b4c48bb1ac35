/* SPDX-License-Identifier: Apache-2.0 */
/* Completion for bash, and the table of supported shells. */
#include "completion.h"

#include <string.h>

#include "checked.h"

completion_fn completion_for(const char *shell)
{
        static const struct {
                const char *shell;
                completion_fn print;
        } known[] = { { "bash", completion_print_bash },
                      { "zsh", completion_print_zsh },
                      { "fish", completion_print_fish } };

        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (strcmp(known[i].shell, shell) == 0)
                        return known[i].print;
        return NULL;
}

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

static void print_names(const struct completion *tool, FILE *out)
{
        for (size_t i = 0; i < tool->n_commands; i++)
                fprintf(out, " %s", tool->commands[i]->name);
}

/* Prints, for each option with `values`, the test that sets its possible arguments, or the kind of
 * words that bash then requests from the tool. */
static void print_values(const struct option_row *rows, FILE *out)
{
        for (; rows && rows->id; rows++) {
                if (!rows->values)
                        continue;
                fprintf(out, "                [[ $option == --%s", rows->name);
                if (rows->id < OPTION_LONG)
                        fprintf(out, " || $option == -%c", rows->id);
                if (completion_kind(rows->values))
                        fprintf(out, " ]] && dynamic=%s\n", completion_kind(rows->values));
                else
                        fprintf(out, " ]] && values='%s'\n", rows->values);
        }
}

/* Prints the branch of one command: its options, those that require an argument, its actions, the
 * kind of its operands, and the possible arguments of its options. */
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
        fputs(" '\n", out);
        if (command->operands)
                fprintf(out, "                operands=%s\n", command->operands);
        print_values(command->options, out);
        fputs("                ;;\n", out);
}

void completion_print_bash(const struct completion *tool, FILE *out)
{
        fprintf(out,
                "# SPDX-License-Identifier: Apache-2.0\n"
                "# Completion of %s for bash, made from the tables of its commands and options.\n"
                "# Where no word is known, file names are completed.\n"
                "_kvcache_complete_%s()\n{\n",
                tool->name, tool->name);
        fputs("        local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}\n"
              "        local command='' options='' valued='' values='' actions='' i at\n"
              "        local dynamic='' operands=''\n"
              "        COMPREPLY=()\n"
              "        # \"--option=value\" are three words.\n"
              "        if [[ $word == = ]]; then\n"
              "                word=''\n"
              "        elif [[ $option == = ]] && ((COMP_CWORD > 1)); then\n"
              "                option=${COMP_WORDS[COMP_CWORD-2]}\n"
              "        fi\n"
              "        for ((i = 1; i < COMP_CWORD; i++)); do\n"
              "                case ${COMP_WORDS[i]} in\n"
              "                -s | --socket | --color)\n"
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
              "                options='",
              out);
        print_option_names(options_shared(), false, out);
        fputs(" --debug --version '\n                valued='", out);
        print_option_names(options_shared(), true, out);
        fputs(" '\n                actions='", out);
        print_names(tool, out);
        fputs(" help '\n                at=$((COMP_CWORD - 1))\n                ;;\n"
              "        help)\n                actions='",
              out);
        print_names(tool, out);
        fputs(" '\n                ;;\n", out);
        for (size_t i = 0; i < tool->n_commands; i++)
                print_command(tool->commands[i], out);
        fputs("        esac\n", out);
        print_values(options_shared(), out);
        fprintf(out,
                "        if [[ $values ]]; then\n"
                "                COMPREPLY=($(compgen -W \"$values\" -- \"$word\"))\n"
                "        elif [[ $dynamic ]]; then\n"
                "                :\n"
                "        elif [[ ${COMP_WORDS[COMP_CWORD]} == = || ${COMP_WORDS[COMP_CWORD-1]} == "
                "= ||\n"
                "                $valued == *\" $option \"* ]]; then\n"
                "                return\n"
                "        elif [[ $word == -* ]]; then\n"
                "                COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
                "        elif [[ ${actions// } ]] && ((COMP_CWORD == at + 1)); then\n"
                "                COMPREPLY=($(compgen -W \"$actions\" -- \"$word\"))\n"
                "        else\n"
                "                dynamic=$operands\n"
                "        fi\n"
                "        # Names from elsewhere are not expanded, as compgen -W would.\n"
                "        if [[ $dynamic ]]; then\n"
                "                while read -r i; do\n"
                "                        [[ $i == \"$word\"* ]] && COMPREPLY+=(\"$i\")\n"
                "                done < <(\"${COMP_WORDS[0]}\" --complete \"$dynamic\" "
                "2>/dev/null)\n"
                "        fi\n"
                "}\n"
                "complete -o default -F _kvcache_complete_%s %s\n",
                tool->name, tool->name);
}
