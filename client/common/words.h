/* SPDX-License-Identifier: Apache-2.0 */
/* Prints words that shell completion requests from the tool, because they are not in the tool's
 * tables: `TOOL --complete namespaces` prints the names of namespaces, one a line. If the daemon
 * cannot be asked, prints neither words nor a message, because the user is typing. */
#pragma once

#include "options.h"

/* Prints a word, unless it is empty, begins with '-' or has characters that a shell might
 * interpret: names of namespaces come from other users. */
void words_print(const char *word);

/* Prints the words of a kind that the daemon knows: "namespaces" or "volumes". Returns false for
 * another kind. */
bool words_of_daemon(struct ctl *ctl, const char *kind);
