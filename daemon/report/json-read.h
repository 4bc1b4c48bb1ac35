/* SPDX-License-Identifier: Apache-2.0 */
/* Reads members of JSON objects, and tolerates members that are missing or of the wrong type.
 * Pure. */
#pragma once

#include <cjson/cJSON.h>

/* The parameter `o` of these functions may be NULL or not an object. */

/* Returns a member, or NULL if there is none. */
const cJSON *json_member(const cJSON *o, const char *name);
/* Returns an array, or NULL if the member is missing or not an array. cJSON treats NULL as an empty
 * array. */
const cJSON *json_array(const cJSON *o, const char *name);
/* Returns a number, or the "used" member of an object such as {"used": 1, "limit": 2}; NAN if there
 * is none. */
double json_number(const cJSON *o, const char *name);
/* Returns the "limit" member of an object such as {"used": 1, "limit": 2}, or NAN if there is none.
 */
double json_limit(const cJSON *o, const char *name);
/* Returns a string, or an empty one. */
const char *json_text(const cJSON *o, const char *name);
/* Returns the quotient of two numbers, or NAN if the divisor is missing or not positive. */
double json_ratio(const cJSON *o, const char *of, const char *all);
