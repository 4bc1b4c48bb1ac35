/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that loses power. One or several directories are simulated: their files are real (put them
 * on tmpfs) and can be opened and read as usual; the simulation also records the changes that a
 * power loss may undo. All random choices derive from one seed.
 *
 * There are two ways in. One is the backend for kio_start_with(). The other is the system calls,
 * because a store also creates, writes and syncs files without a ring; the program that links this
 * must wrap them (sim_wraps in meson.build).
 *
 * A completed sync makes stable: the writes to the file that were completed before it began and the
 * file's size then, or the names of the directory. Any other change may be undone: each 512-byte
 * sector of each write, each file's size and each change of a name independently; of several writes
 * to one sector any one may remain, or none. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "io/backend.h"
#include "io/io.h"

enum { SIM_SECTOR = 512 };

/* Returns the next number of splitmix64, also for other code that must be reproducible. */
uint64_t sim_draw(uint64_t *state);

/* Starts a simulation; everything in the directory counts as stable. One at a time, and not while a
 * store in the directory is open. Returns 0 or -errno. */
int sim_start(const char *dir, uint64_t seed);
/* Adds another directory on the same disk, after sim_start(). */
int sim_add_dir(const char *dir);
void sim_stop(void);
/* Makes a store treat tmpfs as a disk, without any simulation. */
void sim_pretend_disk(void);
/* Advances the clock of time() and similar calls, which stands still from sim_start() on. */
void sim_advance_ms(uint64_t ms);
/* Also stops CLOCK_MONOTONIC until sim_stop(), for programs without threads. */
void sim_hold_clock(void);
bool sim_holds_clock(void);

const struct kio_backend *sim_backend(void);
/* Holds operations of these kinds (1u << KIO_WRITE | ...) at the device until they are completed
 * one by one. Others, and with 0 all, are performed at once. */
void sim_hold(unsigned ops);
unsigned sim_held(void);
unsigned sim_held_requests(void); /* requests held: more than operations if adjacent ones are
                                     merged */
/* Waits until every worker waits at its queue with all of its requests handed in. A worker takes
 * requests submitted before its next wake-up together. */
void sim_wait_idle(void);
int sim_fd(void); /* readable when an operation is being held; the caller may read it or not */
/* Completes a held operation, chosen at random. Returns false if there is none. */
bool sim_complete_one(void);

/* Fails the power: now, or after this many more changes of files or names (0: never). From then on
 * nothing reaches the disk, although every operation reports success, so that a store can be closed
 * in an orderly way. */
void sim_die(void);
void sim_die_after(uint64_t changes);
bool sim_is_dead(void);
/* Observes each change before and after it. `operation`: open (a file is created), write, sync,
 * rename, truncate, allocate or unlink; `file`: a name in the directory, or "directory". Returns
 * true to fail the power at that point. May be called on any thread, and must not call the
 * simulation. NULL: no observer. */
typedef bool sim_watch(const char *operation, const char *file, bool after);
void sim_set_watch(sim_watch *watch);

/* The way in which an operation that changes a file or a name fails. */
enum sim_fault {
        SIM_FAULT_NONE,
        SIM_FAULT_NOTHING, /* nothing has happened */
        SIM_FAULT_TORN,    /* some sectors of a write are in the file; for other operations,
                              nothing has happened */
        SIM_FAULT_DONE,    /* the operation was done, but reports failure */
        SIM_FAULT_END,     /* for real files: the process ends here; not for sim_faults */
};
/* Called before each such operation, named as for sim_watch, in the directory of this number; may
 * make it fail with `*ret_error`. Writes that a failed sync was to cover are covered by no later
 * sync: the kernel has dropped them. Called like a sim_watch. NULL: nothing fails. */
typedef enum sim_fault sim_faults(const char *operation, unsigned dir, const char *file,
                                  int *ret_error);
void sim_set_faults(sim_faults *faults);
/* Works without a simulation: sim_set_faults() and sim_die_after() apply to the real files in these
 * directories, and the page cache loses nothing. If the end comes at a write, some of its sectors
 * are written. `end` is called on this thread, which is the loop's, at once or by sim_end_if_due()
 * after sim_fd() has become readable; it does not return. */
void sim_use_files(const char *const *paths, unsigned n, void (*end)(void));
void sim_end_if_due(void);
/* Returns the fault for an operation that a backend is about to perform; the caller tears a torn
 * write. */
enum sim_fault sim_fault_of(const struct kio_request *req, int *ret_error);
/* Leaves one of the possible states on the disk, which is stable then. Everything is closed.
 * Returns 0 or -errno. */
int sim_power_loss(void);
/* Simulates a kill -9 of the program: everything completed remains; of operations at the device,
 * none, all or some sectors. */
int sim_kill(void);
/* Simulates a kill -9, or a stop, after which the page cache lives on: changes that no sync covers
 * stay uncertain until a power loss. */
void sim_end_process(void);
/* Returns whether there are writes that a failed sync was to cover: the page cache has them, the
 * disk perhaps never. */
bool sim_has_dropped(void);

/* Reads through the backend that return wrong bytes. */
enum sim_read_fault {
        SIM_READ_RIGHT,
        SIM_READ_MISDIRECTED, /* bytes of another place, of this or another file */
        SIM_READ_STALE,       /* previous bytes, in all or some sectors */
        SIM_READ_SWAPPED,     /* the first two reads that wait together get each other's bytes, now
                                 and later */
        SIM_READ_FLIPPED,     /* flipped bits, one to four */
};
/* Spoils the next `count` reads (0: all later ones). Only results that differ from the right bytes
 * count as faults. */
void sim_set_reads(enum sim_read_fault fault, uint64_t count);
uint64_t sim_read_faults(void); /* since then */
/* Observes memory that a read through the backend has just filled, before it is used, on any
 * thread; not the bytes of a fault above. NULL: no observer. */
typedef void sim_read_watch(const void *memory, uint64_t bytes);
void sim_set_read_watch(sim_read_watch *watch);
/* Makes reads by system call of the file of this name (NULL: none) return some pages swapped,
 * duplicated or old. */
void sim_set_start_reads(const char *name);
/* Makes wrapped calls on files, or only their reads, fail with this error: `count` of them (0: one)
 * from number `first` on (0: none). With or without a simulation; not for operations of
 * backends. */
void sim_fail_calls(bool reads_only, uint64_t first, uint64_t count, int error);
uint64_t sim_calls_failed(void); /* since then */
