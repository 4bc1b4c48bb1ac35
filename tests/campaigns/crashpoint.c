/* SPDX-License-Identifier: Apache-2.0 */
/* crashpoint: the program dies, as by kill -9, at every named place: before and after each change
 * that a store makes to its files. The store has no hooks for that: the simulated disk sees every
 * change, and names the place after it, as in "grow/allocate:table:before": phase, operation, file,
 * side. Completed operations are on the disk afterwards; operations at the device are complete,
 * absent, or present in whole sectors.
 *
 * A pass first lets a store live undisturbed through all phases, which finds the places and how
 * often each is reached. Then the store lives once more for each place and dies there: in the first
 * pass at the first time, in the second at the last, in later ones at any. Each death is recovered
 * from. Then, from the same image, recovery is repeated for each change that it makes, dying there,
 * and started again; in the first pass for one of them. One run is one death. Every pass has its
 * own seed.
 *
 * Wrong: a byte that was never put, a purged version. Lost: a chunk answered `written`, and neither
 * evicted nor dropped since; a namespace that was open; a store that does not open; a place of the
 * table below that no pass reached. */
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../lib/folder.h"
#include "campaign.h"
#include "checked.h"
#include "sim.h"

enum { PLACES = 512, PLACE_NAME = 64, KEYS = 960, IMAGES = 64 };
#define ROOMY_BYTES (UINT64_C(8) << 20)
#define LOWER_BYTES (UINT64_C(4) << 20)

enum phase { MAKE, WORK, GROW, PURGE, STOP, START, SHRINK, RECOVERY };
static const char *const phase_names[] = { "make", "work",  "grow",   "purge",
                                           "stop", "start", "shrink", "recovery" };

/* Places that must be reached, each with :before and :after; a star is any phase. A place that is
 * not reached has not been tested. */
static const char *const must_occur[] = {
        "make/open:LOCK",
        "make/open:superblock.new",
        "make/write:superblock.new",
        "make/sync:superblock.new",
        "make/rename:superblock",
        "make/sync:directory",
        "make/open:namespaces.0",
        "make/allocate:namespaces.0",
        "make/open:namespaces.1",
        "make/allocate:namespaces.1",
        "make/write:namespaces.0",
        "make/sync:namespaces.0",
        "make/write:namespaces.1",
        "make/sync:namespaces.1",
        "make/open:table",
        "make/allocate:table",
        "make/sync:table",
        "make/open:segment",
        "make/write:superblock",
        "make/sync:superblock",
        "*/open:segment",
        "*/write:namespaces.0",
        "*/sync:namespaces.0",
        "*/write:namespaces.1",
        "*/sync:namespaces.1",
        "*/write:segment",
        "*/write:table",
        "*/sync:segment",
        "*/sync:table",
        "*/sync:directory",
        "*/allocate:table",
        "stop/write:superblock",
        "stop/sync:superblock",
        "start/allocate:namespaces.0",
        "start/allocate:namespaces.1",
        "start/allocate:table",
        "start/sync:table",
        "start/write:superblock",
        "start/sync:superblock",
        "start/sync:directory",
        "shrink/allocate:namespaces.0",
        "shrink/allocate:namespaces.1",
        "shrink/allocate:table",
        "shrink/sync:table",
        "shrink/unlink:segment",
        "shrink/sync:directory",
        "shrink/open:table.new",
        "shrink/allocate:table.new",
        "shrink/write:table.new",
        "shrink/sync:table.new",
        "shrink/rename:table",
        "shrink/write:superblock",
        "shrink/sync:superblock",
        "recovery/write:superblock",
        "recovery/sync:superblock",
        "recovery/sync:table",
        "recovery/sync:directory",
};

static struct place {
        char name[PLACE_NAME];
        uint64_t times; /* in the current life */
        uint64_t total; /* in the undisturbed life */
        uint64_t deaths;
} places[PLACES];
static unsigned n_places;
static _Atomic enum phase phase; /* threads of the store read it */
static struct place *target;     /* NULL: none */
static uint64_t target_nth;
static uint64_t seen, seen_end; /* places reached during this recovery; the one to die at, 0:
                                   none */

static struct image {
        char name[64];
        uint8_t *bytes;
        uint64_t n;
} images[IMAGES];
static unsigned n_images;

static struct {
        uint64_t passes, deaths, second_deaths;
        uint64_t early; /* recoveries that ended before the place at which they were to die */
} tally;

/* --- places --- */

static struct place *place_get(const char *operation, const char *file, bool after)
{
        char name[PLACE_NAME];

        if (strncmp(file, "segment-", 8) == 0)
                file = "segment";
        /* GCC reads an atomic subscript as a plain one. */
        snprintf(name, sizeof(name), "%s/%s:%s:%s", phase_names[atomic_load(&phase)], operation,
                 file, after ? "after" : "before");
        for (unsigned i = 0; i < n_places; i++)
                if (strcmp(places[i].name, name) == 0)
                        return &places[i];
        if (n_places == PLACES)
                return NULL;
        memcpy(places[n_places].name, name, sizeof(name));
        return &places[n_places++];
}

/* Called by any thread of the store, one at a time. */
static bool on_place(const char *operation, const char *file, bool after)
{
        struct place *p = place_get(operation, file, after);

        if (!p)
                return false;
        p->times++;
        seen++;
        if ((p != target || p->times != target_nth) && seen != seen_end)
                return false;
        p->deaths++;
        world_drop_requests();
        return true;
}

static void watch(enum phase now)
{
        phase = now;
        sim_set_watch(on_place);
}

/* --- the store's life --- */

/* Opens the store. Returns false if it died. */
static bool open_store(enum phase as)
{
        char error[512] = "";
        int r;

        watch(as);
        sim_hold(0);
        r = world_open(error);
        if (sim_is_dead())
                return false;
        if (r < 0)
                campaign_fail(VERDICT_LOST, "the store does not open: %s", error);
        sim_hold(1u << KIO_WRITE | 1u << KIO_SYNC);
        return true;
}

/* Lets some time pass, in which the volume may become idle and write zeros, and completes
 * operations, except a few that stay at the device. Returns false if the store died. */
static bool some_end(unsigned lag)
{
        if (chance(8))
                sim_advance_ms(draw(12));
        world_iterate();
        while (sim_held() > lag)
                world_step();
        for (uint64_t n = draw(3); n > 0 && world_step(); n--)
                ;
        return !sim_is_dead();
}

static bool work(unsigned steps)
{
        unsigned lag = (unsigned)draw(CAMPAIGN_SLOTS);

        for (unsigned i = 0; i < steps; i++) {
                uint32_t k = (uint32_t)draw(KEYS);
                uint64_t x = draw(100);

                if (x < 4)
                        world_open_namespace((unsigned)draw(CAMPAIGN_NAMESPACES));
                else if (x < 12)
                        world_drop(k);
                else if (x < 15)
                        world_sync();
                else
                        world_put_some(k, KEYS, 4);
                if (!some_end(lag))
                        return false;
        }
        return true;
}

/* Puts enough chunks of a page that more segments are cut, and the ring must grow for them. Then
 * large chunks take the segments over, so that startup with a lower limit can shrink the ring
 * again. */
static bool grow(void)
{
        for (uint32_t n = 0; n < 2 * KEYS; n++) {
                uint32_t k = n % KEYS;
                bool is_large = item_length(k, world.items[k].version + 1) > 4096;

                if (is_large != (n >= KEYS))
                        continue;
                world_put(k, chance(16));
                if (!some_end(4))
                        return false;
        }
        world_settle();
        return !sim_is_dead();
}

static bool purge(void)
{
        for (unsigned i = 0; i < 40; i++) {
                if (i % 8 == 0)
                        world_purge(i == 16 ? -1 : (int)draw(CAMPAIGN_NAMESPACES));
                world_put((uint32_t)draw(KEYS), chance(4));
                if (!some_end((unsigned)draw(6)))
                        return false;
        }
        world_settle();
        return !sim_is_dead();
}

static bool stop(void)
{
        world_settle();
        if (sim_is_dead())
                return false;
        world_note_must(true);
        phase = STOP;
        world_close();
        return !sim_is_dead();
}

/* Lives once. Returns true if the life was not ended by a death. In both cases the oracle knows
 * what must be found. */
static bool live(uint64_t seed)
{
        world.random = seed;
        world_wipe();
        world_begin_simulation();
        for (unsigned i = 0; i < n_places; i++)
                places[i].times = 0;
        seen = 0;
        world.max_length = 32768;
        world.limit = ROOMY_BYTES;
        world.prewrite = chance(4);
        if (!open_store(MAKE))
                return false;
        phase = WORK;
        for (unsigned n = 0; n < CAMPAIGN_NAMESPACES; n++)
                world_open_namespace(n);
        if (!some_end(0) || !work(120))
                goto died;
        phase = GROW;
        if (!grow())
                goto died;
        phase = PURGE;
        if (!purge())
                goto died;
        phase = WORK;
        if (!work(60))
                goto died;
        phase = STOP;
        if (!stop() || !open_store(START))
                return false;
        world_verify();
        phase = WORK;
        if (!work(30))
                goto died;
        phase = STOP;
        if (!stop())
                return false;
        world.limit = LOWER_BYTES;
        world_release_must(); /* a lowered limit costs segments */
        if (!open_store(SHRINK))
                return false;
        phase = WORK;
        if (!work(30))
                goto died;
        world_note_must(true);
        return true;
died:
        world_note_must(true);
        return false;
}

static void crash(void)
{
        int r;

        world_cut_off();
        r = sim_kill();
        if (r < 0)
                campaign_fail(VERDICT_HUNG, "the disk's state cannot be made: %s", strerror(-r));
        campaign_count(1);
}

/* --- images --- */

static void images_take(void)
{
        DIR *d = opendir(world.dir);

        for (struct dirent *e; d && (e = readdir(d));) {
                struct image *image = &images[n_images];
                struct stat st;
                int fd;

                if (e->d_name[0] == '.')
                        continue;
                fd = openat(dirfd(d), e->d_name, O_RDONLY | O_CLOEXEC);
                if (n_images == IMAGES || fd < 0 || fstat(fd, &st) < 0)
                        campaign_fail(VERDICT_HUNG, "%s cannot be read", e->d_name);
                n_images++;
                snprintf(image->name, sizeof(image->name), "%.63s", e->d_name);
                image->n = (uint64_t)st.st_size;
                image->bytes = malloc(image->n + 1);
                if (!image->bytes || pread(fd, image->bytes, image->n, 0) != (ssize_t)image->n)
                        campaign_fail(VERDICT_HUNG, "%s cannot be read", e->d_name);
                close(fd);
        }
        if (d)
                closedir(d);
}

/* Restores an image. No simulation is active. */
static void images_restore(void)
{
        int dir = open(world.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        for (unsigned i = 0; i < n_images; i++) {
                int fd = openat(dir, images[i].name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

                if (fd < 0 || pwrite(fd, images[i].bytes, images[i].n, 0) != (ssize_t)images[i].n)
                        campaign_fail(VERDICT_HUNG, "%s cannot be written", images[i].name);
                close(fd);
        }
        close(dir);
}

static void images_forget(void)
{
        for (unsigned i = 0; i < n_images; i++)
                free(images[i].bytes);
        n_images = 0;
}

/* --- deaths --- */

/* Recovers undisturbed. Returns the number of places reached. */
static uint64_t recovery_and_verify(void)
{
        uint64_t n;

        seen = 0;
        seen_end = 0;
        open_store(RECOVERY);
        sim_set_watch(NULL);
        n = seen;
        world_verify();
        if (chance(3)) {
                work(20);
                stop();
                open_store(RECOVERY);
                sim_set_watch(NULL);
                world_verify();
        }
        world_settle();
        world_close();
        return n;
}

/* Ends a recovery that did not reach the place at which it was to die. With threads, two writes of
 * the superblock may become one if the first has not ended when the second is requested. That must
 * be rare. */
static void end_early(uint64_t places_of_start, uint64_t done)
{
        sim_set_watch(NULL);
        tally.early++;
        if (seen >= seen_end || tally.early > 2 + done / 10)
                campaign_fail(VERDICT_HUNG, "recovery came to %llu places, and to %llu now",
                              (unsigned long long)places_of_start, (unsigned long long)seen);
        world_verify();
        world_settle();
        world_close();
        sim_stop();
}

/* Dies at the target; then dies during the recovery that follows, at each of its places. */
static void die_everywhere(uint64_t seed, uint64_t count, uint64_t *done)
{
        static struct item items[CAMPAIGN_KEYS];
        static typeof(world.namespaces) namespaces;
        uint64_t places_of_start, random;

        seen_end = 0;
        if (live(seed))
                campaign_fail(VERDICT_HUNG, "%s did not come a %llu. time", target->name,
                              (unsigned long long)target_nth);
        target = NULL;
        crash();
        ++*done;
        tally.deaths++;
        sim_stop();
        images_take();
        memcpy(items, world.items, sizeof(items));
        memcpy(namespaces, world.namespaces, sizeof(namespaces));
        random = world.random;

        world_begin_simulation();
        places_of_start = recovery_and_verify();
        sim_stop();
        for (uint64_t i = 1; i <= places_of_start && *done < count; i++) {
                /* The first pass visits every place early. */
                uint64_t at = tally.passes == 0 ? 1 + draw(places_of_start) : i;

                folder_empty(world.dir);
                images_restore();
                memcpy(world.items, items, sizeof(items));
                memcpy(world.namespaces, namespaces, sizeof(namespaces));
                world.random = random + at;
                world_begin_simulation();
                seen = 0;
                seen_end = at;
                if (open_store(RECOVERY)) {
                        end_early(places_of_start, *done);
                        continue;
                }
                crash();
                ++*done;
                tally.second_deaths++;
                recovery_and_verify();
                sim_stop();
                if (tally.passes == 0)
                        break; /* the first pass visits every place early */
        }
        images_forget();
}

static bool is_place(const struct place *p, const char *wanted, bool after)
{
        char name[PLACE_NAME];

        snprintf(name, sizeof(name), "%s:%s", wanted, after ? "after" : "before");
        return name[0] == '*' ? strcmp(strchr(p->name, '/'), name + 1) == 0
                              : strcmp(p->name, name) == 0;
}

/* Returns whether the undisturbed life reaches all places that must occur before the next
 * startup. */
static bool comes_everywhere(void)
{
        for (unsigned i = 0; i < ARRAY_SIZE(must_occur); i++) {
                bool comes = strncmp(must_occur[i], "recovery/", 9) == 0;

                for (unsigned j = 0; j < n_places && !comes; j++)
                        comes = places[j].total > 0 && is_place(&places[j], must_occur[i], false);
                if (!comes)
                        return false;
        }
        return true;
}

static void check_all_occurred(void)
{
        for (unsigned i = 0; i < ARRAY_SIZE(must_occur); i++)
                for (unsigned after = 0; after < 2; after++) {
                        bool found = false;

                        for (unsigned j = 0; j < n_places && !found; j++)
                                found = places[j].deaths > 0 &&
                                        is_place(&places[j], must_occur[i], after);
                        if (!found)
                                campaign_fail(VERDICT_LOST, "nothing ever died at %s:%s",
                                              must_occur[i], after ? "after" : "before");
                }
}

int campaign_crashpoint(uint64_t count, uint64_t *seed)
{
        uint64_t done = 0, died_at = 0;
        unsigned passed_over = 0;

        world.lockstep = true;
        world_init(sim_backend());
        for (; done < count; ++*seed) {
                unsigned n;

                target = NULL;
                seen_end = 0;
                if (!live(*seed))
                        campaign_fail(VERDICT_HUNG, "it died of nothing");
                sim_set_watch(NULL);
                n = n_places;
                for (unsigned i = 0; i < n; i++)
                        places[i].total = places[i].times;
                crash();
                done++;
                recovery_and_verify();
                sim_stop();
                /* The ring of some lives has no surplus pages, so some places are not reached in
                 * every life. */
                if (tally.passes == 0 && passed_over++ < 16 && !comes_everywhere())
                        continue;
                for (unsigned i = 0; i < n && done < count; i++) {
                        uint64_t times = places[i].total;

                        if (times == 0 || strncmp(places[i].name, "recovery/", 9) == 0)
                                continue;
                        target_nth = tally.passes == 0   ? 1
                                     : tally.passes == 1 ? times
                                                         : 1 + draw(times);
                        target = &places[i];
                        die_everywhere(*seed, count, &done);
                }
                if (done >= count)
                        break;
                tally.passes++;
        }
        for (unsigned i = 0; i < n_places; i++)
                died_at += places[i].deaths > 0;
        if (getenv("KVCACHE_CAMPAIGN_PLACES"))
                for (unsigned i = 0; i < n_places; i++)
                        printf("%s %llu\n", places[i].name, (unsigned long long)places[i].deaths);
        if (tally.passes > 0)
                check_all_occurred();
        campaign_note("%llu passes, %llu of %u places died at, %llu deaths at work, %llu in the "
                      "starts after them, and %llu starts that ended before their place",
                      (unsigned long long)tally.passes, (unsigned long long)died_at, n_places,
                      (unsigned long long)tally.deaths, (unsigned long long)tally.second_deaths,
                      (unsigned long long)tally.early);
        return campaign_end();
}
