/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a store without a daemon; see offline.h.
 *
 * Verifying needs parts of the daemon's work with a store: its I/O, and a loop that reaps
 * completions and iterates until the current request is complete. This file does that work. Owns
 * the store, its workers, and one buffer in place of the pool.
 *
 * Failures: a directory that is not a store, is badly damaged, has another format or is in use
 * is refused with a message, which names the process that has it open if the kernel reports it. */
#include "offline.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <grp.h>

#include "common.h"
#include "io/io.h"
#include "checked.h"
#include "cleanup.h"

enum {
        MEMORY_BYTES = 64 * 1024,
        LOCK_WAIT_MS = 1000, /* ms to wait for the lock, because the io_uring of a daemon that has
                                died holds it for a moment */
        TABLE_PAGE = 4096,
        TABLE_PAGE_ENTRIES = 31,
};

struct offline {
        struct store *store;
        struct kio *io;
        void *memory;
        bool privileges_given_up;
};

DEFINE_CLEANUP(struct offline *, offline_close);

/* Returns the id of the process that has locked this file, or 0. */
static long lock_holder(const char *path)
{
        _cleanup_(fclosep) FILE *locks = NULL;
        struct stat st;
        char line[256];

        if (stat(path, &st) < 0)
                return 0;
        locks = fopen("/proc/locks", "re");
        while (locks && fgets(line, sizeof(line), locks)) {
                unsigned dev_major, dev_minor;
                unsigned long long inode;
                long pid;

                if (sscanf(line, "%*d: FLOCK %*s WRITE %ld %x:%x:%llu", &pid, &dev_major,
                           &dev_minor, &inode) == 4 &&
                    inode == st.st_ino && dev_major == major(st.st_dev) &&
                    dev_minor == minor(st.st_dev))
                        return pid;
        }
        return 0;
}

static int complain_in_use(const char *directory)
{
        char path[PATH_MAX], who[64] = "";
        long pid;

        snprintf(path, sizeof(path), "%s/LOCK", directory);
        pid = lock_holder(path);
        if (pid > 0)
                snprintf(who, sizeof(who), " (process %ld)", pid);
        return complain(EXIT_REFUSED,
                        "%s: a daemon or another kvcachectl verify has this store open%s; if it is "
                        "a daemon, leave out --store, so that the daemon verifies it",
                        directory, who);
}

/* Checks that the directory has a volume of a store. Sets `*ret_entries` to the number of entries
 * for which its table has room, at least 2^20, and `*ret_st` to the state of the directory. Returns
 * an exit status. */
static int look_at(const char *directory, uint64_t *ret_entries, struct stat *ret_st)
{
        char path[PATH_MAX];
        struct stat st;

        if (stat(directory, ret_st) < 0)
                return complain(EXIT_BAD_INPUT, "%s: %s", directory, strerror(errno));
        if (!S_ISDIR(ret_st->st_mode))
                return complain(EXIT_BAD_INPUT,
                                "%s: not a directory; name the directory of a volume", directory);
        if (snprintf(path, sizeof(path), "%s/superblock", directory) >= (int)sizeof(path))
                return complain(EXIT_BAD_INPUT, "%.64s...: the path is too long", directory);
        if (stat(path, &st) < 0)
                return errno == ENOENT ? complain(EXIT_BAD_INPUT,
                                                  "%s: not a kvcache store: there is no file "
                                                  "\"superblock\" in it",
                                                  directory)
                                       : complain(EXIT_BAD_INPUT, "%s: %s", path, strerror(errno));
        snprintf(path, sizeof(path), "%s/table", directory);
        *ret_entries = 0;
        if (stat(path, &st) == 0 && st.st_size > 0)
                *ret_entries = (uint64_t)st.st_size / TABLE_PAGE * TABLE_PAGE_ENTRIES;
        *ret_entries = MAX(*ret_entries, UINT64_C(1) << 20);
        return EXIT_OK;
}

/* If this process runs as root, switches to the user that owns the directory, so that files
 * which are written belong to the daemon's user. Returns an exit status. */
static int become_owner(struct offline *o, const char *directory, const struct stat *st)
{
        if (geteuid() != 0 || st->st_uid == 0)
                return EXIT_OK;
        if (setgroups(0, NULL) < 0 || setegid(st->st_gid) < 0 || seteuid(st->st_uid) < 0)
                return complain(EXIT_LOCAL,
                                "%s: cannot switch to user %u, who owns the directory: %s; run "
                                "this command as that user",
                                directory, (unsigned)st->st_uid, strerror(errno));
        o->privileges_given_up = true;
        return EXIT_OK;
}

int offline_open(struct offline **ret, const char *directory,
                 void (*on_finding)(void *userdata, const struct store_finding *finding),
                 void *userdata)
{
        _cleanup_(offline_closep) struct offline *o = calloc(1, sizeof(*o));
        struct store_params params = {
                .paths = &directory,
                .n_paths = 1,
                .limit = UINT64_C(1)
                         << 40, /* not used, because the store is opened with its present files */
                .segment_bytes = 1 << 20,
                .direct = true,
                .policy = "lru",
                .lock_wait_ms = LOCK_WAIT_MS,
                .as_is = true,
                .on_finding = on_finding,
                .userdata = userdata,
        };
        struct kio_params io = { .backend = "auto", .workers = 1, .depth = 8, .posix_threads = 2 };
        int locks[STORE_MAX_VOLUMES], r;
        char error[512] = "";
        struct stat st;

        if (!o)
                return complain_memory();
        r = look_at(directory, &params.entries, &st);
        if (r == EXIT_OK)
                r = become_owner(o, directory, &st);
        if (r != EXIT_OK)
                return r;
        if (getrandom(&params.secret, sizeof(params.secret), 0) != sizeof(params.secret))
                return complain(EXIT_LOCAL, "verify: cannot get random numbers: %s",
                                strerror(errno));
        o->memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
        if (o->memory == MAP_FAILED) {
                o->memory = NULL;
                return complain_memory();
        }

        r = store_prepare(&o->store, &params, error);
        if (r == -EBUSY)
                return complain_in_use(directory);
        if (r < 0)
                return complain(EXIT_BAD_INPUT, "%s", error);
        io.pool = o->memory;
        io.pool_bytes = io.piece_bytes = MEMORY_BYTES;
        io.lock_fds = locks;
        io.n_lock_fds = store_lock_fds(o->store, locks);
        io.probe_fd = store_probe_fd(o->store);
        r = kio_start(&o->io, &io, error);
        if (r < 0)
                return complain(EXIT_LOCAL, "%s: cannot start the I/O for reading the store: %s",
                                directory, error);
        r = store_open(o->store, o->io, error);
        if (r < 0)
                return complain(EXIT_BAD_INPUT, "%s", error);
        *ret = TAKE_PTR(o);
        return EXIT_OK;
}

static void wait_for_io(struct offline *o)
{
        struct pollfd p = { .fd = kio_fd(o->io), .events = POLLIN };

        kio_flush(o->io);
        (void)poll(&p, 1, -1); /* a signal may end the wait early; the callers then call again */
        kio_reap(o->io);
}

static void on_verified(struct store_verify *req)
{
        req->complete = NULL;
}

int offline_verify(struct offline *o, struct kvcache_verify *verify)
{
        struct store_verify req = {
                .volume = verify->volume,
                .segment = verify->segment,
                .slot = verify->slot,
                .max_chunks = verify->max_chunks ? verify->max_chunks : 4096,
                .max_bytes = verify->max_bytes ? verify->max_bytes : 16 << 20,
                .complete = on_verified,
        };
        int r = store_verify(o->store, &req);

        if (r != 0)
                return r == STORE_MISS ? -EINVAL : -EIO;
        for (;;) {
                store_iterate(o->store);
                if (!req.complete)
                        break;
                wait_for_io(o);
        }
        if (req.result != 0 && req.result != -EIO)
                return -EIO;
        verify->segment = req.next_segment;
        verify->slot = req.next_slot;
        verify->volumes = req.volumes;
        verify->segments = req.segments;
        verify->chunks = req.found.chunks;
        verify->bytes = req.found.bytes;
        verify->mismatched = req.found.mismatched;
        verify->unreadable = req.found.unreadable;
        verify->skipped = req.found.skipped;
        verify->gave_up = req.result == -EIO;
        return 0;
}

void offline_get_stats(const struct offline *o, struct store_stats *ret)
{
        store_get_stats(o->store, ret);
}

const char *offline_namespace(const struct offline *o, uint32_t id)
{
        const struct store_namespace *ns = store_namespace_get(o->store, id);

        return ns ? ns->name : "";
}

struct offline *offline_close(struct offline *o)
{
        if (!o)
                return NULL;
        if (o->store && o->io) {
                store_stop(o->store);
                while (store_pending(o->store) > 0)
                        wait_for_io(o);
        }
        store_close(o->store);
        kio_stop(o->io);
        if (o->memory)
                munmap(o->memory, MEMORY_BYTES);
        if (o->privileges_given_up && (seteuid(0) < 0 || setegid(0) < 0))
                complain(EXIT_LOCAL, "cannot become root again: %s", strerror(errno));
        free(o);
        return NULL;
}
