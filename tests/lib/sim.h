/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that loses its power. One directory, or a few, are simulated: their files are real (put
 * them on tmpfs), so that they can be opened and read as ever, and beside them is kept what a power
 * loss may undo. Whatever is decided by chance comes from one seed.
 *
 * Two doors lead to it: the backend for kio_start_with(), and, since a store also makes, writes and
 * syncs files without any ring, the system calls themselves, which the program that links this must
 * wrap (sim_wraps in meson.build).
 *
 * What a completed sync covers stays: the writes to that file that were completed before it began,
 * its size then, or for the directory the names. Anything else may be there or not, each 512-byte
 * sector of each write, each file's size and each change of a name for itself; of several writes to
 * one sector any, or none. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "io/backend.h"
#include "io/io.h"

enum { SIM_SECTOR = 512 };

/* splitmix64: for other code that must be reproducible. */
uint64_t sim_draw(uint64_t *state);

/* All that is in the directory counts as stable. One at a time, and not while a store in it is
 * open. */
int sim_start(const char *dir, uint64_t seed);
/* Another directory of the same disk, after sim_start(). */
int sim_add_dir(const char *dir);
void sim_stop(void);
/* From now on, without any simulation, a store on tmpfs takes it for a disk. */
void sim_pretend_disk(void);
/* Seconds that time() and the like may see do not pass by themselves, from sim_start() on. */
void sim_advance_ms(uint64_t ms);
/* Nor does CLOCK_MONOTONIC from here on, until sim_stop(): for programs without threads. */
void sim_hold_clock(void);

const struct kio_backend *sim_backend(void);
/* Operations of these kinds (1u << KIO_WRITE | ...) wait at the device until they are completed one
 * by one; others, and with 0 all, are done as they come. */
void sim_hold(unsigned ops);
unsigned sim_held(void);
unsigned sim_held_requests(void); /* these count: more, where adjacent requests are merged */
/* Every worker waits at its queue, with all that it has been woken for handed in: what is submitted
 * before the next wake-up, it takes in together. */
void sim_wait_idle(void);
int sim_fd(void); /* readable when an operation has come to wait; reading it, or not, is the
                     caller's business */
/* One that is drawn. False: none waits. */
bool sim_complete_one(void);

/* The power fails: now, or after this many more changes of files or names (0: it does not). From
 * then on nothing reaches the disk, though everything says that it does, so that a store can be
 * taken down in peace. */
void sim_die(void);
void sim_die_after(uint64_t changes);
bool sim_is_dead(void);
/* Hears of each change, before it and after it: `operation` is open (a file is made), write, sync,
 * rename, truncate, allocate or unlink, `file` a name in the directory, or "directory". True: the
 * end comes there and then. It may be called from any thread, and must not call the simulation.
 * NULL: none. */
typedef bool sim_watch(const char *operation, const char *file, bool after);
void sim_set_watch(sim_watch *watch);

/* How an operation that changes a file or a name fails. */
enum sim_fault {
        SIM_FAULT_NONE,
        SIM_FAULT_NOTHING, /* nothing has happened */
        SIM_FAULT_TORN,    /* of a write some sectors are in the file; else nothing has happened */
        SIM_FAULT_DONE,    /* it was done, and is said to have failed */
        SIM_FAULT_END,     /* of real files: the process ends here; not for sim_faults */
};
/* Is asked before each such operation, as sim_watch names them, of the directory with this number,
 * and may make it fail with *ret_error. What a failed sync was to cover no later sync covers: the
 * kernel has dropped it. Called as a watch is. NULL: nothing fails. */
typedef enum sim_fault sim_faults(const char *operation, unsigned dir, const char *file,
                                  int *ret_error);
void sim_set_faults(sim_faults *faults);
/* Without a simulation: what sim_set_faults() and sim_die_after() say is about the real files in
 * these directories, and the page cache loses nothing. A write that the end comes at has
 * some of its sectors; `end` is called on this thread, which is the loop's, at once or by
 * sim_end_if_due() after sim_fd() has become readable, and does not return. */
void sim_use_files(const char *const *paths, unsigned n, void (*end)(void));
void sim_end_if_due(void);
/* The same of what a backend is about to do; a torn write is the caller's to do. */
enum sim_fault sim_fault_of(const struct kio_request *req, int *ret_error);
/* Leaves on the disk one of the states that it may be in, and that is stable then. Everything is
 * closed. 0, -errno. */
int sim_power_loss(void);
/* The same for a kill -9 of the program: all that was completed is there, and of what stood at the
 * device none, all or some sectors. */
int sim_kill(void);
/* A kill -9, or a stop, after which the page cache lives on: what no sync has covered stays in
 * doubt until a power loss. */
void sim_end_process(void);
/* Is there something that a failed sync was to cover? The page cache has it, the disk perhaps never
 * will. */
bool sim_has_dropped(void);

/* Reads through the backend that do not bring what was asked for. */
enum sim_read_fault {
        SIM_READ_RIGHT,
        SIM_READ_MISDIRECTED, /* another place, of this or another file */
        SIM_READ_STALE,       /* what lay there before the last write: all of it, or some sectors */
        SIM_READ_SWAPPED, /* the first two that wait together get each other's bytes, now and later
                           */
        SIM_READ_FLIPPED, /* with one to four bits turned */
};
/* The next `count` reads (0: all from now on). Only what differs from the right bytes counts as a
 * fault. */
void sim_set_reads(enum sim_read_fault fault, uint64_t count);
uint64_t sim_read_faults(void); /* since then */
/* Sees the memory that a read through the backend has just come to, before anything is done with
 * it, on any thread; not what a fault of those above has spoilt. NULL: none. */
typedef void sim_read_watch(const void *memory, uint64_t bytes);
void sim_set_read_watch(sim_read_watch *watch);
/* Reads by system call of the file of this name (NULL: none) get some of their pages swapped,
 * doubled or old. */
void sim_set_start_reads(const char *name);
/* Of the wrapped calls on files, or of their reads, from the first on (0: none) so many (0: one)
 * fail with this error. With or without a simulation; not for what backends do. */
void sim_fail_calls(bool reads_only, uint64_t first, uint64_t count, int error);
uint64_t sim_calls_failed(void); /* since then */
