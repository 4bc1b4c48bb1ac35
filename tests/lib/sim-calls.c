/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk behind the wrapped system calls, on any thread. Each call takes the lock, and
 * makes the real call unless a simulated file or a fault is concerned. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "checked.h"
#include "sim-internal.h"

enum { MAGIC_EXT4 = 0xef53 };

int __wrap_openat64(int dir, const char *path, int flags, ...);
ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);
int __wrap_fdatasync(int fd);
int __wrap_fsync(int fd);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length);
int __wrap_ftruncate64(int fd, off_t length);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_unlinkat(int dir, const char *path, int flags);
int __wrap_fstatfs64(int fd, struct statfs *ret);
ssize_t __wrap_getrandom(void *buf, size_t bytes, unsigned flags);
int __wrap_clock_gettime(clockid_t which, struct timespec *ret);

/* Returns whether this call must fail, with errno set. */
static bool call_fails(bool is_read)
{
        bool fails = false;
        int error;

        lock();
        error = sim.fail_error;
        if (sim.fail_first > 0 && (is_read || !sim.fail_reads_only)) {
                sim.calls++;
                fails = sim.calls >= sim.fail_first && sim.calls - sim.fail_first < sim.fail_count;
                sim.calls_failed += fails;
        }
        unlock();
        if (fails)
                errno = error;
        return fails;
}

int __wrap_openat64(int dir, const char *path, int flags, ...)
{
        mode_t mode = 0;
        struct name *n;
        va_list ap;
        bool makes;
        int fd, own, number, error = 0;
        enum sim_fault fault = SIM_FAULT_NONE;

        if (call_fails(false))
                return -1;
        va_start(ap, flags);
        if (flags & (O_CREAT | __O_TMPFILE))
                mode = va_arg(ap, mode_t);
        va_end(ap);
        number = sim_dir_of(dir);
        if (flags & O_CREAT && number < 0) {
                lock();
                fault = faccessat(dir, path, F_OK, 0) < 0
                                ? sim_real_fault("open", dir, path, &error)
                                : SIM_FAULT_NONE;
                if (fault == SIM_FAULT_END)
                        sim_real_end();
                unlock();
        }
        if (!(flags & O_CREAT) || number < 0) {
                fd = fault == SIM_FAULT_NONE || fault == SIM_FAULT_DONE
                             ? __real_openat64(dir, path, flags, mode)
                             : -1;
                if (fault != SIM_FAULT_NONE) {
                        if (fd >= 0)
                                close(fd);
                        errno = error;
                        fd = -1;
                }
                return fd;
        }

        lock();
        n = sim_name_get((unsigned)number, path);
        if (sim_name_now(n) && flags & O_EXCL) {
                unlock();
                errno = EEXIST;
                return -1;
        }
        makes = !sim_name_now(n) || flags & O_TRUNC;
        if (makes) {
                sim_reached("open", path, false);
                fault = sim_fault_for("open", (unsigned)number, path, &error);
        }
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                unlock();
                errno = error;
                return -1;
        }
        if (sim.dead) {
                fd = __real_openat64(dir, path, flags & ~(O_CREAT | O_TRUNC | O_EXCL), mode);
                if (fd < 0)
                        fd = __real_openat64(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
                unlock();
                return fd;
        }
        if (sim_name_now(n) && flags & O_TRUNC) {
                /* Treat the file as newly created: the old bytes stay in place until the name is
                 * synced. */
                __real_unlinkat(dir, path, 0);
                sim_name_set(n, NULL, ++sim.serial);
        }
        fd = __real_openat64(dir, path, flags & ~O_TRUNC, mode);
        if (fd >= 0 && !sim_name_now(n)) {
                own = __real_openat64(dir, path, O_RDWR | O_CLOEXEC);
                assert(own >= 0);
                sim_name_set(n, sim_file_add((unsigned)number, path, own), ++sim.serial);
                sim_changed();
        }
        if (makes)
                sim_reached("open", path, true);
        unlock();
        if (fault == SIM_FAULT_DONE && fd >= 0) {
                close(fd);
                errno = error;
                return -1;
        }
        return fd;
}

ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset)
{
        ssize_t n = call_fails(true) ? -1 : __real_pread64(fd, buf, bytes, offset);

        if (n <= 0 || !sim.active || sim.start_name[0] == '\0')
                return n;
        lock();
        if (sim.start_name[0] != '\0' && sim_file_of(fd) &&
            sim_file_of(fd) == sim_name_now(sim_name_get(0, sim.start_name)))
                sim_spoil_pages(buf, (uint64_t)n);
        unlock();
        return n;
}

/* Returns whether a fault refuses the call. The lock is then released, and errno set. */
static bool is_refused(enum sim_fault fault, int error)
{
        if (fault == SIM_FAULT_END)
                sim_real_end();
        if (fault == SIM_FAULT_NONE || fault == SIM_FAULT_DONE)
                return false;
        unlock();
        errno = error;
        return true;
}

/* Releases the lock. Returns the call's result, or an error if the fault reports one for a call
 * that was made. */
static int end_call(enum sim_fault fault, int result, int error)
{
        unlock();
        if (fault != SIM_FAULT_DONE || result != 0)
                return result;
        errno = error;
        return -1;
}

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset)
{
        struct file *f;
        bool dead;
        enum sim_fault fault = SIM_FAULT_NONE;
        int error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = sim_file_of(fd);
        if (f && bytes > 0)
                fault = sim_fault_for("write", f->dir, f->name, &error);
        else if (bytes > 0)
                fault = sim_real_fault("write", fd, NULL, &error);
        if (fault != SIM_FAULT_NONE) {
                if (f)
                        sim_file_write_fault(f, fault, buf, bytes, (uint64_t)offset);
                else if (fault == SIM_FAULT_DONE)
                        fault = __real_pwrite64(fd, buf, bytes, offset) < 0 ? SIM_FAULT_NOTHING
                                                                            : fault;
                else if (fault != SIM_FAULT_NOTHING)
                        sim_real_tear(fd, buf, bytes, (uint64_t)offset);
                if (fault == SIM_FAULT_END)
                        sim_real_end();
                unlock();
                errno = error;
                return -1;
        }
        if (f && bytes > 0 && sim_reached("write", f->name, false))
                sim_record_add(f, (uint64_t)offset, bytes, buf); /* in flight */
        dead = sim.dead;
        if (f && !dead) {
                sim_file_write(f, buf, bytes, (uint64_t)offset);
                sim_changed();
                sim_reached("write", f->name, true);
        }
        unlock();
        return f || (dead && sim.active) ? (ssize_t)bytes : __real_pwrite64(fd, buf, bytes, offset);
}

static int wrapped_sync(int fd, int (*real)(int fd))
{
        struct file *f;
        bool ours;
        enum sim_fault fault = SIM_FAULT_NONE;
        int dir, error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = sim_file_of(fd);
        dir = f ? (int)f->dir : sim_dir_of(fd);
        ours = dir >= 0;
        if (ours)
                fault = sim_fault_for("sync", (unsigned)dir, f ? f->name : "directory", &error);
        else
                fault = sim_real_fault("sync", fd, NULL, &error);
        if (fault == SIM_FAULT_END)
                sim_real_end();
        if (fault != SIM_FAULT_NONE && fault != SIM_FAULT_DONE) {
                sim_sync_dropped(f);
                unlock();
                errno = error;
                return -1;
        }
        if (ours)
                sim_reached("sync", f ? f->name : "directory", false);
        if (ours && !sim.dead) {
                sim_sync_now(f, dir);
                sim_reached("sync", f ? f->name : "directory", true);
        }
        unlock();
        if (fault == SIM_FAULT_DONE) {
                if (!ours && real(fd) < 0)
                        return -1;
                errno = error;
                return -1;
        }
        return ours ? 0 : real(fd);
}

int __wrap_fdatasync(int fd)
{
        return wrapped_sync(fd, __real_fdatasync);
}

int __wrap_fsync(int fd)
{
        return wrapped_sync(fd, __real_fsync);
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length)
{
        struct file *f;
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = sim_file_of(fd);
        if (f)
                fault = sim_fault_for("allocate", f->dir, f->name, &error);
        else
                fault = sim_real_fault("allocate", fd, NULL, &error);
        if (is_refused(fault, error))
                return -1;
        if (f)
                sim_reached("allocate", f->name, false);
        if (!sim.dead || !f) {
                uint64_t before = f ? sim_size_of(f) : 0;

                r = f && mode & FALLOC_FL_PUNCH_HOLE ? sim_file_punch(f, fd, mode, offset, length)
                                                     : __real_fallocate64(fd, mode, offset, length);
                if (f && sim_size_of(f) != before)
                        sim_changed();
                if (f && r == 0)
                        sim_reached("allocate", f->name, true);
        }
        return end_call(fault, r, error);
}

int __wrap_ftruncate64(int fd, off_t length)
{
        struct file *f;
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0;

        if (call_fails(false))
                return -1;
        lock();
        f = sim_file_of(fd);
        if (f)
                fault = sim_fault_for("truncate", f->dir, f->name, &error);
        else
                fault = sim_real_fault("truncate", fd, NULL, &error);
        if (is_refused(fault, error))
                return -1;
        if (f)
                sim_reached("truncate", f->name, false);
        if (!sim.dead || !f) {
                /* After a power loss, a truncated file may have its old size again, with zeros in
                 * place of the lost bytes. */
                r = __real_ftruncate64(fd, length);
                if (f) {
                        sim_changed();
                        sim_reached("truncate", f->name, true);
                }
        }
        return end_call(fault, r, error);
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0, dir = sim_dir_of(from_dir);

        if (call_fails(false))
                return -1;
        lock();
        if (dir >= 0 && dir == sim_dir_of(to_dir))
                fault = sim_fault_for("rename", (unsigned)dir, to, &error);
        else if (dir < 0)
                fault = sim_real_fault("rename", to_dir, to, &error);
        if (is_refused(fault, error))
                return -1;
        if (dir < 0 || dir != sim_dir_of(to_dir)) {
                r = __real_renameat(from_dir, from, to_dir, to);
        } else if (!sim.dead && !sim_reached("rename", to, false)) {
                r = __real_renameat(from_dir, from, to_dir, to);
                if (r == 0) {
                        struct file *f = sim_name_now(sim_name_get((unsigned)dir, from));

                        snprintf(f->name, sizeof(f->name), "%s", to);

                        sim.serial++; /* one change of two names */
                        sim_name_set(sim_name_get((unsigned)dir, from), NULL, sim.serial);
                        sim_name_set(sim_name_get((unsigned)dir, to), f, sim.serial);
                        sim_changed();
                        sim_reached("rename", to, true);
                }
        }
        return end_call(fault, r, error);
}

int __wrap_unlinkat(int dir, const char *path, int flags)
{
        enum sim_fault fault = SIM_FAULT_NONE;
        int r = 0, error = 0, number = sim_dir_of(dir);

        if (call_fails(false))
                return -1;
        lock();
        if (number >= 0 && sim_name_now(sim_name_get((unsigned)number, path)))
                fault = sim_fault_for("unlink", (unsigned)number, path, &error);
        else if (number < 0)
                fault = sim_real_fault("unlink", dir, path, &error);
        if (is_refused(fault, error))
                return -1;
        if (number < 0) {
                r = __real_unlinkat(dir, path, flags);
        } else if (!sim.dead && !(sim_name_now(sim_name_get((unsigned)number, path)) &&
                                  sim_reached("unlink", path, false))) {
                r = __real_unlinkat(dir, path, flags);
                if (r == 0) {
                        sim_name_set(sim_name_get((unsigned)number, path), NULL, ++sim.serial);
                        sim_changed();
                        sim_reached("unlink", path, true);
                }
        }
        return end_call(fault, r, error);
}

/* A store asks whether the file system is tmpfs, which keeps nothing. */
int __wrap_fstatfs64(int fd, struct statfs *ret)
{
        int r = __real_fstatfs64(fd, ret);

        if (r == 0 && (sim.active || sim.pretends_disk))
                ret->f_type = MAGIC_EXT4;
        return r;
}

ssize_t __wrap_getrandom(void *buf, size_t bytes, unsigned flags)
{
        if (!sim.active)
                return __real_getrandom(buf, bytes, flags);
        lock();
        for (size_t i = 0; i < bytes; i++)
                ((uint8_t *)buf)[i] = (uint8_t)draw(256);
        unlock();
        return (ssize_t)bytes;
}

int __wrap_clock_gettime(clockid_t which, struct timespec *ret)
{
        if (which != CLOCK_REALTIME && (which != CLOCK_MONOTONIC || !sim_holds_clock()))
                return __real_clock_gettime(which, ret);
        if (!sim.active)
                return __real_clock_gettime(which, ret);
        *ret = (struct timespec){ .tv_sec = (time_t)(sim.clock_ms / 1000),
                                  .tv_nsec = (long)(sim.clock_ms % 1000 * 1000000) };
        return 0;
}

void sim_fail_calls(bool reads_only, uint64_t first, uint64_t count, int error)
{
        lock();
        sim.fail_reads_only = reads_only;
        sim.fail_first = first;
        sim.fail_count = MAX(count, (uint64_t)1);
        sim.fail_error = error;
        sim.calls = sim.calls_failed = 0;
        unlock();
}

uint64_t sim_calls_failed(void)
{
        uint64_t n;

        lock();
        n = sim.calls_failed;
        unlock();
        return n;
}
