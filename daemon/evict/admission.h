/* SPDX-License-Identifier: Apache-2.0 */
/* Admission: which writes to the disk are made when they have a budget, in bytes a day, because
 * flash wears out. What is written is what pays: a chunk that has been asked for twice.
 *
 * The budget accrues as time passes, up to an hour's worth, and each write is charged for. A chunk
 * that is seen for the first time is admitted with a probability that a controller steers so that
 * the budget is spent and no more; all first chunks of one use (of one request, mostly) are drawn
 * for together, since a prefix is found up to its first gap. A chunk that is seen again is admitted
 * always, until the budget is overdrawn by a little; from there on nothing is.
 *
 * The caller brings the time and the number of the use: the same questions have the same answers.
 * The thread of the owner. Touches no file; fails only in admission_new() and
 * admission_set_budget(), for want of memory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define ADMISSION_DAY_NS UINT64_C(86400000000000)

struct admission;

/* No budget yet: all is admitted, and nothing remembered. `remembered`: how many keys it remembers
 * to have seen, at 16 bytes each, once there is a budget. `seed`: of what is drawn. 0, -ENOMEM. */
int admission_new(struct admission **ret, uint64_t remembered, uint64_t seed, uint64_t now_ns);
struct admission *admission_free(struct admission *a);

/* Bytes a day; 0: none, and what is remembered is freed. From one budget to another what is
 * remembered stays, and what has accrued as far as the new one allows it. 0; -ENOMEM: the budget is
 * the one that it was. */
int admission_set_budget(struct admission *a, uint64_t bytes, uint64_t now_ns);

enum admission_answer {
        ADMISSION_ADMITTED,
        ADMISSION_REFUSED, /* a first touch, that was not drawn */
        ADMISSION_DRY,     /* the budget is used up */
};

bool admission_has_budget(const struct admission *a);

struct admission_write {
        uint64_t id;  /* of the key, as of evict_id() */
        uint32_t use; /* as of evict.h */
        bool again;   /* it is known to have been seen before; else this is looked up */
        uint64_t bytes;
};
/* Admitted, it is charged. The time may stand still, but what goes backwards is taken for that. */
enum admission_answer admission_ask(struct admission *a, const struct admission_write *w,
                                    uint64_t now_ns);
/* Was the key refused when it was asked for last, as far as that is remembered? */
bool admission_has_refused(const struct admission *a, uint64_t id);

/* From a caller that knows what was really written: all of it since startup, `written`, in which
 * the writes that were settled are. What was charged for those is forgiven, and what was written is
 * charged: tables, what was written twice, and not what has failed. */
void admission_settle(struct admission *a, uint64_t charged);
void admission_count_written(struct admission *a, uint64_t written, uint64_t now_ns);

struct admission_stats {
        uint64_t budget;      /* bytes a day; 0: none */
        int64_t available;    /* bytes that have accrued and are not used; may be negative */
        uint64_t written_day; /* bytes, in the last 24 hours or since startup: by
                                 admission_count_written() */
        uint64_t seconds_day; /* that these are of; 0: less than a second */
        double probability;   /* of a first touch */
        uint64_t admitted_first, admitted_again, refused_first, refused_dry; /* writes */
        uint64_t charged_bytes, refused_bytes;
        uint64_t remembered, remembered_max, remembered_bytes;
};
void admission_get_stats(const struct admission *a, struct admission_stats *ret);
