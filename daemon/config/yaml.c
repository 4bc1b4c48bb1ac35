/* SPDX-License-Identifier: Apache-2.0 */
/* YAML to values: libyaml's events, read by a small recursive descent that follows only sections
 * of the table.
 *
 * A file is read whole (files.c) and parsed from memory. A mapping's key is
 * appended to its section's name; the dotted result is looked up. Since recursion follows known
 * sections only, no file can make it deep. YAML beyond mappings, lists and plain values (anchors,
 * aliases, tags, several documents) is refused: the configuration does not need it, and each is a
 * way to write something else than what one sees.
 *
 * Errors carry the place, file:line:column counted from 1, of the key or value that they are about.
 * A duplicate key is refused with the line of the first. */
#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "checked.h"
#include "suggest.h"
#include "config/internal.h"

enum { MAX_NAME = 80, MAX_SECTIONS = 24 };

struct reader {
        struct config *c;
        const char *name;
        unsigned file; /* the index of its name in `c` */
        const unsigned char *text;
        size_t length;
        yaml_parser_t parser;
        yaml_event_t event;     /* the current event */
        bool has_event, broken; /* broken: the parser cannot continue after an error */
        unsigned depth;         /* number of mappings and lists that are open */
        uint64_t events;
        size_t line_of[CONFIG_MAX_ROWS]; /* by row: the line where the key was first given; 0: not
                                          * yet */
        struct {
                char name[MAX_NAME];
                size_t line;
        } sections[MAX_SECTIONS];
        unsigned n_sections;
        struct config_error *ret_error;
};

__attribute__((format(printf, 3, 4))) static int fail_at(struct reader *r, yaml_mark_t mark,
                                                         const char *fmt, ...)
{
        size_t skip = config_name_skip(r->name);
        char text[CONFIG_WHY];
        va_list args;

        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        return config_fail(r->ret_error, -EINVAL, "%s%s:%zu:%zu: %s", skip > 0 ? "..." : "",
                           r->name + skip, mark.line + 1, mark.column + 1, text);
}

/* Converts an offset in bytes, which is all that libyaml reports for some errors, to line and
 * column. */
static yaml_mark_t mark_at(const struct reader *r, size_t offset)
{
        yaml_mark_t mark = {};

        for (size_t i = 0; i < offset && i < r->length; i++) {
                if (r->text[i] == '\n') {
                        mark.line++;
                        mark.column = 0;
                } else if ((r->text[i] & 0xc0) != 0x80)
                        mark.column++;
        }
        return mark;
}

static int fail_parser(struct reader *r)
{
        const yaml_parser_t *p = &r->parser;
        const char *problem = p->problem ? p->problem : "the file cannot be read", *hint = "";
        yaml_mark_t mark = p->problem_mark;
        bool tab = false;

        switch (p->error) {
        case YAML_MEMORY_ERROR:
                return config_fail(r->ret_error, -ENOMEM, "%.160s: out of memory", r->name);
        case YAML_READER_ERROR:
                return fail_at(r, mark_at(r, p->problem_offset),
                               "not text in UTF-8 (%s): this is not a configuration file", problem);
        default:
                break;
        }
        for (size_t line = 0, i = 0; i < r->length && line <= mark.line; i++) {
                tab |= line == mark.line && r->text[i] == '\t';
                line += r->text[i] == '\n';
        }
        if (tab)
                hint = "; indent with spaces, not with tabs";
        else if (strstr(problem, "mapping values are not allowed"))
                hint = "; check the indentation, and quote text that contains \": \" in quotes";
        else if (strstr(problem, "could not find expected ':'") ||
                 strstr(problem, "did not find expected key"))
                hint = "; write it as \"key: value\", keys of one section at the same indentation";
        if (p->context && p->context_mark.line != mark.line)
                return fail_at(r, mark, "not valid YAML: %s (%s that begins at line %zu)%s",
                               problem, p->context, p->context_mark.line + 1, hint);
        return fail_at(r, mark, "not valid YAML: %s%s%s%s", problem, p->context ? " " : "",
                       p->context ? p->context : "", hint);
}

/* Advances to the next event of any kind. */
static int next_event(struct reader *r)
{
        yaml_event_t *e = &r->event;

        if (r->has_event)
                yaml_event_delete(e);
        r->has_event = false;
        if (!yaml_parser_parse(&r->parser, e)) {
                r->broken = true;
                return fail_parser(r);
        }
        r->has_event = true;
        r->events++;
        r->depth += e->type == YAML_MAPPING_START_EVENT || e->type == YAML_SEQUENCE_START_EVENT;
        r->depth -= e->type == YAML_MAPPING_END_EVENT || e->type == YAML_SEQUENCE_END_EVENT;
        return 0;
}

/* Advances to the next event. Refuses aliases, anchors and tags, which no key supports. */
static int advance(struct reader *r)
{
        const char *anchor = NULL, *tag = NULL;
        yaml_event_t *e = &r->event;
        char quoted[CONFIG_QUOTED];
        int ret = next_event(r);

        if (ret < 0)
                return ret;
        switch (e->type) {
        case YAML_ALIAS_EVENT:
                return fail_at(
                        r, e->start_mark,
                        "aliases (\"*\") are not supported; write the value out, or put it in "
                        "quotes");
        case YAML_SCALAR_EVENT:
                anchor = (const char *)e->data.scalar.anchor;
                tag = (const char *)e->data.scalar.tag;
                break;
        case YAML_SEQUENCE_START_EVENT:
                anchor = (const char *)e->data.sequence_start.anchor;
                tag = (const char *)e->data.sequence_start.tag;
                break;
        case YAML_MAPPING_START_EVENT:
                anchor = (const char *)e->data.mapping_start.anchor;
                tag = (const char *)e->data.mapping_start.tag;
                break;
        default:
                break;
        }
        if (anchor)
                return fail_at(r, e->start_mark,
                               "anchors (%s after \"&\") are not supported; leave it out",
                               config_quote(anchor, quoted));
        if (tag)
                return fail_at(r, e->start_mark, "tags (%s) are not supported; leave it out",
                               config_quote(tag, quoted));
        return 0;
}

/* Handles an error in a pair of a mapping or in an entry of a list. If the caller collects all
 * errors, records it and skips the rest of the pair or entry, until only `depth` collections are
 * open. `key`: value of r->events at the pair's key; 0 for an entry of a list. */
static int recovery_run(struct reader *r, unsigned depth, uint64_t key, int ret)
{
        if (ret != -EINVAL || r->broken)
                return ret;
        ret = config_note(r->ret_error, ret);
        if (ret < 0)
                return ret;
        if (r->events == key) {
                while (ret == 0 && r->depth > depth)
                        ret = next_event(r);
                if (ret == 0)
                        ret = next_event(r); /* reads the first event of the value */
        }
        while (ret == 0 && r->depth > depth)
                ret = next_event(r);
        return ret;
}

static const char *scalar(const struct reader *r)
{
        return (const char *)r->event.data.scalar.value;
}

/* Returns whether the value is empty, "~" or "null", without quotes. */
static bool is_null(const struct reader *r)
{
        return r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
               (*scalar(r) == '\0' || strcmp(scalar(r), "~") == 0 ||
                strcasecmp(scalar(r), "null") == 0);
}

/* Refuses a text with "\0" in quotes, which would end it early. */
static int check_whole(struct reader *r)
{
        if (strlen(scalar(r)) != r->event.data.scalar.length)
                return fail_at(r, r->event.start_mark, "the text contains a NUL character");
        return 0;
}

static int note_row(struct reader *r, unsigned row, const char *name, yaml_mark_t mark)
{
        if (r->line_of[row] > 0)
                return fail_at(r, mark, "\"%s\" is given twice%s%s%s; first at line %zu",
                               config_rows[row].name,
                               strcmp(name, config_rows[row].name) != 0 ? " (as " : "",
                               strcmp(name, config_rows[row].name) != 0 ? name : "",
                               strcmp(name, config_rows[row].name) != 0 ? ")" : "",
                               r->line_of[row]);
        r->line_of[row] = mark.line + 1;
        return 0;
}

static int note_section(struct reader *r, const char *name, yaml_mark_t mark)
{
        for (unsigned i = 0; i < r->n_sections; i++)
                if (strcmp(r->sections[i].name, name) == 0)
                        return fail_at(r, mark, "section \"%s\" is given twice; first at line %zu",
                                       name, r->sections[i].line);
        assert(r->n_sections < MAX_SECTIONS); /* cannot fail: each section is entered once, and the
                                               * table has fewer */
        snprintf(r->sections[r->n_sections].name, MAX_NAME, "%s", name);
        r->sections[r->n_sections++].line = mark.line + 1;
        return 0;
}

/* Reads a list, whose beginning is the current event, into the member of a row. */
static int read_list(struct reader *r, void *object, const struct config_row *row)
{
        yaml_mark_t start = r->event.start_mark;
        char *items[CONFIG_MAX_NAMES + 1], why[CONFIG_WHY];
        unsigned n = 0;
        int ret;

        static_assert((int)CONFIG_MAX_NAMES >= (int)CONFIG_MAX_VOLUMES, "room for every list");
        for (;;) {
                ret = advance(r);
                if (ret < 0)
                        break;
                if (r->event.type == YAML_SEQUENCE_END_EVENT) {
                        ret = config_assign_list_to(object, row, items, n, why);
                        if (ret == -EINVAL)
                                ret = fail_at(r, start, "%s", why);
                        break;
                }
                if (r->event.type != YAML_SCALAR_EVENT) {
                        ret = fail_at(r, r->event.start_mark,
                                      "%s: expected a list of plain values; this entry is a %s",
                                      row->name,
                                      r->event.type == YAML_MAPPING_START_EVENT ? "mapping"
                                                                                : "list");
                        break;
                }
                ret = check_whole(r);
                if (ret < 0)
                        break;
                if (is_null(r)) {
                        ret = fail_at(r, r->event.start_mark, "%s: an entry has no value",
                                      row->name);
                        break;
                }
                if (n == ARRAY_SIZE(items)) {
                        ret = fail_at(r, r->event.start_mark,
                                      "%s: the list has more than %u entries", row->name,
                                      (unsigned)row->most);
                        break;
                }
                items[n] = strdup(scalar(r));
                if (!items[n]) {
                        ret = -ENOMEM;
                        break;
                }
                n++;
        }
        for (unsigned i = 0; i < n; i++)
                free(items[i]);
        return ret;
}

static struct config_place place_at(const struct reader *r, yaml_mark_t mark, bool broken)
{
        return (struct config_place){ .from = CONFIG_FROM_FILE,
                                      .file = (uint16_t)r->file,
                                      .line = (uint32_t)mark.line + 1,
                                      .column = (uint32_t)mark.column + 1,
                                      .broken = broken };
}

/* Reads the value of the key `name`, which is at `key`. The current event is the value's first. */
static int read_value(struct reader *r, const char *name, yaml_mark_t key)
{
        int row = config_row_find(name), ret;
        yaml_mark_t mark = r->event.start_mark;
        char why[CONFIG_WHY];

        assert(row >= 0);
        ret = note_row(r, (unsigned)row, name, key);
        if (ret < 0)
                return ret;
        r->c->place[row] = place_at(r, mark, true);
        switch (r->event.type) {
        case YAML_SCALAR_EVENT:
                ret = check_whole(r);
                if (ret < 0)
                        return ret;
                if (is_null(r))
                        return fail_at(r, key,
                                       "\"%s\" has no value; give it one, or leave the line out",
                                       name);
                if (r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                    r->event.end_mark.line != mark.line)
                        return fail_at(r, mark,
                                       "the value of \"%s\" continues on the next line; check the "
                                       "indentation there",
                                       name);
                ret = config_assign(r->c, (unsigned)row, scalar(r), false, why);
                r->c->place[row].broken = ret < 0;
                return ret == -EINVAL ? fail_at(r, mark, "%s", why) : ret;
        case YAML_SEQUENCE_START_EVENT:
                ret = read_list(r, r->c, &config_rows[row]);
                r->c->place[row].broken = ret < 0;
                if (ret == 0)
                        config_note_given(r->c, (unsigned)row);
                return ret;
        default:
                return fail_at(r, mark, "\"%s\" takes a value, and cannot have keys below it",
                               name);
        }
}

/* Reads a value of a tenant. The current event is the value's first. */
static int read_tenant_value(struct reader *r, struct config_tenant *t, unsigned row,
                             yaml_mark_t key)
{
        const struct config_row *of = &config_tenant_rows[row];
        yaml_mark_t mark = r->event.start_mark;
        char why[CONFIG_WHY];
        int ret;

        if (r->event.type == YAML_SEQUENCE_START_EVENT) {
                ret = read_list(r, t, of);
        } else if (r->event.type != YAML_SCALAR_EVENT) {
                return fail_at(r, mark, "\"%s\" takes a value, and cannot have keys below it",
                               of->name);
        } else {
                ret = check_whole(r);
                if (ret < 0)
                        return ret;
                if (is_null(r))
                        return fail_at(r, key,
                                       "\"%s\" has no value; give it one, or leave the line out",
                                       of->name);
                ret = config_assign_to(t, of, scalar(r), false, why);
                if (ret == -EINVAL)
                        return fail_at(r, mark, "%s", why);
        }
        if (ret == 0) {
                t->place[row] = place_at(r, mark, false);
                config_bit_set(t->given, row, true);
        }
        return ret;
}

/* Reads a key of a tenant, which is the current event, and its value. `line_of`: by row, the line
 * of an earlier occurrence in this entry. */
static int read_tenant_pair(struct reader *r, struct config_tenant *t,
                            size_t line_of[static CONFIG_MAX_TENANT_ROWS])
{
        yaml_mark_t key = r->event.start_mark;
        char quoted[CONFIG_QUOTED];
        struct suggestion meant;
        unsigned row;
        int ret;

        if (r->event.type != YAML_SCALAR_EVENT)
                return fail_at(r, key, "a key must be plain text, not a %s",
                               r->event.type == YAML_MAPPING_START_EVENT ? "mapping" : "list");
        ret = check_whole(r);
        if (ret < 0)
                return ret;
        meant = suggest_init(scalar(r));
        for (row = 0; row < config_n_tenant_rows; row++) {
                const char *name = strchr(config_tenant_rows[row].name, '.') + 1;

                if (strcmp(name, scalar(r)) == 0)
                        break;
                suggest_try(&meant, scalar(r), name);
        }
        if (row == config_n_tenant_rows)
                return fail_at(r, key, "unknown key %s of a tenant%s%s%s",
                               config_quote(scalar(r), quoted),
                               meant.text ? "; did you mean \"" : "", meant.text ? meant.text : "",
                               meant.text ? "\"?" : "");
        if (line_of[row] > 0)
                return fail_at(r, key, "\"%s\" is given twice; first at line %zu",
                               config_tenant_rows[row].name, line_of[row]);
        line_of[row] = key.line + 1;
        ret = advance(r);
        return ret < 0 ? ret : read_tenant_value(r, t, row, key);
}

/* Reads the rest of an entry of `tenants`, after the beginning of its mapping. Drops an entry with
 * an error. */
static int read_tenant(struct reader *r)
{
        yaml_mark_t start = r->event.start_mark;
        size_t line_of[CONFIG_MAX_TENANT_ROWS] = { 0 };
        unsigned depth = r->depth, before = r->ret_error->n;
        char why[CONFIG_WHY];
        struct config_tenant *t;
        int ret = config_tenant_add(r->c, &t);

        if (ret < 0)
                return ret;
        for (;;) {
                uint64_t key;

                ret = advance(r);
                key = r->events;
                if (ret == 0 && r->event.type == YAML_MAPPING_END_EVENT)
                        break;
                if (ret == 0)
                        ret = read_tenant_pair(r, t, line_of);
                if (ret < 0)
                        ret = recovery_run(r, depth, key, ret);
                if (ret < 0)
                        return ret;
        }
        t = &r->c->tenants[r->c->n_tenants - 1];
        if (r->ret_error->n == before) {
                t = config_tenant_merge(r->c, r->file);
                if (config_tenant_check(r->c, t, why) < 0)
                        ret = config_note(r->ret_error, fail_at(r, start, "%s", why));
        }
        if (ret == 0 && r->ret_error->n > before)
                config_tenant_drop(r->c, t);
        return ret;
}

/* Reads the rest of `tenants`, after the beginning of its list. */
static int read_tenants(struct reader *r)
{
        unsigned depth = r->depth;
        int ret;

        for (;;) {
                ret = advance(r);
                if (ret == 0 && r->event.type == YAML_SEQUENCE_END_EVENT)
                        return 0;
                if (ret == 0)
                        ret = r->event.type == YAML_MAPPING_START_EVENT
                                      ? read_tenant(r)
                                      : fail_at(r, r->event.start_mark,
                                                "a tenant is a mapping: \"- name: research\", and "
                                                "its other keys below");
                if (ret < 0)
                        ret = recovery_run(r, depth, 0, ret);
                if (ret < 0)
                        return ret;
        }
}

static int read_mapping(struct reader *r, const char *section);

/* Reads a key of `section`, which is the current event, and its value. */
static int read_pair(struct reader *r, const char *section)
{
        char name[MAX_NAME], why[CONFIG_WHY], quoted[CONFIG_QUOTED];
        yaml_mark_t key = r->event.start_mark;
        int ret;

        if (r->event.type != YAML_SCALAR_EVENT)
                return fail_at(r, key, "a key must be plain text, not a %s",
                               r->event.type == YAML_MAPPING_START_EVENT ? "mapping" : "list");
        ret = check_whole(r);
        if (ret < 0)
                return ret;
        if (*scalar(r) == '\0')
                return fail_at(r, key, "a key is empty");
        if (snprintf(name, sizeof(name), "%s%s%s", section, *section ? "." : "", scalar(r)) >=
            MAX_NAME)
                return fail_at(r, key, "unknown key %s", config_quote(scalar(r), quoted));

        if (config_row_find(name) < 0 && !config_is_section(name)) {
                config_say_unknown(name, why);
                return fail_at(r, key, "%s", why);
        }
        ret = advance(r);
        if (ret < 0)
                return ret;
        if (!config_is_section(name))
                return read_value(r, name, key);
        ret = note_section(r, name, key);
        if (ret < 0)
                return ret;
        if (r->event.type == YAML_SCALAR_EVENT && is_null(r))
                return 0; /* the section is empty, because all of its keys are commented out */
        if (r->event.type == YAML_SEQUENCE_START_EVENT && strcmp(name, "tenants") == 0)
                return read_tenants(r);
        if (r->event.type != YAML_MAPPING_START_EVENT)
                return fail_at(r, r->event.start_mark,
                               "\"%s\" is a section: its keys go below it, indented, as \"key: "
                               "value\"",
                               name);
        return read_mapping(r, name);
}

/* Reads the rest of a mapping, after its beginning. `section` is "" for the whole file. */
static int read_mapping(struct reader *r, const char *section)
{
        unsigned depth = r->depth;
        uint64_t key;
        int ret;

        for (;;) {
                ret = advance(r);
                key = r->events;
                if (ret == 0 && r->event.type == YAML_MAPPING_END_EVENT)
                        return 0;
                if (ret == 0)
                        ret = read_pair(r, section);
                if (ret < 0)
                        ret = recovery_run(r, depth, key, ret);
                if (ret < 0)
                        return ret;
        }
}

static int read_stream(struct reader *r)
{
        int ret;

        ret = advance(r);
        if (ret < 0)
                return ret;
        assert(r->event.type == YAML_STREAM_START_EVENT);
        ret = advance(r);
        if (ret < 0 || r->event.type == YAML_STREAM_END_EVENT)
                return ret; /* the file contains only comments */
        assert(r->event.type == YAML_DOCUMENT_START_EVENT);
        ret = advance(r);
        if (ret < 0)
                return ret;
        if (r->event.type == YAML_MAPPING_START_EVENT)
                ret = read_mapping(r, "");
        else if (r->event.type != YAML_SCALAR_EVENT || !is_null(r))
                ret = fail_at(r, r->event.start_mark, "expected \"key: value\" lines, not %s",
                              r->event.type == YAML_SCALAR_EVENT ? "a single value" : "a list");
        if (ret < 0)
                return ret;
        ret = advance(r);
        if (ret < 0)
                return ret;
        assert(r->event.type == YAML_DOCUMENT_END_EVENT);
        ret = advance(r);
        if (ret < 0 || r->event.type == YAML_STREAM_END_EVENT)
                return ret;
        return fail_at(r, r->event.start_mark,
                       "a second document begins here; a configuration is one document");
}

int config_load_text(struct config *c, const char *name, const char *text, size_t length,
                     struct config_error *ret_error)
{
        struct reader r = {
                .c = c,
                .name = name,
                .text = (const unsigned char *)text,
                .length = length,
                .ret_error = ret_error,
        };
        int ret = config_file_add(c, name);

        if (ret < 0)
                return config_fail(ret_error, ret, "%.160s: out of memory", name);
        r.file = (unsigned)ret;
        if (length > CONFIG_MAX_FILE)
                return config_fail(ret_error, -EINVAL,
                                   "%.160s: larger than %d KiB: this is not a configuration file",
                                   name, CONFIG_MAX_FILE / 1024);
        if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* libyaml would count a byte
                                                                    * order mark as a column */
                r.text += 3;
                r.length -= 3;
        }
        if (!yaml_parser_initialize(&r.parser))
                return config_fail(ret_error, -ENOMEM, "%.160s: out of memory", name);
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r.parser, r.text, r.length);
        ret = read_stream(&r);
        if (ret == -EINVAL) {
                ret = config_note(ret_error, ret);
                ret_error->broken = ret == 0 && r.broken;
        }
        if (r.has_event)
                yaml_event_delete(&r.event);
        yaml_parser_delete(&r.parser);
        if (ret == -ENOMEM)
                config_fail(ret_error, ret, "%.160s: out of memory", name);
        return ret;
}
