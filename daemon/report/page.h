/* SPDX-License-Identifier: Apache-2.0 */
/* The page that HTTP serves at "/": the JSON of /status laid out for people. Every name and text in
 * it is escaped; a member that this file does not know is shown under its own name. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* `status`: JSON, or NULL where it could not be had. `said`: what /readyz says, or NULL. */
void http_page(FILE *out, const char *status, bool ready, const char *said);
