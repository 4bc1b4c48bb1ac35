/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated disk: see sim.h. Any thread enters, through the backend or a wrapped call; one lock
 * protects everything.
 *
 * For each file, the simulation knows the writes that no sync covers yet, each with the bytes it
 * replaced, and for each name the changes since the directory was synced. A power loss undoes all
 * those writes, newest first, then redoes a random part of them, sector by sector. Only uncertain
 * bytes are copied, so that a state costs what was written since the last syncs. Each file keeps a
 * descriptor here: its inode number is not reused, and a name that returns has its bytes.
 *
 * sim-backend.c and sim-calls.c are the two ways in, sim-files.c has the records, sim-reads.c
 * spoils reads, sim-power.c decides uncertain changes, and sim-real.c has faults without a
 * simulation. Here are start and stop, the clock and random numbers.
 *
 * Failures: without memory an assertion fails, because this is a test. */
#include "sim-internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define EPOCH_MS UINT64_C(1700000000000)

struct sim sim = { .lock = PTHREAD_MUTEX_INITIALIZER,
                   .idle = PTHREAD_COND_INITIALIZER,
                   .event_fd = -1 };

uint64_t sim_draw(uint64_t *state)
{
        uint64_t z = *state += 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
}

int sim_add_dir(const char *dir)
{
        unsigned i = sim.n_dirs;
        struct stat st;

        assert(i < DIRS);
        sim.dirs[i].fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (sim.dirs[i].fd < 0 || fstat(sim.dirs[i].fd, &st) < 0)
                return -errno;
        sim.dirs[i].dev = st.st_dev;
        sim.dirs[i].ino = st.st_ino;
        sim.n_dirs++;
        return sim_take_stock_of(i);
}

int sim_start(const char *dir, uint64_t seed)
{
        int r;

        assert(!sim.active);
        sim.n_dirs = 0;
        if (sim.event_fd < 0)
                sim.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        sim.random = seed;
        sim.serial = 1;
        sim.clock_ms = EPOCH_MS;
        sim.die_after = 0;
        sim.dead = false;
        sim.watch = NULL;
        sim.faults = NULL;
        __atomic_store_n(&sim.holds_clock, false, __ATOMIC_RELEASE);
        sim.hold = 0;
        sim_set_reads(SIM_READ_RIGHT, 0);
        sim.start_name[0] = '\0';
        r = sim_add_dir(dir);
        sim.active = r == 0;
        return r;
}

void sim_stop(void)
{
        assert(!sim.held);
        lock();
        sim.active = false;
        sim_forget_all();
        while (sim.n_dirs > 0)
                close(sim.dirs[--sim.n_dirs].fd);
        unlock();
}

void sim_pretend_disk(void)
{
        sim.pretends_disk = true;
}

void sim_advance_ms(uint64_t ms)
{
        lock();
        sim.clock_ms += ms;
        unlock();
}

void sim_hold_clock(void)
{
        __atomic_store_n(&sim.holds_clock, true, __ATOMIC_RELEASE);
}

bool sim_holds_clock(void)
{
        return __atomic_load_n(&sim.holds_clock, __ATOMIC_ACQUIRE);
}

int sim_fd(void)
{
        return sim.event_fd;
}

void sim_set_watch(sim_watch *watch)
{
        lock();
        sim.watch = watch;
        unlock();
}

void sim_set_read_watch(sim_read_watch *watch)
{
        lock();
        sim.read_watch = watch;
        unlock();
}

void sim_set_faults(sim_faults *faults)
{
        lock();
        sim.faults = faults;
        unlock();
}
