/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the history as plots, in a <section> of the page at "/". Loop thread; stateless, cannot
 * fail. */
#pragma once

#include <stdint.h>
#include <stdio.h>

struct history;

void plots_print(FILE *out, const struct history *h, uint64_t now_ns);
