/* SPDX-License-Identifier: Apache-2.0 */
/* Words that completion asks the tool for, because they are not in its tables: `TOOL --complete
 * namespaces` prints the names of namespaces, one a line. Nothing is printed for what cannot be
 * known, and nothing about the failure: the user is typing. */
#pragma once

#include "options.h"

/* Prints a word unless a shell could take it for something else than text, or divide it: the names
 * come from other users. */
void words_print(const char *word);

/* Prints the words of a kind that the daemon knows: "namespaces" or "volumes". Returns false for
 * another kind. */
bool words_of_daemon(struct ctl *ctl, const char *kind);
