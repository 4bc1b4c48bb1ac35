/* SPDX-License-Identifier: Apache-2.0 */
/* Implements generations.h. */
#include "remote/generations.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <isa-l/crc.h>

#include "base/small-file.h"
#include "checked.h"
#include "cleanup.h"

static const char magic[8] = { 'K', 'V', 'C', 'R', 'G', 'E', 'N', 'S' };

enum { GENERATIONS_VERSION = 1 };

struct head {
        char magic[8];
        uint32_t version, crc;
        uint64_t n;
};
static_assert(sizeof(struct head) == 24, "file format");
static_assert(sizeof(struct generation) == 40, "file format");

enum { SEALED_FROM = offsetof(struct head, n) };

void generations_fini(struct generations *g)
{
        free(g->list);
        *g = (struct generations){ 0 };
}

/* --- the list of generations --- */

static struct generation *find(const struct generations *g, const struct remote_identity *id)
{
        for (uint32_t i = 0; i < g->n; i++)
                if (memcmp(&g->list[i].identity, id, sizeof(*id)) == 0)
                        return &g->list[i];
        return NULL;
}

bool generations_find(const struct generations *g, const struct remote_identity *id, uint64_t *ret)
{
        const struct generation *e = find(g, id);

        if (e)
                *ret = e->generation;
        return e != NULL;
}

static int make_room(struct generations *g, uint32_t n)
{
        struct generation *list;

        if (n > GENERATIONS_MAX)
                return -ENOSPC;
        if (n <= g->room)
                return 0;
        n = MIN(MAX(2 * g->room, n), (uint32_t)GENERATIONS_MAX);
        list = realloc(g->list, n * sizeof(*list));
        if (!list)
                return -ENOMEM;
        g->list = list;
        g->room = n;
        return 0;
}

int generations_set(struct generations *g, const struct remote_identity *id, uint64_t generation)
{
        struct generation *e = find(g, id);
        int r;

        if (!e) {
                r = make_room(g, g->n + 1);
                if (r < 0)
                        return r;
                e = &g->list[g->n++];
                e->identity = *id;
        }
        e->generation = generation;
        return 0;
}

bool generations_remove(struct generations *g, const struct remote_identity *id)
{
        struct generation *e = find(g, id);

        if (e)
                *e = g->list[--g->n];
        return e != NULL;
}

/* --- the file --- */

static uint32_t crc_of(const void *file, size_t bytes)
{
        unsigned char *p = (unsigned char *)(uintptr_t)file;

        return ~crc32_iscsi(p + SEALED_FROM, (int)(bytes - SEALED_FROM), ~UINT32_C(0));
}

void *generations_encode(const struct generations *g, size_t *ret_bytes)
{
        size_t bytes = sizeof(struct head) + g->n * sizeof(*g->list);
        struct head *head = calloc(1, bytes);
        struct generation *list;

        if (!head)
                return NULL;
        list = (void *)(head + 1);
        for (uint32_t i = 0; i < g->n; i++) {
                list[i].identity = g->list[i].identity;
                list[i].generation = htole64(g->list[i].generation);
        }
        memcpy(head->magic, magic, sizeof(magic));
        head->version = htole32(GENERATIONS_VERSION);
        head->n = htole64(g->n);
        head->crc = htole32(crc_of(head, bytes));
        *ret_bytes = bytes;
        return head;
}

static int decode(struct generations *g, const struct head *head, size_t bytes)
{
        const struct generation *list = (const void *)(head + 1);
        uint64_t n;
        int r;

        if (bytes < sizeof(*head) || memcmp(head->magic, magic, sizeof(magic)) != 0 ||
            le32toh(head->version) != GENERATIONS_VERSION ||
            le32toh(head->crc) != crc_of(head, bytes))
                return -EBADMSG;
        n = le64toh(head->n);
        if (n > GENERATIONS_MAX || bytes != sizeof(*head) + n * sizeof(*list))
                return -EBADMSG;
        r = make_room(g, (uint32_t)n);
        if (r < 0)
                return r;
        for (; g->n < n; g->n++) {
                g->list[g->n].identity = list[g->n].identity;
                g->list[g->n].generation = le64toh(list[g->n].generation);
        }
        return 0;
}

int generations_read(struct generations *g, const char *path)
{
        const uint64_t most =
                sizeof(struct head) + (uint64_t)GENERATIONS_MAX * sizeof(struct generation);
        _cleanup_(freep) void *file = NULL;
        size_t bytes;
        int r = small_file_load(AT_FDCWD, path, most, &file, &bytes);

        if (r == -EMEDIUMTYPE || r == -EFBIG || r == -ENODATA)
                return -EBADMSG;
        return r < 0 ? r : decode(g, file, bytes);
}

int generations_write(const char *path, const void *bytes, size_t n)
{
        char folder[PATH_MAX], new[PATH_MAX];
        _cleanup_(closep) int dir = -1;
        const char *slash = strrchr(path, '/');
        size_t name = slash ? (size_t)(slash + 1 - path) : 0;

        if (snprintf(new, sizeof(new), "%s.new", path) >= (int)sizeof(new))
                return -ENAMETOOLONG;
        snprintf(folder, sizeof(folder), "%s", path);
        dir = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
                return -errno;
        return small_file_replace(dir, path + name, new + name, 0600, bytes, n);
}
