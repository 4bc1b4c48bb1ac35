/* SPDX-License-Identifier: Apache-2.0 */
#include "recording.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"

struct recording_line {
        uint64_t session, begun_ms;
        uint64_t parent; /* id of the block before the line's first one */
        bool is_got;     /* all of its blocks were got, and none was put */
        size_t n, room;
        uint64_t *ids;
};

static struct recording_line *line_at(const struct recording *r, size_t i)
{
        return r->lines[(r->first + i) % RECORDING_OPEN_LINES];
}

enum {
        LINE_BYTES = 64,
        ID_BYTES = 18
}; /* upper bounds of the bytes of a line without ids, and of an id */

static void write_line(struct recording *r, const struct recording_line *line)
{
        int n = fprintf(r->out, "{\"timestamp\": %" PRIu64 ", \"hash_ids\": [", line->begun_ms);

        r->bytes += (uint64_t)MAX(n, 0);
        for (size_t i = 0; i < line->n; i++) {
                n = fprintf(r->out, "%s%" PRIu64, i > 0 ? ", " : "", line->ids[i]);
                r->bytes += (uint64_t)MAX(n, 0);
        }
        fputs("]}\n", r->out);
        r->bytes += 3;
        r->requests++;
        r->blocks += line->n;
}

static void write_first(struct recording *r)
{
        struct recording_line *line = line_at(r, 0);

        r->is_full |= r->max_bytes > 0 && r->bytes + LINE_BYTES + line->n * ID_BYTES > r->max_bytes;
        if (r->is_full)
                r->dropped += line->n;
        else
                write_line(r, line);
        r->open_ids -= line->n;
        r->first = (r->first + 1) % RECORDING_OPEN_LINES;
        r->n_open--;
        free(line->ids);
        free(line);
}

static int grow(struct recording_line *line, size_t n)
{
        size_t room = MAX(2 * line->room, line->n + n);
        uint64_t *ids;

        if (line->n + n <= line->room)
                return 0;
        ids = reallocarray(line->ids, room, sizeof(*ids));
        if (!ids)
                return -ENOMEM;
        line->ids = ids;
        line->room = room;
        return 0;
}

static struct recording_line *line_new(struct recording *r, const struct wire_record_entry *entry)
{
        struct recording_line *line = calloc(1, sizeof(*line));

        if (!line)
                return NULL;
        if (r->n_open == RECORDING_OPEN_LINES)
                write_first(r);
        line->session = entry->session;
        line->begun_ms = entry->time_ms;
        line->parent = entry->parent;
        line->is_got = true;
        r->lines[(r->first + r->n_open++) % RECORDING_OPEN_LINES] = line;
        return line;
}

/* Finds the line to which the entry belongs: the latest line of its session that it continues. A
 * GET is recorded when it is answered, perhaps after a later GET of its chain, so it may also
 * belong before a line, which sets `*ret_before`. A GET never joins a line that has puts. Returns
 * NULL if there is no such line. `last`: the entry's last id. */
static struct recording_line *find(const struct recording *r, const struct wire_record_entry *entry,
                                   uint64_t last, bool *ret_before)
{
        bool is_got = entry->kind == WIRE_RECORD_GET;

        for (size_t i = r->n_open; i-- > 0;) {
                struct recording_line *line = line_at(r, i);

                if (line->session != entry->session)
                        continue;
                *ret_before = is_got && line->is_got && line->parent == last;
                if (*ret_before || (entry->parent != 0 && line->ids[line->n - 1] == entry->parent &&
                                    (line->is_got || !is_got)))
                        return line;
        }
        return NULL;
}

int recording_add(struct recording *r, const struct wire_record_entry *entry, const uint64_t *ids)
{
        struct recording_line *line;
        size_t n = entry->count;
        bool before = false;

        while (r->n_open > 0 && (r->open_ids > RECORDING_OPEN_IDS ||
                                 line_at(r, 0)->begun_ms + RECORDING_OPEN_MS < entry->time_ms))
                write_first(r);
        r->last_ms = entry->time_ms;
        if (n == 0)
                return 0;
        line = find(r, entry, ids[n - 1], &before);
        if (!line)
                line = line_new(r, entry);
        if (!line || grow(line, n) < 0)
                return -ENOMEM;
        if (before) {
                memmove(line->ids + n, line->ids, line->n * sizeof(*ids));
                line->parent = entry->parent;
        }
        memcpy(line->ids + (before ? 0 : line->n), ids, n * sizeof(*ids));
        line->n += n;
        line->is_got = line->is_got && entry->kind == WIRE_RECORD_GET;
        r->open_ids += n;
        return 0;
}

void recording_flush(struct recording *r)
{
        while (r->n_open > 0)
                write_first(r);
}
