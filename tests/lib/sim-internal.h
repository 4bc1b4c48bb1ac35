/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by the files of the simulated disk: see sim.c. One lock protects everything.
 * Functions declared in sim.h take it as they state; those here are called with it held. */
#pragma once

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

#include "sim.h"

struct statfs;

enum { NAME_BYTES = 64, DIRS = 4, PAGE = 4096 };

/* A write that no completed sync covers. */
struct record {
        uint64_t serial; /* serial number of its completion */
        uint64_t offset, length;
        bool dropped; /* a sync that was to cover it has failed */
        uint8_t *old; /* previous contents; NULL: not completed when the power failed */
        uint8_t *new;
};

struct file {
        char name[NAME_BYTES]; /* last name of the file */
        unsigned dir;
        dev_t dev;
        ino_t ino;
        int fd;
        uint64_t stable_size;
        struct record *records;
        unsigned n_records, room;
        uint8_t *past; /* previous contents of the last write, up to past_bytes */
        uint64_t past_bytes;
        bool is_payload;
};

struct change {
        uint64_t serial;   /* 0: stable */
        struct file *file; /* NULL: the name does not exist */
};

struct name {
        char name[NAME_BYTES];
        unsigned dir;
        struct change *changes; /* the first is the stable state, the last the current one */
        unsigned n, room;
};

struct waiting {
        struct waiting *next;
        struct sim_queue *queue;
        struct kio_request *req;
        struct file *file; /* for a sync; NULL: of a directory, or another operation */
        int dir;
        uint64_t serial, size; /* at its arrival */
        int32_t result;
};

struct sim_queue {
        struct kio_queue base;
        struct sim_queue *next;
        pthread_t thread; /* its owner */
        pthread_cond_t cond;
        bool woken, waiting;
        struct waiting *done, **done_end;
};

struct range {
        int fd;
        uint64_t offset;
};

struct sim {
        pthread_mutex_t lock;
        bool active, dead, holds_clock;
        struct {
                int fd;
                dev_t dev;
                ino_t ino;
        } dirs[DIRS];
        unsigned n_dirs;
        int event_fd;
        uint64_t random, serial, clock_ms, die_after;

        struct file **files;
        struct name **names;
        unsigned n_files, n_names, hold;
        struct waiting *held; /* in an order independent of threads */
        unsigned n_held;
        struct sim_queue *queues;
        pthread_cond_t idle;

        enum sim_read_fault fault;
        uint64_t fault_count, fault_hits;
        struct range swapped[2];
        unsigned n_swapped;
        char start_name[NAME_BYTES];

        sim_watch *watch;
        sim_read_watch *read_watch;
        sim_faults *faults;

        /* State of sim_use_files(): */
        char paths[DIRS][256];
        unsigned n_paths;
        pthread_t loop;
        void (*end)(void);
        bool ended;

        bool pretends_disk, fail_reads_only;
        uint64_t calls, fail_first, fail_count, calls_failed;
        int fail_error;
};
extern struct sim sim;

static inline uint64_t draw(uint64_t n)
{
        return sim_draw(&sim.random) % n;
}

static inline void *must(void *p)
{
        assert(p);
        return p;
}

static inline void lock(void)
{
        pthread_mutex_lock(&sim.lock);
}

static inline void unlock(void)
{
        pthread_mutex_unlock(&sim.lock);
}

/* The real system calls. */
int __real_openat64(int dir, const char *path, int flags, ...);
ssize_t __real_pread64(int fd, void *buf, size_t bytes, off_t offset);
ssize_t __real_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);
int __real_fdatasync(int fd);
int __real_fsync(int fd);
int __real_fallocate64(int fd, int mode, off_t offset, off_t length);
int __real_ftruncate64(int fd, off_t length);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __real_unlinkat(int dir, const char *path, int flags);
int __real_fstatfs64(int fd, struct statfs *ret);
ssize_t __real_getrandom(void *buf, size_t bytes, unsigned flags);
int __real_clock_gettime(clockid_t which, struct timespec *ret);

/* --- sim-files.c: files and names, and the changes that a power loss may undo --- */

void sim_read_whole(int fd, void *buf, uint64_t bytes, uint64_t offset);
void sim_write_whole(int fd, const void *buf, uint64_t bytes, uint64_t offset);
uint64_t sim_size_of(const struct file *f);
int sim_dir_of(int fd);
struct file *sim_file_of(int fd);
struct file *sim_file_add(unsigned dir, const char *name, int fd);
struct name *sim_name_get(unsigned dir, const char *text);
struct file *sim_name_now(const struct name *n);
void sim_name_set(struct name *n, struct file *f, uint64_t serial);
void sim_forget_all(void);
int sim_take_stock_of(unsigned dir);
int sim_take_stock(void);
enum sim_fault sim_fault_for(const char *operation, unsigned dir, const char *file, int *ret_error);
void sim_changed(void);
bool sim_reached(const char *operation, const char *file, bool after);
struct record *sim_record_add(struct file *f, uint64_t offset, uint64_t length, const void *data);
void sim_file_write(struct file *f, const void *buf, uint64_t length, uint64_t offset);
int sim_file_punch(struct file *f, int fd, int mode, off_t offset, off_t length);
void sim_file_tear(struct file *f, const uint8_t *buf, uint64_t length, uint64_t offset);
void sim_file_write_fault(struct file *f, enum sim_fault fault, const uint8_t *buf, uint64_t length,
                          uint64_t offset);
void sim_sync_dropped(struct file *f);
void sim_file_synced(struct file *f, uint64_t serial, uint64_t size);
void sim_names_synced(unsigned dir, uint64_t serial);
void sim_sync_now(struct file *f, int dir);

/* --- sim-real.c: files that are not simulated --- */

enum sim_fault sim_real_fault(const char *operation, int fd, const char *file, int *ret_error);
_Noreturn void sim_real_end(void);
void sim_real_tear(int fd, const void *buf, uint64_t bytes, uint64_t offset);

/* --- sim-reads.c: reads that return wrong bytes --- */

void sim_spoil_reads(const struct kio_request *req, uint8_t *buf, uint64_t length);
void sim_note_for_swap(const struct kio_request *req);
void sim_spoil_pages(uint8_t *buf, uint64_t bytes);

/* --- sim-backend.c: operations, performed at once or completed one by one --- */

void sim_gather(const struct kio_request *req, uint8_t *whole, bool out);
void sim_execute_held(unsigned i);

/* --- sim-power.c: power loss and kill --- */

void sim_die_locked(void);
