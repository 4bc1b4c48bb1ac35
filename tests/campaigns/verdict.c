/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a campaign: the number of runs, failures with their seeds, and the last line, which
 * CI evaluates. The main thread; a watchdog signal ends the program if a run takes a minute of CPU
 * time, which does not depend on the machine's load, or waits for ten minutes. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "campaign.h"
#include "timeout.h"
#include "sim.h"

static struct {
        const char *name;
        const uint64_t *seed;
        uint64_t runs, tally[3];
} campaign;

static void last_line(void)
{
        printf("campaign %s: %llu runs, %llu wrong, %llu lost, %llu hung\n", campaign.name,
               (unsigned long long)campaign.runs, (unsigned long long)campaign.tally[VERDICT_WRONG],
               (unsigned long long)campaign.tally[VERDICT_LOST],
               (unsigned long long)campaign.tally[VERDICT_HUNG]);
        fflush(stdout);
}

void campaign_note(const char *fmt, ...)
{
        va_list ap;

        va_start(ap, fmt);
        printf("campaign %s: ", campaign.name);
        vprintf(fmt, ap);
        printf("\n");
        va_end(ap);
}

_Noreturn void campaign_fail(enum verdict verdict, const char *fmt, ...)
{
        va_list ap;

        va_start(ap, fmt);
        printf("campaign %s: failed with --seed %llu: ", campaign.name,
               (unsigned long long)*campaign.seed);
        vprintf(fmt, ap);
        printf("\n");
        va_end(ap);
        campaign.tally[verdict]++;
        last_line();
        if (getenv("KVCACHE_CAMPAIGN_KEEP"))
                printf("the store is left in %s\n", world.dir);
        else
                world_remove_folder();
        fflush(stdout);
        _exit(1);
}

static void hung(int number)
{
        /* These calls are not async-signal-safe, but nothing else runs at this point. */
        if (number == SIGPROF)
                campaign_fail(VERDICT_HUNG, "no end after %d s of CPU time", CAMPAIGN_HANG_CPU_S);
        campaign_fail(VERDICT_HUNG, "no end after %d s", test_timeout_ms(CAMPAIGN_HANG_MS) / 1000);
}

/* Restarts the watchdog, or stops it if `on` is false. */
static void watch(bool on)
{
        struct itimerval cpu = { .it_value.tv_sec = on ? CAMPAIGN_HANG_CPU_S : 0 };

        setitimer(ITIMER_PROF, &cpu, NULL);
        alarm(on ? (unsigned)test_timeout_ms(CAMPAIGN_HANG_MS) / 1000 : 0);
}

void campaign_begin(const char *name, const uint64_t *seed)
{
        campaign.name = name;
        campaign.seed = seed;
        signal(SIGPROF, hung);
        signal(SIGALRM, hung);
        watch(true);
}

void campaign_count(uint64_t runs)
{
        campaign.runs += runs;
        watch(true);
}

int campaign_end(void)
{
        watch(false);
        world.io = kio_stop(world.io);
        world_remove_folder();
        last_line();
        return 0;
}

uint64_t campaign_seed(void)
{
        return *campaign.seed;
}

uint64_t draw(uint64_t n)
{
        return sim_draw(&world.random) % n;
}

bool chance(uint64_t one_in)
{
        return draw(one_in) == 0;
}
