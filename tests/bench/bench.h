/* SPDX-License-Identifier: Apache-2.0 */
/* Code shared by the modes of kvcache-bench: options, steps, and the contents of chunks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvcache-admin.h"

enum { BENCH_FILES_MAX = 16 };

struct bench_options {
        const char *socket_path, *echo_path, *namespace_name;
        const char *files[BENCH_FILES_MAX];
        unsigned n_files;
        uint64_t size;          /* size of a chunk, or of a piece to copy */
        uint64_t batch;         /* keys of a request */
        uint64_t outstanding;   /* maximum number of keys in flight */
        uint64_t first, count;  /* numbers of the chunks */
        uint64_t sample;        /* number of chunks used, spread over all; 0: all */
        uint64_t chain;         /* number of chunks that are got in sequence */
        uint64_t seed;          /* determines the order of gets */
        enum kvcache_tier tier; /* tier in which chunks must be found */
        bool plain_keys;        /* use the keys of many-entries */
        uint64_t region;        /* bytes to register; 0: none */
        uint64_t working_set, source;
        uint64_t connections;
        uint64_t daemon_pid, echo_pid;
        bool populate, no_lookup, huge_pages;
        bool stream; /* keep --outstanding operations at the device */
        bool posix;  /* use blocking calls instead of a ring */
        uint64_t pairs;
        uint64_t slice_ms;
        double seconds; /* length of a slice; 0: as long as `bytes` takes */
        uint64_t bytes; /* bytes per slice; 0: as many as `seconds` allows */
        enum kvcache_ack ack;
        bool steps;
};

/* A step of a run: its name, and a limit of seconds or bytes. */
struct bench_step {
        char word[16];
        double seconds;
        uint64_t bytes;
};

/* Gets the next step: without --steps "run" once, with it the next line of standard input: "WORD
 * [SECONDS [BYTES]]". Returns false after the last. */
bool bench_next(const struct bench_options *o, struct bench_step *ret);
/* Flushes a step's line of JSON, so that it reaches the reader at once. */
void bench_answer(void);

uint64_t bench_now_ns(void);
/* Returns the processor time of this process. */
uint64_t bench_cpu_ns(void);
/* Prints one line to standard error. Returns 1, as the result of main(). */
int bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Connects and opens the namespace, or attaches to it if `attach`. Returns 0, or nonzero after an
 * error was printed. */
int bench_open(const struct bench_options *o, bool attach, struct kvcache **ret,
               uint32_t *ret_namespace);

/* --- contents: the chunk of every number differs from that of every other, and is checked as a
 * whole --- Writing a chunk is stamping 32 bytes of a place that was filled once: making contents
 * costs no bandwidth while something is measured. */
enum { CONTENT_MIN = 64 };

struct kvcache_key content_key(uint64_t number);
/* Returns the key of a number, in either scheme. */
struct kvcache_key bench_key(const struct bench_options *o, uint64_t number);
/* Returns the number of the i-th of n chunks that represent all --count of them: one from each
 * part, so that none is repeated. Every process computes the same numbers, so that chunks that one
 * has brought into memory are those that another gets. */
uint64_t bench_sample(const struct bench_options *o, uint64_t i, uint64_t n);
void content_fill(void *place, uint64_t size, uint64_t pattern);
void content_stamp(void *place, uint64_t size, uint64_t number, uint64_t pattern);
bool content_check(const void *data, uint64_t length, uint64_t size, uint64_t number);

/* --- modes: each returns the exit status --- */
int mode_put(const struct bench_options *o);
int mode_get(const struct bench_options *o);
int mode_report(const struct bench_options *o);
int mode_rtt(const struct bench_options *o);
int mode_memcpy(const struct bench_options *o);
int mode_crc(const struct bench_options *o);
int mode_match(const struct bench_options *o);
int mode_touch(const struct bench_options *o);
int mode_idle(const struct bench_options *o);
int mode_bare_get(const struct bench_options *o);
int mode_bare_put(const struct bench_options *o);
int mode_cached(const struct bench_options *o);
int mode_spin(const struct bench_options *o);
