/* SPDX-License-Identifier: Apache-2.0 */
/* Code shared by the campaigns against the store: a store in its own folder, an oracle that knows
 * which answers are possible, and the verdict. One store at a time, driven by one thread, which is
 * the store's loop.
 *
 * Keys are numbers. Each belongs to one namespace and is put in versions, each with its own length
 * and bytes, so that the bytes of a get reveal the put they come from, and a torn chunk matches no
 * put. Namespaces belong to several tenants, and each sector contains a mark of its tenant: no
 * read, whether a hit, a miss or not verified yet, may bring a sector of one tenant to memory of
 * another (R1). */
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
        CAMPAIGN_ROOM = 64 * 1024, /* size of a buffer */
        CAMPAIGN_HANG_CPU_S = 60,
        CAMPAIGN_HANG_MS = 600000,
};

/* --- verdict --- */

enum verdict { VERDICT_WRONG, VERDICT_LOST, VERDICT_HUNG };

/* Sets the name and options of the campaign, once; `*seed` is the seed of the current run. */
void campaign_begin(const char *name, const uint64_t *seed);
void campaign_count(uint64_t runs); /* counts completed runs */
/* Reports a failure with the seed that reproduces it, prints the last line, and exits with status
 * 1. */
_Noreturn void campaign_fail(enum verdict verdict, const char *fmt, ...)
        __attribute__((format(printf, 2, 3)));
uint64_t campaign_seed(void); /* seed of the current run */
int campaign_end(void);       /* prints the last line; returns the exit status */
void campaign_note(const char *fmt, ...)
        __attribute__((format(printf, 1, 2))); /* prints a line before the last */

/* --- the store --- */

struct item {
        uint32_t version; /* last submitted version; 0: never put */
        uint32_t purged;  /* all versions up to this one are purged */
        uint32_t shut;    /* all versions up to this one are covered by a purge, answered or
                             pending */
        uint32_t lost;    /* recovery has found no version up to this one, so no later recovery
                             may */
        uint32_t stable;  /* this version was answered `durable`, or came back from the disk; 0:
                             none */
        uint32_t written; /* this version was answered `written` */
        uint32_t must;    /* this version must be found after the crash; 0: none */
        uint32_t dropped; /* no version up to this one may be found: its drop was settled, and the
                             power has not failed since */
        uint32_t failed;  /* this version was answered with an error, and the power has not failed
                             since */
        unsigned must_on; /* volume of the version that must be found */
};

struct world_name {
        bool asked, answered;
        uint32_t id;  /* 0: not seen yet */
        bool removed; /* removed permanently, and not requested since */
};

/* Changes that a volume may not know about: see apart.c. */
struct world_known {
        uint32_t purged[CAMPAIGN_KEYS], dropped[CAMPAIGN_KEYS];
        struct world_name names[CAMPAIGN_NAMESPACES];
        unsigned claimed; /* volumes that may report that this one has missed changes */
};

struct world {
        char dir[256];
        /* Directories of the store's volumes, one of them `dir`. With several, a chunk on an
         * offline volume is a miss, and an older version of a key may return with the volume. */
        char dirs[CAMPAIGN_VOLUMES][280];
        unsigned volumes;
        unsigned used;         /* volumes in the configuration, as bits */
        bool part_ways, apart; /* volumes may be used separately; are used separately from now on */
        struct world_known known[CAMPAIGN_VOLUMES];
        const struct kio_backend *backend;
        uint64_t limit, random;
        uint64_t segment_bytes; /* preferred size of a data file */
        uint64_t entries;       /* limit of the index */
        const char *policy;     /* eviction policy */
        uint32_t max_length;    /* length of the longest chunk */
        uint32_t error_budget;  /* budget of each volume; 0: the store's default */
        bool long_fingerprints;
        bool on_disk; /* files on a real disk, if there is a suitable place */
        bool direct;
        bool prewrite, lockstep; /* lockstep: on the simulator, operations end only by
                                    world_step() */

        struct kio *io;
        struct store *s;
        struct item items[CAMPAIGN_KEYS];
        struct world_name namespaces[CAMPAIGN_NAMESPACES];
        bool in_doubt; /* data that is read may be in the page cache only */
        unsigned puts_busy, others_busy;
        uint64_t removals; /* removals answered with 0 */
        uint64_t hits, misses;
};
extern struct world world;

uint64_t draw(uint64_t n);
bool chance(uint64_t one_in);

/* Creates a folder in memory, which is removed at the end of the program; world_init() does so if
 * necessary. */
void world_make_folder(void);
void world_init(const struct kio_backend *backend);
void world_remove_folder(void);
/* Returns the fingerprint of the namespace with this name. */
const char *world_fingerprint(const char *name);
/* Sets the number of volumes, all of them in use; world_init() sets one. */
void world_set_volumes(unsigned n);
/* Selects the volumes in use, as bits, for the next world_open(), whose volume i is
 * world_volume_at(i). */
void world_use(unsigned volumes);
unsigned world_used(void); /* number of volumes in use */
unsigned world_volume_at(unsigned number);
/* Inform the oracle that the store has been opened with these volumes, or is about to end. The
 * functions below call both. */
void world_begin_life(void);
void world_end_life(void);
/* Ends a life whose start was cut off: any of its volumes may have learned what another one knew,
 * or not. */
void world_end_start(void);
/* Notes that the volumes which are up know whether the namespace exists. One that goes offline
 * after that, and misses its removal, may list it in a later life. */
void world_note_name(unsigned n);
void world_wipe(void); /* removes all files, and all knowledge of the oracle */
/* Simulates the disk of the store's first directory, with random numbers of the world's seed.
 * Without threads also the clock, so that a seed has one history. */
void world_begin_simulation(void);
/* Opens the store. Returns 0, or -errno with a message. */
int world_open(char error[static 512]);
void world_close(void); /* stops, waits, and closes in an orderly way */
/* Forgets unanswered requests, which will never be answered. */
void world_drop_requests(void);
/* Ends the process of the store without further writes; the disk keeps what it has. */
void world_cut_off(void);
/* Cuts the store off by a kill, or by a power loss, which may undo drops. */
void world_die(bool by_kill);

/* Iterates until only operations at the simulated device are pending. */
void world_iterate(void);
/* Iterates until nothing is pending; simulated operations are completed. */
void world_settle(void);
/* Waits until at most `pending` requests are pending. */
void world_wait_for(uint64_t pending);
/* Completes one simulated operation, and starts the operations that follow from it. Returns false
 * if none is at the device. */
bool world_step(void);

unsigned item_namespace(uint32_t k);
uint32_t item_length(uint32_t k, uint32_t version);
void item_payload(uint32_t k, uint32_t version, void *buf);

/* Requests a namespace; the answer is recorded when it arrives. */
void world_open_namespace(unsigned n);
int world_put(uint32_t k, bool durable); /* returns store_put()'s result, or STORE_FULL while all
                                            slots are taken */
/* Puts one key, or a few with adjacent numbers below `keys`; each is durable with probability 1 /
 * `durable_in`. */
void world_put_some(uint32_t k, uint32_t keys, uint32_t durable_in);
int world_drop(uint32_t k);
/* Drops a key whether or not the store has it, as the daemon does if memory has the chunk. */
int world_forget_key(uint32_t k);
/* Settles the drops so far: once that is answered, their versions must not be found. Returns false
 * if such a request is pending. */
bool world_settle_drops(void);
/* Permits all versions again: a power loss may undo drops, and what failed puts have undone. */
void world_release_drops(void);
bool world_purge(int n); /* -1: everything. Returns false if a purge is pending */
bool world_sync(void);
/* Removes a namespace without purging it first. Returns false if a removal is pending, or there is
 * no such namespace. */
bool world_remove(unsigned n);
/* Suspends or resumes a volume. Returns false if such a call is pending. The result is ignored. */
bool world_device(unsigned volume, bool resume);
/* Returns the version that the store has recorded under the key, by length and CRC; 0: none. The
 * second function also returns its volume. */
uint32_t world_version(uint32_t k);
uint32_t world_version_on(uint32_t k, unsigned *ret_volume);
/* Gets a key and checks every byte. Returns the version; 0: a miss. `*ret_error` (may be NULL) is
 * the error of store_get(), or of the request. */
uint32_t world_get(uint32_t k, int *ret_error);
/* Gets two keys so that both reads are at the device before either completes. */
void world_get_pair(uint32_t a, uint32_t b, uint32_t *ret_a, uint32_t *ret_b);
/* Gets all keys, as many at once as possible, and reports each result. */
void world_get_all(void (*got)(uint32_t k, uint32_t version));

/* Records which stable versions, neither evicted nor dropped since, must be found when the store is
 * opened again. */
void world_note_must(bool written_too);
void world_release_must(void);
/* Reads everything, and fails if a byte is wrong, a chunk is lost, or a purged one is found. */
void world_verify(void);
/* Accepts any loss after damage was done: chunks that are found are still checked. */
void world_forgive(void);

/* --- the campaigns: each performs `count` runs from a seed --- */

int campaign_powerloss(uint64_t count, uint64_t *seed);
int campaign_crashpoint(uint64_t count, uint64_t *seed);
int campaign_misdirect(uint64_t count, uint64_t *seed);
int campaign_bitflip(uint64_t count, uint64_t *seed);
int campaign_succession(uint64_t count, uint64_t *seed);
int campaign_succession_disk(uint64_t count, uint64_t *seed);
int campaign_reconfigure(uint64_t count, uint64_t *seed);
int campaign_nth_failure(uint64_t count, uint64_t *seed);
