/* SPDX-License-Identifier: Apache-2.0 */
/* Measures one core's memcpy() over a working set and one core's checksum over one; and runs
 * spinners that keep the cores awake.
 *
 * Copies are made as the daemon makes them, piece by piece, from a source of --source bytes (as
 * large as the staging area for a put) to the rest of the working set. Both ends advance, so that
 * neither is in a cache. The memory is private to the process, in pages as the kernel provides
 * them, and touched before. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "io/io.h"

static void print_pieces(uint64_t begin, uint64_t cpu, uint64_t bytes)
{
        printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"bytes\": %" PRIu64 "}",
               (double)(bench_now_ns() - begin) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9, bytes);
        bench_answer();
}

static void copy_pieces(const struct bench_options *o, const struct bench_step *step,
                        const uint8_t *from, uint64_t from_bytes, uint8_t *to, uint64_t to_bytes)
{
        static uint64_t from_at, to_at;
        uint64_t begin = bench_now_ns(), cpu = bench_cpu_ns(),
                 end = step->seconds > 0 ? begin + (uint64_t)(step->seconds * 1e9) : UINT64_MAX;
        uint64_t bytes = 0;

        do {
                memcpy(to + to_at, from + from_at, o->size);
                from_at = from_at + 2 * o->size <= from_bytes ? from_at + o->size : 0;
                to_at = to_at + 2 * o->size <= to_bytes ? to_at + o->size : 0;
                bytes += o->size;
        } while ((step->bytes == 0 || bytes < step->bytes) && bench_now_ns() < end);
        print_pieces(begin, cpu, bytes);
}

static void check_pieces(const struct bench_options *o, const struct bench_step *step,
                         const uint8_t *from)
{
        static uint64_t at;
        uint64_t begin = bench_now_ns(), cpu = bench_cpu_ns(),
                 end = step->seconds > 0 ? begin + (uint64_t)(step->seconds * 1e9) : UINT64_MAX;
        uint64_t bytes = 0;
        uint32_t crc;

        do {
                crc = kio_crc32c(from + at, o->size);
                __asm__ volatile("" ::"r"(crc)); /* keeps it */
                at = at + 2 * o->size <= o->working_set ? at + o->size : 0;
                bytes += o->size;
        } while ((step->bytes == 0 || bytes < step->bytes) && bench_now_ns() < end);
        print_pieces(begin, cpu, bytes);
}

static uint8_t *working_set(const struct bench_options *o)
{
        uint8_t *memory = mmap(NULL, o->working_set, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (memory == MAP_FAILED) {
                bench_fail("no memory: %s", strerror(errno));
                return NULL;
        }
        return memset(memory, 0x5a, o->working_set);
}

int mode_memcpy(const struct bench_options *o)
{
        struct bench_step step;
        uint8_t *memory;

        if (o->size > o->source || o->working_set < o->source + o->size)
                return bench_fail("the working set is to be larger than the source, and that "
                                  "than a piece");
        memory = working_set(o);
        if (!memory)
                return 1;
        while (bench_next(o, &step))
                copy_pieces(o, &step, memory, o->source, memory + o->source,
                            o->working_set - o->source);
        munmap(memory, o->working_set);
        return 0;
}

int mode_crc(const struct bench_options *o)
{
        struct bench_step step;
        uint8_t *memory;

        if (o->size > o->working_set)
                return bench_fail("the working set is to be larger than a piece");
        memory = working_set(o);
        if (!memory)
                return 1;
        while (bench_next(o, &step))
                check_pieces(o, &step, memory);
        munmap(memory, o->working_set);
        return 0;
}

static void *spin(void *userdata)
{
        struct sched_param param = { 0 };
        cpu_set_t set;

        CPU_ZERO(&set);
        CPU_SET((unsigned)(uintptr_t)userdata, &set);
        (void)sched_setaffinity(0, sizeof(set), &set);
        if (sched_setscheduler(0, SCHED_IDLE, &param) < 0)
                return NULL; /* a spinner that takes time from others is worse than none */
        for (;;)
                __asm__ volatile("" ::: "memory");
        return NULL;
}

int mode_spin(const struct bench_options *o)
{
        cpu_set_t set;

        if (sched_getaffinity(0, sizeof(set), &set) < 0)
                return bench_fail("which cores? %s", strerror(errno));
        for (unsigned i = 0; i < CPU_SETSIZE; i++) {
                pthread_t thread;

                if (!CPU_ISSET(i, &set))
                        continue;
                if (pthread_create(&thread, NULL, spin, (void *)(uintptr_t)i) != 0)
                        return bench_fail("no thread");
                pthread_detach(thread);
        }
        printf("{\"cores\": %d}", CPU_COUNT(&set));
        bench_answer();
        for (;;)
                pause();
        return 0;
}
