/* SPDX-License-Identifier: Apache-2.0 */
/* Admission decides which writes to the disk are made under a budget of bytes per day, because
 * flash wears out. The budget goes to the chunks most likely to pay off: those requested twice.
 *
 * The budget accrues over time, up to an hour's worth, and each admitted write is charged. A chunk
 * seen for the first time is admitted with a probability that a controller adjusts so that the
 * budget is just spent. All first chunks of one use, mostly one request, share one random number,
 * since a prefix is useful only up to its first gap. A chunk seen again is always admitted, until
 * the budget is slightly overdrawn; then no write is.
 *
 * The caller supplies the time and the number of the use, so that equal calls have equal answers.
 * Runs on the thread of its owner and accesses no file. Only admission_new() and
 * admission_set_budget() can fail, for lack of memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ADMISSION_DAY_NS UINT64_C(86400000000000)

struct admission;

/* Creates the module without a budget: every write is admitted and no key is remembered.
 * `remembered`: number of keys to remember once there is a budget, 16 bytes each. `seed`: of the
 * pseudo-random numbers. Returns 0 or -ENOMEM. */
int admission_new(struct admission **ret, uint64_t remembered, uint64_t seed, uint64_t now_ns);
struct admission *admission_free(struct admission *a);

/* Sets the budget in bytes per day. 0 removes it and frees the remembered keys. A change keeps
 * them, and the accrued bytes as far as the new budget allows. Returns 0, or -ENOMEM with the old
 * budget unchanged. */
int admission_set_budget(struct admission *a, uint64_t bytes, uint64_t now_ns);

enum admission_answer {
        ADMISSION_ADMITTED,
        ADMISSION_REFUSED, /* refused by chance, as the key was seen for the first time */
        ADMISSION_DRY,     /* refused because the budget is used up */
};

bool admission_has_budget(const struct admission *a);

struct admission_write {
        uint64_t id;  /* identifies the key, from evict_id() */
        uint32_t use; /* number of a use, see evict.h */
        bool again;   /* the caller knows that the key was seen before; otherwise it is looked up */
        uint64_t bytes;
};
/* Decides about a write and charges it if admitted. A time before that of an earlier call counts as
 * that time. */
enum admission_answer admission_ask(struct admission *a, const struct admission_write *w,
                                    uint64_t now_ns);
/* Returns whether the last answer for the key was a refusal, if that is still remembered. */
bool admission_has_refused(const struct admission *a, uint64_t id);

/* Correct the charges to the bytes really written, for a caller that knows them. admission_settle()
 * adds up the charges of writes that have ended; admission_count_written() takes the total written
 * since startup, refunds those charges and charges the written bytes instead. This includes tables
 * and repeated writes, and excludes failed ones. */
void admission_settle(struct admission *a, uint64_t charged);
void admission_count_written(struct admission *a, uint64_t written, uint64_t now_ns);

struct admission_stats {
        uint64_t budget;      /* bytes per day; 0: none */
        int64_t available;    /* accrued and unused bytes; negative if overdrawn */
        uint64_t written_day; /* bytes written in the last 24 hours (up to a quarter of an hour
                                 more) or since startup, from admission_count_written() */
        uint64_t seconds_day; /* seconds that written_day covers */
        double probability;   /* probability with which the first request of a key is admitted */
        /* Writes by answer. first: the key was seen for the first time; again: it was seen before;
         * dry: the budget was used up. */
        uint64_t admitted_first, admitted_again, refused_first, refused_dry;
        uint64_t charged_bytes, refused_bytes;
        uint64_t remembered, remembered_max, remembered_bytes;
};
void admission_get_stats(const struct admission *a, struct admission_stats *ret);
