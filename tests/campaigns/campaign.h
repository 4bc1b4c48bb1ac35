/* SPDX-License-Identifier: Apache-2.0 */
/* What the campaigns against the store share: a store in a folder of its own, an oracle that knows
 * what may come back, and the verdict. One store at a time, driven by one thread, which is the
 * store's loop.
 *
 * Keys are numbers; each belongs to one namespace and is put in versions, each with a length and
 * bytes of its own, so that whatever a get brings says which put it comes from, and a torn one is
 * no put's. Namespaces are of several tenants, and each sector says whose: nothing that is read, be
 * it a hit, a miss or not even checked yet, may bring a sector of a tenant to memory of another's
 * (R1). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "io/backend.h"
#include "io/io.h"
#include "store/store.h"

enum {
        CAMPAIGN_KEYS = 1024,
        CAMPAIGN_NAMESPACES = 8,
        CAMPAIGN_TENANTS = 3,
        CAMPAIGN_SLOTS = 24,
        CAMPAIGN_VOLUMES = 3,
        CAMPAIGN_ROOM = 64 * 1024, /* of a buffer */
        CAMPAIGN_HANG_CPU_S = 60,
        CAMPAIGN_HANG_MS = 600000,
};

/* --- verdict --- */

enum verdict { VERDICT_WRONG, VERDICT_LOST, VERDICT_HUNG };

/* What the campaign runs with, set once; `seed` of the run that is on now, in *seed. */
void campaign_begin(const char *name, const uint64_t *seed);
void campaign_count(uint64_t runs); /* so many more are through */
/* Says what, with the seed that shows it again, prints the last line, and ends the program with 1.
 */
_Noreturn void campaign_fail(enum verdict verdict, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
uint64_t campaign_seed(void); /* of the run that is on now */
int campaign_end(void);       /* prints the last line; the exit status */
void campaign_note(const char *fmt, ...)
        __attribute__((format(printf, 1, 2))); /* a line before the last */

/* --- the store --- */

struct item {
        uint32_t version; /* the last one submitted; 0: never put */
        uint32_t purged;  /* up to here all are dead for good */
        uint32_t shut;    /* up to here all are under a purge that is not answered yet, or is */
        uint32_t lost;    /* up to here recovery has found none of them, so no later one may */
        uint32_t stable;  /* this one was answered `durable`, or came back from the disk; 0: none */
        uint32_t written; /* this one was answered `written` */
        uint32_t must;    /* this one has to be there after the crash; 0: none has */
        uint32_t failed;  /* this one was answered with an error, and its table page was never begun
                           */
        unsigned must_on; /* the volume that it lies on */
};

struct world_name {
        bool asked, answered;
        uint32_t id;  /* 0: not seen yet */
        bool removed; /* for good, and not asked for since */
};

/* Of what a volume cannot say that it does not know of it: see apart.c. */
struct world_known {
        uint32_t purged[CAMPAIGN_KEYS];
        struct world_name names[CAMPAIGN_NAMESPACES];
        unsigned claimed; /* by these volumes it may be said to have missed something */
};

struct world {
        char dir[256];
        /* Of the store, one of them `dir`. With several, what lies on one that is offline is a
         * miss, and an older version of a key may come back with it. */
        char dirs[CAMPAIGN_VOLUMES][280];
        unsigned volumes;
        unsigned used;         /* those in the configuration, by bit */
        bool part_ways, apart; /* not always all of them are to be used; are used from now on */
        struct world_known known[CAMPAIGN_VOLUMES];
        const struct kio_backend *backend;
        uint64_t limit, random;
        uint32_t max_length;   /* the longest chunk's */
        uint32_t error_budget; /* each volume's; 0: the store's default */
        bool long_fingerprints;
        bool on_disk; /* files where they are not in memory, if there is such a place */
        bool direct;
        bool prewrite, lockstep; /* lockstep: on the sim, no operation ends but by world_step() */

        struct kio *io;
        struct store *s;
        struct item items[CAMPAIGN_KEYS];
        struct world_name namespaces[CAMPAIGN_NAMESPACES];
        bool in_doubt; /* what is read may be in the page cache alone */
        unsigned puts_busy, others_busy;
        uint64_t removals; /* answered with 0 */
        uint64_t hits, misses;
};
extern struct world world;

uint64_t draw(uint64_t n);
bool chance(uint64_t one_in);

/* A folder in memory, removed at the end of the program; world_init() makes it if need be. */
void world_make_folder(void);
void world_init(const struct kio_backend *backend);
void world_remove_folder(void);
/* Of the namespace of that name. */
const char *world_fingerprint(const char *name);
/* How many volumes the store has from now on, all of them in use; world_init() makes it one. */
void world_set_volumes(unsigned n);
/* These, by bit, are in use: as of the next world_open(), whose volume i is world_volume_at(i). */
void world_use(unsigned volumes);
unsigned world_used(void); /* how many */
unsigned world_volume_at(unsigned number);
/* The store is open, with all of them, or is about to end: part of what follows. */
void world_begin_life(void);
void world_end_life(void);
void world_wipe(void); /* all files go, and all that the oracle knows */
/* 0; -errno with a text. */
int world_open(char error[static 512]);
void world_close(void); /* in peace: stops, waits, closes */
/* Forgets what was asked and is not answered, and never will be. */
void world_drop_requests(void);

/* Turns until nothing goes on but what stands at the simulated device. */
void world_iterate(void);
/* The same until nothing goes on at all; simulated operations are completed. */
void world_settle(void);
/* Waits for something to end as long as more requests than this are under way. */
void world_wait_for(uint64_t pending);
/* One simulated operation ends, and what follows from it begins. False: none stands at the device.
 */
bool world_step(void);

unsigned item_namespace(uint32_t k);
uint32_t item_length(uint32_t k, uint32_t version);
void item_payload(uint32_t k, uint32_t version, void *buf);

/* Asks for it; the answer is noted when it comes. */
void world_open_namespace(unsigned n);
int world_put(uint32_t k,
              bool durable); /* store_put()'s answer, or STORE_FULL while all slots are taken */
/* One, or a few of neighbouring numbers below `keys` at once; each durable by one chance in so
 * many. */
void world_put_some(uint32_t k, uint32_t keys, uint32_t durable_in);
int world_drop(uint32_t k);
bool world_purge(int n); /* -1: everything. False: one is under way */
bool world_sync(void);
/* Removes a namespace, which is not purged for it. False: one is under way, or it is not there. */
bool world_remove(unsigned n);
/* Suspends or resumes a volume; false: one is under way. The answer counts for nothing. */
bool world_device(unsigned volume, bool resume);
/* The version whose record the store holds under the key, by length and CRC; 0: none. The other
 * says on which volume it lies. */
uint32_t world_version(uint32_t k);
uint32_t world_version_on(uint32_t k, unsigned *ret_volume);
/* Reads it and checks every byte. The version; 0: a miss. *ret_error (may be NULL): store_get()'s,
 * or the request's. */
uint32_t world_get(uint32_t k, int *ret_error);
/* Two at once, and so that both stand at the device before either is read. */
void world_get_pair(uint32_t a, uint32_t b, uint32_t *ret_a, uint32_t *ret_b);
/* Reads all keys at once as far as that goes, and tells what came of each. */
void world_get_all(void (*got)(uint32_t k, uint32_t version));

/* What is stable, and not evicted or dropped since, must be there when the store is opened again.
 */
void world_note_must(bool written_too);
void world_release_must(void);
/* Reads everything, and fails if a byte is wrong, something is lost, or something purged is back.
 */
void world_verify(void);
/* Damage was done that may cost anything: what is found counts, what is not does not. */
void world_forgive(void);

/* --- the campaigns: count runs from a seed --- */

int campaign_powerloss(uint64_t count, uint64_t *seed);
int campaign_crashpoint(uint64_t count, uint64_t *seed);
int campaign_misdirect(uint64_t count, uint64_t *seed);
int campaign_bitflip(uint64_t count, uint64_t *seed);
int campaign_succession(uint64_t count, uint64_t *seed);
int campaign_succession_disk(uint64_t count, uint64_t *seed);
int campaign_nth_failure(uint64_t count, uint64_t *seed);
