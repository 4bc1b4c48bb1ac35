/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and compares fingerprints: texts of "k=v" lines, sorted by k, each ended by a newline.
 * Pure functions. */
#pragma once

#include <stddef.h>

/* Checks that `text` is canonical: "k=v\n" lines with keys of [a-z0-9_.-]+ in strictly ascending
 * order, and values of printable ASCII without newline, at most WIRE_MAX_FINGERPRINT bytes in all.
 * An empty text is canonical. Returns 0 or -EINVAL. */
int wire_fingerprint_check(const char *text, size_t bytes);
/* Describes the first field in which text `a`, of the namespace, and text `b`, of a request,
 * differ, as in "dtype: fp8 in the namespace, bf16 requested"; a missing field is "none". If the
 * texts differ but no field does, because one is not canonical, `ret` is "the text differs"; if
 * they are equal, it is empty. Returns 1, or 0 if the texts are equal. */
int wire_fingerprint_diff(const char *a, size_t a_bytes, const char *b, size_t b_bytes, char *ret,
                          size_t ret_bytes);
