/* SPDX-License-Identifier: Apache-2.0 */
/* The whole JSON of /status in words, for the end of the page at "/": a member that this file does
 * not know is shown under its own name, and what a number counts follows from that name. Its length
 * is bounded; /status itself has everything. Loop thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdio.h>

void details_print(FILE *out, const cJSON *status);
