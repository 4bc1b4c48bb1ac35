/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fingerprint.h for the client and the daemon. Pure: no thread, nothing owned. The only
 * error is -EINVAL, for a text that is not canonical. */
#include "fingerprint.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "text.h"
#include "wire.h"

struct text {
        const char *at;
        size_t bytes;
};

struct field {
        struct text key, value;
};

/* Takes one "k=v\n" from the front of `*rest`; the last line may lack its newline. Returns false at
 * the end, and at a line without '='. */
static bool field_take(struct text *rest, struct field *ret)
{
        const char *end, *equals;
        size_t line;

        if (rest->bytes == 0)
                return false;
        end = memchr(rest->at, '\n', rest->bytes);
        line = end ? (size_t)(end - rest->at) : rest->bytes;
        equals = memchr(rest->at, '=', line);
        if (!equals)
                return false;

        ret->key = (struct text){ rest->at, (size_t)(equals - rest->at) };
        ret->value = (struct text){ equals + 1, line - ret->key.bytes - 1 };
        line += end != NULL;
        rest->at += line;
        rest->bytes -= line;
        return true;
}

static int text_compare(const struct text *a, const struct text *b)
{
        size_t common = MIN(a->bytes, b->bytes);
        int r = common > 0 ? memcmp(a->at, b->at, common) : 0;

        if (r != 0)
                return r;
        return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static bool key_characters(const struct text *k)
{
        for (size_t i = 0; i < k->bytes; i++) {
                char c = k->at[i];

                if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c != '.' &&
                    c != '-')
                        return false;
        }
        return k->bytes > 0;
}

int wire_fingerprint_check(const char *text, size_t bytes)
{
        struct text rest = { text, bytes };
        struct field f, last = { 0 };

        if (bytes > WIRE_MAX_FINGERPRINT)
                return -EINVAL;
        if (bytes > 0 && text[bytes - 1] != '\n')
                return -EINVAL;
        while (field_take(&rest, &f)) {
                if (!key_characters(&f.key) || !text_is_ascii(f.value.at, f.value.bytes))
                        return -EINVAL;
                if (last.key.at && text_compare(&last.key, &f.key) >= 0)
                        return -EINVAL;
                last = f;
        }
        return rest.bytes == 0 ? 0 : -EINVAL;
}

static void describe(const struct text *key, const struct text *a, const struct text *b, char *ret,
                     size_t ret_bytes)
{
        static const struct text none = { "none", 4 };

        a = a ?: &none;
        b = b ?: &none;
        snprintf(ret, ret_bytes, "%.*s: %.*s in the namespace, %.*s requested", (int)key->bytes,
                 key->at, (int)a->bytes, a->at, (int)b->bytes, b->at);
}

int wire_fingerprint_diff(const char *a, size_t a_bytes, const char *b, size_t b_bytes, char *ret,
                          size_t ret_bytes)
{
        struct text rest_a = { a, a_bytes }, rest_b = { b, b_bytes };
        struct field fa = { 0 }, fb = { 0 };

        if (ret_bytes > 0)
                ret[0] = '\0';
        if (text_compare(&rest_a, &rest_b) == 0)
                return false;

        for (;;) {
                bool in_a = field_take(&rest_a, &fa), in_b = field_take(&rest_b, &fb);
                int order;

                if (!in_a && !in_b)
                        break;
                order = !in_a ? 1 : !in_b ? -1 : text_compare(&fa.key, &fb.key);
                if (order < 0)
                        describe(&fa.key, &fa.value, NULL, ret, ret_bytes);
                else if (order > 0)
                        describe(&fb.key, NULL, &fb.value, ret, ret_bytes);
                else if (text_compare(&fa.value, &fb.value) != 0)
                        describe(&fa.key, &fa.value, &fb.value, ret, ret_bytes);
                else
                        continue;
                return true;
        }
        /* All fields are equal but the bytes differ, so one of the texts is not canonical. */
        snprintf(ret, ret_bytes, "the text differs");
        return true;
}
