/* SPDX-License-Identifier: Apache-2.0 */
/* Simulates a machine that is slow at random, by LD_PRELOAD: threads sleep where they begin, wake
 * and make calls, for up to DELAYS_MS (40), in DELAYS_PER_MILLE (20) of a thousand calls. A test
 * that then fails depends on the speed of a thread. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

static uint64_t per_mille = 20, most_ns = 40000000;
static __thread uint64_t seed;

__attribute__((constructor)) static void configure(void)
{
        const char *value = getenv("DELAYS_PER_MILLE");

        if (value)
                per_mille = strtoull(value, NULL, 10);
        value = getenv("DELAYS_MS");
        if (value)
                most_ns = strtoull(value, NULL, 10) * 1000000;
}

/* Returns the next number of xorshift64. */
static uint64_t draw(void)
{
        if (seed == 0 && getrandom(&seed, sizeof(seed), 0) < 0)
                seed = 1;
        seed |= seed == 0;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        return seed;
}

/* Sleeps in `per_million` of a million calls; preserves errno. */
static void sleep_at_random(uint64_t per_million)
{
        uint64_t ns = draw() % (most_ns + 1);

        if (draw() % 1000000 < per_million)
                clock_nanosleep(CLOCK_MONOTONIC, 0,
                                &(struct timespec){ .tv_sec = (time_t)(ns / 1000000000),
                                                    .tv_nsec = (long)(ns % 1000000000) },
                                NULL);
}

struct beginning {
        void *(*run)(void *userdata);
        void *userdata;
};

static void *begin(void *userdata)
{
        struct beginning b = *(struct beginning *)userdata;

        free(userdata);
        sleep_at_random(per_mille * 10000); /* few threads begin */
        return b.run(b.userdata);
}

/* The functions below replace those of the C library. */
#pragma GCC visibility push(default)

/* Finds `real_NAME`, the C library's function; not in a constructor, because constructors of other
 * libraries may run first. */
#define FIND(name)                                                                                 \
        static __typeof__(&name) real_##name;                                                      \
        if (!__atomic_load_n(&real_##name, __ATOMIC_RELAXED))                                      \
        __atomic_store_n(&real_##name, (__typeof__(&name))dlsym(RTLD_NEXT, #name), __ATOMIC_RELAXED)

int pthread_create(pthread_t *ret, const pthread_attr_t *attributes, void *(*run)(void *userdata),
                   void *userdata)
{
        struct beginning *b = malloc(sizeof(*b));
        int error;

        FIND(pthread_create);
        if (!b)
                return EAGAIN;
        *b = (struct beginning){ run, userdata };
        error = real_pthread_create(ret, attributes, begin, b);
        if (error != 0)
                free(b);
        return error;
}

/* A thread must not sleep with the lock held. */
int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock)
{
        int error;

        FIND(pthread_cond_wait);
        error = real_pthread_cond_wait(condition, lock);
        pthread_mutex_unlock(lock);
        sleep_at_random(per_mille * 3000);
        pthread_mutex_lock(lock);
        return error;
}

int pthread_mutex_unlock(pthread_mutex_t *lock)
{
        int error;

        FIND(pthread_mutex_unlock);
        error = real_pthread_mutex_unlock(lock);
        sleep_at_random(per_mille * 100); /* such calls are frequent */
        return error;
}

int poll(struct pollfd *of, nfds_t n, int timeout_ms)
{
        int r;

        FIND(poll);
        r = real_poll(of, n, timeout_ms);
        sleep_at_random(per_mille * 1000);
        return r;
}

int epoll_wait(int fd, struct epoll_event *events, int n, int timeout_ms)
{
        int r;

        FIND(epoll_wait);
        r = real_epoll_wait(fd, events, n, timeout_ms);
        sleep_at_random(per_mille * 1000);
        return r;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
        FIND(recvmsg);
        sleep_at_random(per_mille * 300);
        return real_recvmsg(fd, message, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
        FIND(sendmsg);
        sleep_at_random(per_mille * 300);
        return real_sendmsg(fd, message, flags);
}

#pragma GCC visibility pop
