/* SPDX-License-Identifier: Apache-2.0 */
/* What the modes of kvcache-bench share: options, steps, and the contents of chunks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvcache-admin.h"

struct bench_options {
        const char *socket_path, *echo_path, *namespace_name, *file;
        uint64_t size;          /* of a chunk, or of a piece that is copied */
        uint64_t batch;         /* keys of a request */
        uint64_t outstanding;   /* keys that are on their way, at most */
        uint64_t first, count;  /* numbers of the chunks */
        uint64_t sample;        /* so many of them, spread over all; 0: all */
        uint64_t chain;         /* so many of them are got one after the other */
        uint64_t seed;          /* of the order in which they are got */
        enum kvcache_tier tier; /* where they are to be found */
        bool plain_keys;        /* those of many-entries */
        uint64_t region;        /* bytes to register; 0: none */
        uint64_t working_set, source;
        uint64_t connections;
        uint64_t daemon_pid, echo_pid;
        bool populate, no_lookup, huge_pages;
        uint64_t pairs;
        uint64_t slice_ms;
        double seconds; /* of a slice; 0: as long as `bytes` takes */
        uint64_t bytes; /* of a slice; 0: as many as `seconds` allows */
        enum kvcache_ack ack;
        bool steps;
};

/* One thing to do. */
struct bench_step {
        char word[16];
        double seconds;
        uint64_t bytes;
};

/* The next thing to do: without --steps once "run", with it the next line of standard input: "WORD
 * [SECONDS [BYTES]]". False: there is no more. */
bool bench_next(const struct bench_options *o, struct bench_step *ret);
/* After a step's line of JSON: it reaches the reader at once. */
void bench_answer(void);

uint64_t bench_now_ns(void);
/* Processor time of this process. */
uint64_t bench_cpu_ns(void);
/* One line to standard error; returns 1, for main() to return. */
int bench_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Connects and opens the namespace (attaching to it, if `attach`); 0, or a complaint was made. */
int bench_open(const struct bench_options *o, bool attach, struct kvcache **ret,
               uint32_t *ret_namespace);

/* --- contents: the chunk of every number differs from that of every other, and is checked as a
 * whole --- Writing a chunk is stamping 32 bytes of a place that was filled once: making contents
 * costs no bandwidth while something is measured. */
enum { CONTENT_MIN = 64 };

struct kvcache_key content_key(uint64_t number);
/* The key of a number, by either scheme. */
struct kvcache_key bench_key(const struct bench_options *o, uint64_t number);
/* The number of the i-th of n chunks that stand for all --count of them: one of each stretch, so
 * that none is there twice, and the same in every process, so that what one has got into memory is
 * what another gets. */
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
