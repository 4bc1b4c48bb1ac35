/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the whole JSON of /status in words, for the end of the page at "/". Members unknown to
 * this file appear under their own name, from which the unit follows. The length is bounded;
 * /status has everything. Loop thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdio.h>

/* Prints `status`, which may have any content. */
void details_print(FILE *out, const cJSON *status);
