/* SPDX-License-Identifier: Apache-2.0 */
/* Implements stages-print.h. Loop thread; owns nothing. */
#include "report/stages-print.h"

#include <inttypes.h>

#include "io/io.h"
#include "wire.h"

enum { BATCH_STAMPS = 4 };

static const char *const operations[] = {
        [KIO_READ] = "read", [KIO_WRITE] = "write", [KIO_SYNC] = "sync",
        [KIO_COPY] = "copy", [KIO_CALL] = "call",
};

static void print_event(const struct stages_event *e, FILE *out)
{
        unsigned n = e->kind == STAGES_BATCH ? BATCH_STAMPS : STAGES_STAMPS;

        if (e->kind == STAGES_BATCH)
                fprintf(out, "{\"batch\": \"%s\", \"keys\": %" PRIu32, wire_op_name(e->op),
                        e->keys);
        else
                fprintf(out,
                        "{\"operation\": \"%s\", \"bytes\": %" PRIu64 ", \"chunks\": %" PRIu64 "%s",
                        operations[e->op], e->bytes, e->chunks,
                        e->background ? ", \"background\": true" : "");
        for (unsigned i = 0; i < n; i++)
                fprintf(out, "%s%" PRIu64, i == 0 ? ", \"at_ns\": [" : ", ", e->at_ns[i]);
        fputs("]}", out);
}

void stages_print(const struct stages *s, FILE *out)
{
        const struct stages_event *e;

        fprintf(out, "{\"on\": %s, \"events\": [", s->on ? "true" : "false");
        for (uint64_t i = 0; (e = stages_event(s, i)); i++) {
                fputs(i == 0 ? "\n" : ",\n", out);
                print_event(e, out);
        }
        fputs("]}\n", out);
}
