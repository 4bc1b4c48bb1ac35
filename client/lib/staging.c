/* SPDX-License-Identifier: Apache-2.0 */
/* Places in the staging area: a sorted array of the places in use; the gaps between them are free.
 *
 * Runs in the handle's thread. Owns the mapping and the array.
 *
 * A message takes one place for all bytes that it copies, if there is room for them, and users take
 * few and large places, so the array is short: a binary search finds the place of a byte, and a
 * memmove() makes room for a new one. A failed call changes nothing. */
#include "lib/staging.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "checked.h"

int staging_map(struct staging *l, int fd, uint64_t bytes)
{
        struct stat st;
        int seals;
        void *p;

        assert(!l->base);
        if (bytes == 0 || bytes > SIZE_MAX / 2)
                return -EBADMSG;
        seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0)
                return errno == EINVAL ? -EPERM : -errno;
        if (!(seals & F_SEAL_SHRINK))
                return -EPERM;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_size < 0 || (uint64_t)st.st_size < bytes)
                return -EBADMSG;

        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
                return -errno;
        (void)madvise(p, bytes, MADV_DONTFORK);
        (void)madvise(p, bytes, MADV_DONTDUMP);
        *l = (struct staging){ .base = p, .bytes = bytes };
        return 0;
}

void staging_fini(struct staging *l, bool unmap)
{
        if (l->base && unmap)
                munmap(l->base, l->bytes);
        free(l->places);
        *l = (struct staging){ 0 };
}

/* Returns the index of the last place that starts at or before `offset`, or -1. */
static ptrdiff_t staging_find(const struct staging *l, uint64_t offset)
{
        size_t low = 0, high = l->n_places;

        while (low < high) {
                size_t mid = low + (high - low) / 2;

                if (l->places[mid].start <= offset)
                        low = mid + 1;
                else
                        high = mid;
        }
        return (ptrdiff_t)low - 1;
}

/* Returns the place that contains all of [offset, offset + bytes), or NULL. */
static struct staging_place *staging_place_of(const struct staging *l, uint64_t offset,
                                              uint64_t bytes)
{
        ptrdiff_t i = staging_find(l, offset);

        if (i < 0 || !range_within(offset - l->places[i].start, bytes, l->places[i].bytes))
                return NULL;
        return &l->places[i];
}

static void staging_remove_if_idle(struct staging *l, struct staging_place *p)
{
        size_t i = (size_t)(p - l->places);

        if (p->held || p->refs > 0)
                return;
        memmove(p, p + 1, (l->n_places - i - 1) * sizeof(*p));
        l->n_places--;
        l->hint = MIN(l->hint, i);
}

int staging_acquire(struct staging *l, uint64_t bytes, bool held, uint64_t *ret_offset)
{
        uint64_t usable = round_down(l->bytes, STAGING_ALIGN), start = 0;
        size_t i;

        if (bytes == 0)
                return -EINVAL;
        if (bytes > usable)
                return -E2BIG;
        bytes = round_up(bytes, STAGING_ALIGN);

        for (i = l->hint; i <= l->n_places; i++) {
                uint64_t end = i < l->n_places ? l->places[i].start : usable;

                start = i == 0 ? 0 : l->places[i - 1].start + l->places[i - 1].bytes;
                if (end - start >= bytes)
                        break;
                if (end == start && i == l->hint && i < l->n_places)
                        l->hint++;
        }
        if (i > l->n_places)
                return -ENOBUFS;

        if (l->n_places == l->room) {
                size_t room = MAX(2 * l->room, (size_t)64);
                struct staging_place *places = realloc(l->places, room * sizeof(*places));

                if (!places)
                        return -ENOMEM;
                l->places = places;
                l->room = room;
        }
        memmove(&l->places[i + 1], &l->places[i], (l->n_places - i) * sizeof(*l->places));
        l->places[i] = (struct staging_place){ .start = start, .bytes = bytes, .held = held };
        l->n_places++;
        *ret_offset = start;
        return 0;
}

bool staging_release(struct staging *l, uint64_t offset)
{
        struct staging_place *p = staging_place_of(l, offset, 1);

        if (!p || p->start != offset || !p->held)
                return false;
        p->held = false;
        staging_remove_if_idle(l, p);
        return true;
}

bool staging_contains(const struct staging *l, const void *data, uint64_t bytes)
{
        uintptr_t at = (uintptr_t)data, base = (uintptr_t)l->base;

        return l->base && at >= base && range_within(at - base, bytes, l->bytes);
}

bool staging_ref(struct staging *l, uint64_t offset, uint64_t bytes)
{
        struct staging_place *p = staging_place_of(l, offset, bytes);

        if (!p)
                return false;
        p->refs++;
        return true;
}

void staging_unref(struct staging *l, uint64_t offset)
{
        struct staging_place *p = staging_place_of(l, offset, 0);

        assert(p && p->refs > 0);
        p->refs--;
        staging_remove_if_idle(l, p);
}
