/* SPDX-License-Identifier: Apache-2.0 */
/* Prints an explanation: a table for people, or JSON. */
#pragma once

#include "explain.h"
#include "simulate-arguments.h"

/* Print the explanation as text or as JSON. Return an exit status. */
int explain_report_text(const struct simulate_arguments *a, const struct simulation *s,
                        uint32_t block, const struct explanation *e);
int explain_report_json(const struct simulate_arguments *a, const struct simulation *s,
                        uint32_t block, const struct explanation *e);
