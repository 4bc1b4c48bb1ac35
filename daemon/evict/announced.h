/* SPDX-License-Identifier: Apache-2.0 */
/* Measures for each source the share of its announced returns of chains that come true. In the
 * daemon, a source is a user.
 *
 * An announcement names the end of a chain and belongs to its source: several sources may announce
 * one item, and none ends the announcements of another. An announced use comes true if any source
 * uses the item within a window around the announced time, and is false if its own source uses the
 * item outside of the window, or no source uses it. A source is believed by the share of its last
 * announcements that came true, and a new source for a few of them at a time only. The owner
 * applies an announcement to a policy only if it is believed, and only announcements that are
 * measured are believed. So a source that announces the same for everything gains nothing, and
 * cannot spoil what a policy learns from others.
 *
 * Memory is allocated at creation. A use costs one probe of a table; nothing depends on the number
 * of announcements. Runs on the thread of its owner. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "evict/evict.h"

enum announced_kind {
        ANNOUNCED_RETURN,    /* the chain is used again in `seconds`; comes true between half and
                              * twice that time, with a tolerance of PROMISE_TOLERATED_S */
        ANNOUNCED_TOOL_CALL, /* the engine stopped for a tool call; comes true if the chain is used
                              * within two minutes */
        ANNOUNCED_TURN_END,  /* a conversation's turn ended; comes true if the chain is not used in
                              * the next 20 s */
        ANNOUNCED_KINDS
};

enum {
        ANNOUNCED_SOURCES = 64, /* sources with a record; a further one takes a silent source's, or
                                   shares the last */
        ANNOUNCED_OPEN = 4096,  /* most announcements whose outcome is not known yet */
        ANNOUNCED_OF_SOURCE = ANNOUNCED_OPEN / 2, /* most announcements of one source whose outcome
                                                   * is not known yet */
        ANNOUNCED_AT_FIRST = 16, /* the same limit for a source of which fewer than this number of
                                  * announcements have ended */
};
/* The least share of a source's announcements that must come true for the source to be believed. */
#define ANNOUNCED_LEAST_BELIEF 0.5F
#define ANNOUNCED_EARLY        (1.0F / 32)

struct announced_stats {
        uint64_t made;       /* announcements made, including those counted below */
        uint64_t unmeasured; /* announcements not recorded because of the limits above or a full
                                bucket; these are not believed */
        uint64_t disbelieved;
        uint64_t came_true, early, late; /* announcements by outcome; late: the item was used after
                                          * the window, or not at all */
        uint64_t open;
};

struct announced;

/* Returns 0 or -ENOMEM. */
int announced_new(struct announced **ret);
struct announced *announced_free(struct announced *a);

/* Records an announcement of `source`. Ends the source's earlier announcement for the item: as late
 * if it announced a return and more than half of that time has passed, otherwise without an
 * outcome. `id` is a nonzero hash of the item's key. Returns the belief in the announcement: the
 * share of such announcements that come true. Returns 0 if the caller should not apply the
 * announcement: it was not recorded, its source is not believed, or another source that is believed
 * expects the item sooner. `seconds` is used for ANNOUNCED_RETURN. */
float announced_make(struct announced *a, uint32_t source, uint64_t id, enum announced_kind kind,
                     uint32_t seconds, uint64_t now_ns);
/* A chain may be announced in parts, its end first. Only the end is measured, and the other parts
 * share its promise. Records that the source is expected to announce the part that ends with
 * `parent`, the id of the item before those announced now, for about the same time. Cheap. A part
 * may be forgotten for that of another chain, and is then measured itself. */
void announced_expect_part(struct announced *a, uint32_t source, uint64_t parent, uint64_t due_ns,
                           const struct evict_promise *promise);
/* Returns whether the part that ends with this item was expected of the source for about this time,
 * and the promise of its chain. The part is then expected no more. */
bool announced_take_part(struct announced *a, uint32_t source, uint64_t id, uint64_t due_ns,
                         struct evict_promise *ret);
/* Ends the source's announcement of a return of the item, because its source no longer expects a
 * use. The outcome is that of an announcement that is replaced. Cheap. */
void announced_cancel(struct announced *a, uint32_t source, uint64_t id, uint64_t now_ns);
bool announced_is_empty(const struct announced *a);
/* Ends the announcements for an item that `source` uses now: its own, and those of other sources
 * that come true by this use. Cheap. */
void announced_use(struct announced *a, uint32_t source, uint64_t id, uint64_t now_ns);
/* Ends announcements whose window has passed: examines a part of the table in each call. */
void announced_expire(struct announced *a, uint64_t now_ns);

/* Returns the seconds in which a return should be expected that this source announces in `seconds`.
 * They are extended by the factor (a geometric mean) by which the source's items were used later
 * than announced, and never shortened. So a source gains nothing by announcing times that are too
 * short but within the window. */
uint32_t announced_seconds(const struct announced *a, uint32_t source, uint32_t seconds);
/* Returns the mean part of the announced time by which the source's items are used too early, from
 * 0 to 1; a return in time, or late, counts as 0. A source without returns has ANNOUNCED_EARLY. */
float announced_early(const struct announced *a, uint32_t source);
/* Returns the present belief in a source, from 0 to 1. */
float announced_belief(const struct announced *a, uint32_t source);
/* Returns whether the source has an open announcement for the item, and the time left until the
 * announced use, negative if the use is overdue. */
bool announced_find(const struct announced *a, uint32_t source, uint64_t id, uint64_t now_ns,
                    int64_t *ret_left_ns);
/* Adds up the statistics of all sources, also of those whose records were reused. */
void announced_get_stats(const struct announced *a, struct announced_stats *ret);
/* Calls each() for every source with a record. */
void announced_each_source(const struct announced *a,
                           void (*each)(void *userdata, uint32_t source, float belief,
                                        const struct announced_stats *stats),
                           void *userdata);
