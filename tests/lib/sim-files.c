/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk's records of files and names: for each file the writes that no sync covers
 * yet, for each name the changes since the directory was synced. Writes, syncs and changes of names
 * are recorded here. Called with the lock held. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "sim-internal.h"

void sim_read_whole(int fd, void *buf, uint64_t bytes, uint64_t offset)
{
        ssize_t n = __real_pread64(fd, buf, bytes, (off_t)offset);

        assert(n >= 0);
        memset((char *)buf + n, 0, bytes - (uint64_t)n); /* beyond the end */
}

void sim_write_whole(int fd, const void *buf, uint64_t bytes, uint64_t offset)
{
        ssize_t n = __real_pwrite64(fd, buf, bytes, (off_t)offset);

        assert(n == (ssize_t)bytes);
}

uint64_t sim_size_of(const struct file *f)
{
        struct stat st;
        int r = fstat(f->fd, &st);

        assert(r == 0);
        return (uint64_t)st.st_size;
}

/* Returns the number of the simulated directory, or -1. */
int sim_dir_of(int fd)
{
        struct stat st;

        if (sim.active && fstat(fd, &st) == 0)
                for (unsigned i = 0; i < sim.n_dirs; i++)
                        if (st.st_ino == sim.dirs[i].ino && st.st_dev == sim.dirs[i].dev)
                                return (int)i;
        return -1;
}

/* Returns the simulated file, or NULL. */
struct file *sim_file_of(int fd)
{
        struct stat st;

        if (!sim.active || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return NULL;
        for (unsigned i = 0; i < sim.n_files; i++)
                if (sim.files[i]->ino == st.st_ino && sim.files[i]->dev == st.st_dev)
                        return sim.files[i];
        return NULL;
}

static void forget_records(struct file *f)
{
        for (unsigned i = 0; i < f->n_records; i++) {
                free(f->records[i].old);
                free(f->records[i].new);
        }
        f->n_records = 0;
}

struct file *sim_file_add(unsigned dir, const char *name, int fd)
{
        struct file *f = must(calloc(1, sizeof(*f)));
        struct stat st;
        int r = fstat(fd, &st);

        assert(r == 0);
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        f->fd = fd;
        f->dir = dir;
        snprintf(f->name, sizeof(f->name), "%s", name);
        f->is_payload = strncmp(name, "segment-", 8) == 0;
        sim.files = must(realloc(sim.files, (sim.n_files + 1) * sizeof(struct file *)));
        sim.files[sim.n_files++] = f;
        return f;
}

struct name *sim_name_get(unsigned dir, const char *text)
{
        struct name *n;

        for (unsigned i = 0; i < sim.n_names; i++)
                if (sim.names[i]->dir == dir && strcmp(sim.names[i]->name, text) == 0)
                        return sim.names[i];
        n = must(calloc(1, sizeof(*n)));
        n->dir = dir;
        snprintf(n->name, sizeof(n->name), "%s", text);
        sim.names = must(realloc(sim.names, (sim.n_names + 1) * sizeof(struct name *)));
        sim.names[sim.n_names++] = n;
        n->changes = must(calloc(4, sizeof(*n->changes)));
        n->room = 4;
        n->n = 1; /* certainly absent */
        return n;
}

struct file *sim_name_now(const struct name *n)
{
        return n->changes[n->n - 1].file;
}

void sim_name_set(struct name *n, struct file *f, uint64_t serial)
{
        if (n->n == n->room) {
                n->room *= 2;
                n->changes = must(realloc(n->changes, n->room * sizeof(*n->changes)));
        }
        n->changes[n->n++] = (struct change){ .serial = serial, .file = f };
}

void sim_forget_all(void)
{
        for (unsigned i = 0; i < sim.n_files; i++) {
                forget_records(sim.files[i]);
                free(sim.files[i]->records);
                free(sim.files[i]->past);
                close(sim.files[i]->fd);
                free(sim.files[i]);
        }
        for (unsigned i = 0; i < sim.n_names; i++) {
                free(sim.names[i]->changes);
                free(sim.names[i]);
        }
        sim.n_files = sim.n_names = 0;
}

/* Records the contents of a directory as stable. */
int sim_take_stock_of(unsigned dir)
{
        int fd = __real_openat64(sim.dirs[dir].fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        struct dirent *e;

        if (!d)
                return -errno;
        while ((e = readdir(d))) {
                struct name *n;
                struct file *f;

                if (e->d_name[0] == '.')
                        continue;
                fd = __real_openat64(sim.dirs[dir].fd, e->d_name, O_RDWR | O_CLOEXEC);
                if (fd < 0)
                        continue;
                n = sim_name_get(dir, e->d_name);
                f = sim_file_add(dir, e->d_name, fd);
                f->stable_size = sim_size_of(f);
                n->changes[0].file = f;
        }
        closedir(d);
        return 0;
}

int sim_take_stock(void)
{
        int r = 0;

        for (unsigned i = 0; i < sim.n_dirs && r == 0; i++)
                r = sim_take_stock_of(i);
        return r;
}

/* Returns the fault of an operation, and sets `*ret_error` to the error that it reports. */
enum sim_fault sim_fault_for(const char *operation, unsigned dir, const char *file, int *ret_error)
{
        return sim.active && !sim.dead && sim.faults ? sim.faults(operation, dir, file, ret_error)
                                                     : SIM_FAULT_NONE;
}

/* Counts a change. */
void sim_changed(void)
{
        if (sim.die_after > 0 && --sim.die_after == 0)
                sim_die_locked();
}

/* Informs the observer of a change of this file, before or after it. Returns true if the power
 * fails here. */
bool sim_reached(const char *operation, const char *file, bool after)
{
        if (!sim.active || sim.dead || !sim.watch || !sim.watch(operation, file, after))
                return false;
        sim_die_locked();
        return true;
}

struct record *sim_record_add(struct file *f, uint64_t offset, uint64_t length, const void *data)
{
        struct record *r;

        if (f->n_records == f->room) {
                f->room = f->room ? 2 * f->room : 16;
                f->records = must(realloc(f->records, f->room * sizeof(*f->records)));
        }
        r = &f->records[f->n_records++];
        *r = (struct record){ .serial = ++sim.serial, .offset = offset, .length = length };
        r->new = must(malloc(length));
        memcpy(r->new, data, length);
        return r;
}

static void remember_past(struct file *f, const struct record *r)
{
        uint64_t end = r->offset + r->length;

        if (!f->is_payload)
                return;
        if (end > f->past_bytes) {
                f->past = must(realloc(f->past, end));
                memset(f->past + f->past_bytes, 0, end - f->past_bytes);
                f->past_bytes = end;
        }
        memcpy(f->past + r->offset, r->old, r->length);
}

void sim_file_write(struct file *f, const void *buf, uint64_t length, uint64_t offset)
{
        struct record *r;

        if (length == 0)
                return;
        r = sim_record_add(f, offset, length, buf);
        r->old = must(malloc(length));
        sim_read_whole(f->fd, r->old, length, offset);
        remember_past(f, r);
        sim_write_whole(f->fd, buf, length, offset);
}

/* Zeros from punching are as uncertain as any other write until a sync, and replace what a failed
 * sync has left. */
int sim_file_punch(struct file *f, int fd, int mode, off_t offset, off_t length)
{
        uint64_t at = MIN((uint64_t)offset, sim_size_of(f)),
                 bytes = MIN((uint64_t)length, sim_size_of(f) - at);
        uint8_t *old = must(malloc(bytes + 1)), *zeros = must(calloc(1, bytes + 1));
        int r;

        sim_read_whole(f->fd, old, bytes, at);
        r = __real_fallocate64(fd, mode, offset, length);
        if (r == 0 && bytes > 0)
                sim_record_add(f, at, bytes, zeros)->old = TAKE_PTR(old);
        free(old);
        free(zeros);
        return r;
}

/* Tears a write: each sector is written or not. */
void sim_file_tear(struct file *f, const uint8_t *buf, uint64_t length, uint64_t offset)
{
        for (uint64_t at = 0; at < length;) {
                uint64_t n = MIN(SIM_SECTOR - (offset + at) % SIM_SECTOR, length - at);

                if (draw(2))
                        sim_file_write(f, buf + at, n, offset + at);
                at += n;
        }
}

void sim_file_write_fault(struct file *f, enum sim_fault fault, const uint8_t *buf, uint64_t length,
                          uint64_t offset)
{
        if (fault == SIM_FAULT_TORN)
                sim_file_tear(f, buf, length, offset);
        else if (fault == SIM_FAULT_DONE)
                sim_file_write(f, buf, length, offset);
        sim_changed();
}

/* Returns whether a later write that is covered has replaced a part of this one. The rest of it is
 * then irrelevant. */
static bool is_replaced(const struct file *f, unsigned i, uint64_t serial)
{
        const struct record *r = &f->records[i];

        for (unsigned j = i + 1; j < f->n_records; j++) {
                const struct record *later = &f->records[j];

                if (later->serial <= serial && !later->dropped &&
                    later->offset < r->offset + r->length &&
                    r->offset < later->offset + later->length)
                        return true;
        }
        return false;
}

void sim_sync_dropped(struct file *f)
{
        for (unsigned i = 0; f && i < f->n_records; i++)
                f->records[i].dropped = true;
}

/* Makes everything completed up to `serial` stable. */
void sim_file_synced(struct file *f, uint64_t serial, uint64_t size)
{
        unsigned kept = 0;

        for (unsigned i = 0; i < f->n_records; i++)
                if (f->records[i].dropped && is_replaced(f, i, serial))
                        f->records[i].dropped = false;
        for (unsigned i = 0; i < f->n_records; i++) {
                if (f->records[i].serial > serial || f->records[i].dropped) {
                        f->records[kept++] = f->records[i];
                        continue;
                }
                free(f->records[i].old);
                free(f->records[i].new);
        }
        f->n_records = kept;
        f->stable_size = size;
}

void sim_names_synced(unsigned dir, uint64_t serial)
{
        for (unsigned i = 0; i < sim.n_names; i++) {
                struct name *n = sim.names[i];
                unsigned last = 0;

                if (n->dir != dir)
                        continue;
                for (unsigned j = 1; j < n->n; j++)
                        if (n->changes[j].serial <= serial)
                                last = j;
                memmove(n->changes, n->changes + last, (n->n - last) * sizeof(*n->changes));
                n->n -= last;
                n->changes[0].serial = 0;
        }
}

void sim_sync_now(struct file *f, int dir)
{
        /* The power may fail before the sync is complete. */
        if (sim.die_after == 1 && draw(2) == 0) {
                sim_changed();
                return;
        }
        if (f)
                sim_file_synced(f, sim.serial, sim_size_of(f));
        else
                sim_names_synced((unsigned)dir, sim.serial);
        sim_changed();
}
