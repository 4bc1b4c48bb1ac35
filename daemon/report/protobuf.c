/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the families of metrics.def as delimited io.prometheus.client.MetricFamily messages, in
 * which histograms have native (exponential) buckets in addition to the classic ones.
 *
 * Runs on the loop thread; owns nothing between calls. A message follows its length, so each is
 * built in a buffer of its own and then copied into the enclosing message. The field numbers are
 * those of client_model's metrics.proto.
 *
 * Native buckets: schema 3, 8 buckets per octave, with edges at powers of 2^(1/8) seconds or bytes.
 * A bucket of struct histogram is at most an eighth of an octave wide, and is counted as a whole in
 * the native bucket that contains its middle. So no bucket ever decreases, and a value read from
 * native buckets is at most 16 % off: by half the width of a histogram's bucket and the whole width
 * of a native one.
 *
 * Failures: without memory the page ends with a length and no message, which no reader accepts. */
#include "report/protobuf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"

enum { SCHEMA = 3, STEPS = 1 << SCHEMA };
/* Values up to this threshold count as 0; it is that of Prometheus' own libraries. It must not be
 * 0, or Prometheus takes an empty native histogram for a classic one. */
#define ZERO_THRESHOLD 0x1p-128

enum wire_type { VARINT = 0, FIXED64 = 1, BYTES = 2 };

struct message {
        unsigned char *bytes;
        size_t n, room;
        bool failed;
};

static void put(struct message *m, const void *bytes, size_t n)
{
        if (m->n + n > m->room) {
                size_t room = MAX(2 * m->room, m->n + n + 256);
                unsigned char *more = m->failed ? NULL : realloc(m->bytes, room);

                if (!more) {
                        m->failed = true;
                        return;
                }
                m->bytes = more;
                m->room = room;
        }
        memcpy(m->bytes + m->n, bytes, n);
        m->n += n;
}

static void put_varint(struct message *m, uint64_t value)
{
        unsigned char bytes[10];
        size_t n = 0;

        do {
                bytes[n++] = (unsigned char)(value | 0x80);
                value >>= 7;
        } while (value);
        bytes[n - 1] &= 0x7f;
        put(m, bytes, n);
}

/* Encodes a signed number such that small values of either sign are short. */
static uint64_t zigzag(int64_t value)
{
        return (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0);
}

static void put_tag(struct message *m, unsigned field, enum wire_type type)
{
        put_varint(m, field << 3 | type);
}

static void put_number(struct message *m, unsigned field, uint64_t value)
{
        put_tag(m, field, VARINT);
        put_varint(m, value);
}

static void put_double(struct message *m, unsigned field, double value)
{
        unsigned char bytes[8];
        uint64_t bits;

        memcpy(&bits, &value, sizeof(bits));
        for (unsigned i = 0; i < 8; i++)
                bytes[i] = (unsigned char)(bits >> 8 * i);
        put_tag(m, field, FIXED64);
        put(m, bytes, sizeof(bytes));
}

static void put_bytes(struct message *m, unsigned field, const void *bytes, size_t n)
{
        put_tag(m, field, BYTES);
        put_varint(m, n);
        put(m, bytes, n);
}

/* Appends a part to a message as a field, and empties the part for its next use. */
static void put_message(struct message *m, unsigned field, struct message *part)
{
        m->failed |= part->failed;
        put_bytes(m, field, part->bytes, part->n);
        part->n = 0;
}

struct printer {
        FILE *out;
        /* Messages under construction: a family, a metric of it, and two levels of parts. */
        struct message family, metric, part, inner;
        bool in_family;
        enum metrics_type type;
};

static void end_family(struct printer *p)
{
        struct message length = { 0 };

        if (!p->in_family)
                return;
        put_varint(&length, p->family.n);
        if (p->family.failed || fwrite(length.bytes, 1, length.n, p->out) != length.n ||
            fwrite(p->family.bytes, 1, p->family.n, p->out) != p->family.n)
                p->family.failed = true;
        p->family.n = 0;
        free(length.bytes);
}

static void begin_family(void *userdata, const char *name, const char *help, enum metrics_type type)
{
        static const unsigned types[] = {
                [METRICS_TYPE_COUNTER] = 0, [METRICS_TYPE_GAUGE] = 1, [METRICS_TYPE_HISTOGRAM] = 4
        };
        struct printer *p = userdata;

        end_family(p);
        p->in_family = true;
        p->type = type;
        put_bytes(&p->family, 1, name, strlen(name));
        put_bytes(&p->family, 2, help, strlen(help));
        put_number(&p->family, 3, types[type]);
}

/* Appends the labels of a text such as `a="x",b="y"`. */
static void put_labels(struct printer *p, const char *labels)
{
        while (*labels) {
                const char *equals = strstr(labels, "=\""), *at;

                if (!equals)
                        return;
                put_bytes(&p->part, 1, labels, (size_t)(equals - labels));
                for (at = equals + 2; *at && *at != '"'; at++) {
                        char ch = *at;

                        if (ch == '\\' && at[1])
                                ch = *++at == 'n' ? '\n' : *at;
                        put(&p->inner, &ch, 1);
                }
                put_message(&p->part, 2, &p->inner);
                put_message(&p->metric, 1, &p->part);
                labels = *at ? at + 1 : at;
                labels += *labels == ',';
        }
}

static void print_number(void *userdata, const char *labels, double value)
{
        struct printer *p = userdata;

        put_labels(p, labels);
        put_double(&p->part, 1, value);
        put_message(&p->metric, p->type == METRICS_TYPE_COUNTER ? 3 : 2, &p->part);
        put_message(&p->family, 4, &p->metric);
}

/* Returns the native bucket k, (2^((k - 1) / 8), 2^(k / 8)], that counts bucket b. */
static int native_bucket(unsigned b, bool of_bytes)
{
        static int of[2][HISTOGRAM_BUCKETS]; /* computed at first use; bucket 0 of bytes is 2^0 */
        static bool computed[2];

        for (unsigned i = 1; i < HISTOGRAM_BUCKETS && !computed[of_bytes]; i++) {
                double least = (double)histogram_bucket_edge(i - 1) + 1;
                double most = i == HISTOGRAM_BUCKETS - 1 ? least : (double)histogram_bucket_edge(i);
                double middle = (least + most) / 2;

                middle = of_bytes ? middle + 1 : middle / 1e9;
                of[of_bytes][i] = (int)ceil(log2(middle) * STEPS);
        }
        computed[of_bytes] = true;
        return of[of_bytes][b];
}

/* Appends the buckets as spans of consecutive buckets, with each count as the difference from the
 * previous count. */
static void put_native(struct printer *p, const struct histogram *h, bool of_bytes)
{
        struct message deltas = { 0 };
        int64_t before = 0;
        int end = 0; /* end of the current span: the index after its last bucket */
        uint32_t length = 0;
        int64_t offset = 0;

        for (unsigned b = 0; b < HISTOGRAM_BUCKETS;) {
                uint64_t count = h->buckets[b];
                int k;

                if (count == 0 || (b == 0 && !of_bytes)) {
                        b++;
                        continue;
                }
                k = native_bucket(b, of_bytes);
                for (b++; b < HISTOGRAM_BUCKETS && native_bucket(b, of_bytes) == k; b++)
                        count += h->buckets[b];
                if (length > 0 && k != end) {
                        put_number(&p->inner, 1, zigzag(offset));
                        put_number(&p->inner, 2, length);
                        put_message(&p->part, 12, &p->inner);
                        offset = k - end;
                        length = 0;
                } else if (length == 0) {
                        offset = k;
                }
                length++;
                end = k + 1;
                put_varint(&deltas, zigzag((int64_t)count - before));
                before = (int64_t)count;
        }
        if (length > 0) {
                put_number(&p->inner, 1, zigzag(offset));
                put_number(&p->inner, 2, length);
                put_message(&p->part, 12, &p->inner);
                put_message(&p->part, 13, &deltas);
        }
        p->part.failed |= deltas.failed;
        free(deltas.bytes);
}

static void print_histogram(void *userdata, const char *labels, const struct histogram *h,
                            const struct metrics_buckets *classic)
{
        struct printer *p = userdata;
        bool of_bytes = classic->of_bytes;

        put_labels(p, labels);
        put_number(&p->part, 1, h->count);
        put_double(&p->part, 2, classic->sum);
        for (size_t i = 0; i <= classic->n; i++) {
                bool last = i == classic->n;

                put_number(&p->inner, 1,
                           last ? h->count : histogram_at_most(h, classic->of[i].value - of_bytes));
                put_double(&p->inner, 2,
                           last       ? INFINITY
                           : of_bytes ? (double)classic->of[i].value
                                      : (double)classic->of[i].value / 1e9);
                put_message(&p->part, 3, &p->inner);
        }
        put_number(&p->part, 5, zigzag(SCHEMA));
        put_double(&p->part, 6, ZERO_THRESHOLD);
        put_number(&p->part, 7, of_bytes ? 0 : h->buckets[0]);
        put_native(p, h, of_bytes);
        put_message(&p->metric, 7, &p->part);
        put_message(&p->family, 4, &p->metric);
}

void metrics_print_protobuf(const struct metrics *s, FILE *out)
{
        static const struct metrics_visitor visitor = {
                .family = begin_family,
                .number = print_number,
                .histogram = print_histogram,
        };
        struct printer p = { .out = out };

        metrics_visit(s, &visitor, &p);
        end_family(&p);
        if (p.family.failed)
                fputc(1, out);
        free(p.family.bytes);
        free(p.metric.bytes);
        free(p.part.bytes);
        free(p.inner.bytes);
}
