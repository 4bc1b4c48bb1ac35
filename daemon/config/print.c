/* SPDX-License-Identifier: Apache-2.0 */
/* Values to text: what --print-config, --help, the commented default file and messages show.
 *
 * Numbers are printed exactly, in the largest unit that divides them, so that what is printed reads
 * back to the same. Text is put in double quotes unless it is plainly harmless. Only a lack of
 * memory and a failed write to `out` are failures. */
#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "config/internal.h"

void config_exact_bytes(uint64_t bytes, char ret[static 32])
{
        static const char *const units[] = { "", "KiB", "MiB", "GiB", "TiB", "PiB" };
        unsigned i = 0;

        for (; bytes > 0 && bytes % 1024 == 0 && i + 1 < ARRAY_SIZE(units); i++)
                bytes /= 1024;
        snprintf(ret, 32, "%llu%s", (unsigned long long)bytes, units[i]);
}

static void exact_ms(uint64_t ms, char ret[static 32])
{
        const char *unit = "ms";

        if (ms > 0 && ms % HOUR == 0) {
                ms /= HOUR;
                unit = "h";
        } else if (ms > 0 && ms % MINUTE == 0) {
                ms /= MINUTE;
                unit = "min";
        } else if (ms % SECOND == 0) {
                ms /= SECOND;
                unit = "s";
        }
        snprintf(ret, 32, "%llu%s", (unsigned long long)ms, unit);
}

/* Returns whether YAML tools may take a text for a boolean or for a number that they would write
 * in another way, such as 010, 1e3, 1_000 and 0x10. They know "on" and "off", too, which are values
 * of this daemon's keys. */
static bool is_other_to_yaml_tools(const char *text)
{
        static const char *const words[] = { "null", "y", "n", "yes", "no", "true", "false" };
        size_t n = strlen(text);

        for (size_t i = 0; i < ARRAY_SIZE(words); i++)
                if (strcasecmp(text, words[i]) == 0)
                        return true;
        return isdigit((unsigned char)*text) &&
               strspn(text, "0123456789abcdefABCDEFxXoO_.+-") == n &&
               (strspn(text, "0123456789") < n || (*text == '0' && n > 1));
}

/* Returns whether a text needs no quotes, because libyaml and YAML tools read it back unchanged. */
static bool is_plain(const char *text, bool in_list)
{
        if (!isalnum((unsigned char)text[0]) && text[0] != '/')
                return false;
        if (is_other_to_yaml_tools(text) || text[strlen(text) - 1] == ':')
                return false;
        for (const char *p = text; *p; p++)
                if (!isalnum((unsigned char)*p) && !strchr(in_list ? "/._-+@" : "/._-+@:", *p))
                        return false;
        return true;
}

static void print_text(const char *text, bool in_list, FILE *out)
{
        if (is_plain(text, in_list)) {
                fputs(text, out);
                return;
        }
        fputc('"', out);
        for (const char *p = text; *p; p++) {
                if (*p == '"' || *p == '\\')
                        fputc('\\', out);
                fputc(*p, out);
        }
        fputc('"', out);
}

bool config_row_is_auto(const void *object, const struct config_row *row)
{
        const void *member = config_member(object, row);

        if (!(row->flags & CONFIG_AUTO))
                return false;
        switch (row->type) {
        case CONFIG_SOCKET:
                return **(char *const *)member == '\0';
        case CONFIG_PATHS:
                return ((const struct config_strings *)member)->n == 0;
        default:
                return *(const uint64_t *)member == 0;
        }
}

static void print_value(const void *object, const struct config_row *row, FILE *out)
{
        const void *member = config_member(object, row);
        const struct config_strings *strings = member;
        char text[32];

        if (config_row_is_auto(object, row)) {
                fputs("auto", out);
                return;
        }
        switch (row->type) {
        case CONFIG_SOCKET:
        case CONFIG_HTTP:
        case CONFIG_FILE:
        case CONFIG_TEXT:
        case CONFIG_CHOICE:
        case CONFIG_TENANT:
                print_text(*(char *const *)member, false, out);
                break;
        case CONFIG_MODE:
                fprintf(out, "%04o", *(const uint32_t *)member);
                break;
        case CONFIG_PATHS:
        case CONFIG_NAMES:
                if (row->type == CONFIG_PATHS && strings->n == 1) {
                        print_text(strings->items[0], true, out);
                        break;
                }
                fputc('[', out);
                for (unsigned i = 0; i < strings->n; i++) {
                        fputs(i > 0 ? ", " : "", out);
                        print_text(strings->items[i], true, out);
                }
                fputc(']', out);
                break;
        case CONFIG_BYTES:
                config_exact_bytes(*(const uint64_t *)member, text);
                fputs(text, out);
                break;
        case CONFIG_COUNT:
                fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)member);
                break;
        case CONFIG_TIME:
                if ((row->flags & CONFIG_OFF) && *(const uint64_t *)member == 0)
                        strcpy(text, "off");
                else
                        exact_ms(*(const uint64_t *)member, text);
                fputs(text, out);
                break;
        case CONFIG_SWITCH:
                if (*(const bool *)member)
                        fprintf(out, "%.*s", (int)strcspn(row->words, "|"), row->words);
                else
                        fputs(strchr(row->words, '|') + 1, out);
                break;
        }
}

char *config_format(const void *object, const struct config_row *row)
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);

        if (!out)
                return NULL;
        print_value(object, row, out);
        if (fclose(out) != 0) {
                free(text);
                return NULL;
        }
        return text;
}

/* Formats the words of a row: "a|b|c" becomes "a, b or c". */
static void format_words(const char *words, char *ret, size_t size)
{
        size_t used = 0;

        for (const char *p = words; *p && used + 8 < size; p++)
                if (*p == '|')
                        used += (size_t)sprintf(ret + used, "%s",
                                                strchr(p + 1, '|') ? ", " : " or ");
                else
                        ret[used++] = *p;
        ret[used] = '\0';
}

void config_format_range(const struct config_row *row, char *ret, size_t size)
{
        const char *or_auto = config_or_word(row);
        char least[32], most[32];

        switch (row->type) {
        case CONFIG_SOCKET:
                snprintf(ret, size, "a path%s", or_auto);
                break;
        case CONFIG_HTTP:
                snprintf(ret, size, "ADDRESS:PORT, unix:/PATH or off");
                break;
        case CONFIG_FILE:
                snprintf(ret, size, "/PATH or off");
                break;
        case CONFIG_TEXT:
                snprintf(ret, size, "text without spaces, or off");
                break;
        case CONFIG_TENANT:
                snprintf(ret, size, "1 to %u letters, digits, \".\", \"_\" and \"-\"",
                         (unsigned)CONFIG_TENANT_NAME);
                break;
        case CONFIG_MODE:
                snprintf(ret, size, "octal, %04o to %04o", (unsigned)row->least,
                         (unsigned)row->most);
                break;
        case CONFIG_PATHS:
                snprintf(ret, size, "a path, a list of at most %u%s", (unsigned)row->most, or_auto);
                break;
        case CONFIG_NAMES:
                snprintf(ret, size, "a name, or a list of at most %u", (unsigned)row->most);
                break;
        case CONFIG_BYTES:
                config_exact_bytes(row->least, least);
                config_exact_bytes(row->most, most);
                snprintf(ret, size, "%s to %s%s", least, most, or_auto);
                break;
        case CONFIG_COUNT:
                snprintf(ret, size, "%llu to %llu%s", (unsigned long long)row->least,
                         (unsigned long long)row->most, or_auto);
                break;
        case CONFIG_TIME:
                exact_ms(row->least, least);
                exact_ms(row->most, most);
                snprintf(ret, size, "%s to %s%s", least, most, or_auto);
                break;
        case CONFIG_SWITCH:
        case CONFIG_CHOICE:
                format_words(row->words, ret, size);
                break;
        }
}

static const char *key_of(const struct config_row *row)
{
        return strchr(row->name, '.') + 1;
}

/* Prints "section:" before the first row of a section. The rows of a section are consecutive. */
static void print_section(unsigned row, const char *before, FILE *out)
{
        size_t n = strcspn(config_rows[row].name, ".");

        if (row > 0 && strncmp(config_rows[row - 1].name, config_rows[row].name, n + 1) == 0)
                return;
        fprintf(out, "%s%.*s:\n", row > 0 ? before : "", (int)n, config_rows[row].name);
}

/* Prints, as a comment, the drop-in and the line that gave a value. Prints nothing for a value from
 * elsewhere. */
static void print_drop_in(const struct config *c, const struct config_place *place, FILE *out)
{
        const char *name, *slash;

        if (place->from != CONFIG_FROM_FILE || place->file == 0)
                return;
        name = c->files.items[place->file];
        slash = strrchr(name, '/');
        fprintf(out, "  # %s:%u", slash ? slash + 1 : name, place->line);
}

/* Prints the keys of a tenant that were given or chosen. */
static void print_tenant(const struct config *c, const struct config_tenant *t, FILE *out)
{
        const char *before = "- ";

        for (unsigned i = 0; i < config_n_tenant_rows; i++) {
                if (!config_bit(t->given, i) && !config_bit(t->automatic, i))
                        continue;
                fprintf(out, "  %s%s: ", before, key_of(&config_tenant_rows[i]));
                print_value(t, &config_tenant_rows[i], out);
                if (config_bit(t->automatic, i))
                        fputs("  # chosen (auto)", out);
                else
                        print_drop_in(c, &t->place[i], out);
                fputc('\n', out);
                before = "  ";
        }
}

/* Returns the quote for a value. A mode is quoted in YAML, because tools that read it as a number
 * write it in decimal. */
static const char *quote_of(const struct config_row *row)
{
        return row->type == CONFIG_MODE ? "\"" : "";
}

void config_print(const struct config *c, FILE *out)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                print_section(i, "", out);
                fprintf(out, "  %s: %s", key_of(&config_rows[i]), quote_of(&config_rows[i]));
                print_value(c, &config_rows[i], out);
                fputs(quote_of(&config_rows[i]), out);
                if (config_bit(c->automatic, i))
                        fputs("  # chosen (auto)", out);
                else if (!config_bit(c->given, i))
                        fputs("  # default", out);
                else
                        print_drop_in(c, &c->place[i], out);
                fputc('\n', out);
        }
        if (c->n_tenants > 0)
                fputs("tenants:\n", out);
        for (unsigned i = 0; i < c->n_tenants; i++)
                print_tenant(c, &c->tenants[i], out);
}

/* Prints `text` in lines of at most 100 columns, each after `prefix`. */
static void print_wrapped(const char *prefix, const char *text, FILE *out)
{
        size_t room = 100 - strlen(prefix);

        while (*text) {
                size_t n = strlen(text);

                if (n > room)
                        for (n = room; n > 0 && text[n] != ' '; n--)
                                ;
                assert(n > 0);
                fprintf(out, "%s%.*s\n", prefix, (int)n, text);
                text += n;
                text += strspn(text, " ");
        }
}

void config_print_template(FILE *out)
{
        fputs("# Configuration of kvcache-daemon, which reads it at startup and on SIGHUP; see "
              "kvcache.yaml(5).\n"
              "#\n"
              "# Every key is listed with its default, commented out. An environment variable\n"
              "# (KVCACHE_STORE_LIMIT=64GiB) overrides the file, and an option (--set "
              "store.limit=64GiB) overrides both.\n"
              "# Files kvcache.yaml.d/NAME.yaml beside this one are read after it, in the order of "
              "their names.\n"
              "# To check all of them, run kvcache-daemon --check-config.\n"
              "\n",
              out);
        for (unsigned i = 0; i < config_n_rows; i++) {
                const struct config_row *row = &config_rows[i];
                char range[96], line[160];

                print_section(i, "", out);
                print_wrapped("  # ", row->help, out);
                config_format_range(row, range, sizeof(range));
                snprintf(line, sizeof(line), "(%s%s)", range,
                         row->flags & CONFIG_RELOAD ? "; changes with a reload" : "");
                print_wrapped("  # ", line, out);
                fprintf(out, "  #%s: %s%s%s\n\n", key_of(row), quote_of(row), row->initial,
                        quote_of(row));
        }
        print_wrapped(
                "# ",
                "A tenant is a set of users with a memory pool, names of namespaces and limits "
                "of its own. A user belongs to the first entry that lists the user or one of "
                "its groups. Users that no entry lists belong to the tenant \"default\", whose "
                "users are those of access.users and access.groups and whose pool is memory.pool; "
                "an entry named \"default\" sets its limits. Keys of an entry:",
                out);
        fputs("#\n", out);
        for (unsigned i = 0; i < config_n_tenant_rows; i++) {
                const struct config_row *row = &config_tenant_rows[i];
                char range[96], line[512];

                config_format_range(row, range, sizeof(range));
                snprintf(line, sizeof(line), "%s: %s (%s%s)", key_of(row), row->help, range,
                         row->flags & CONFIG_RELOAD ? "; changes with a reload" : "");
                print_wrapped("#   ", line, out);
        }
        fputs("#tenants:\n"
              "#  - name: research\n"
              "#    users: [alice, bob]\n"
              "#    groups: [ml]\n"
              "#    pool: 1GiB\n"
              "#    stored_bytes: 100GiB\n",
              out);
}

void config_print_keys(FILE *out)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                const struct config_row *row = &config_rows[i];
                char range[96];

                config_format_range(row, range, sizeof(range));
                fprintf(out, "  %s=%s  (%s)\n", row->name, row->initial, range);
                print_wrapped("      ", row->help, out);
        }
        fputs("\n  tenants is a list, in the file only; the keys of an entry:\n", out);
        for (unsigned i = 0; i < config_n_tenant_rows; i++) {
                const struct config_row *row = &config_tenant_rows[i];
                char range[96];

                config_format_range(row, range, sizeof(range));
                fprintf(out, "  - %s: %s  (%s)\n", key_of(row), row->initial, range);
                print_wrapped("      ", row->help, out);
        }
}
