/* SPDX-License-Identifier: Apache-2.0 */
/* Code shared by the programs with which pytest uses the library: they read lines on stdin, and
 * answer each on stdout. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <kvcache.h>

enum { KEYS_MAX = 8192 };

extern struct kvcache *kv;
extern uint32_t ns;
extern struct kvcache_key keys[KEYS_MAX];

/* Reads the next words of strtok()'s line, at most `most`, as hexadecimal keys into `keys`. Returns
 * their number. */
size_t take_keys(size_t most);
/* Prints "error -ERRNO TEXT". */
void say_error(int r);
/* Implements CLIENT SOCKET NAMESPACE [FLAGS]: connects, prints "ready", and passes each line to
 * answer(). Returns the exit status. */
int answer_commands(int argc, char **argv, const char *client_name, void (*answer)(char *line));
