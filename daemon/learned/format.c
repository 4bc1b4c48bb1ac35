/* SPDX-License-Identifier: Apache-2.0 */
/* Implements format.h. Any thread; stateless. The bytes may have any content: every size is
 * compared with the file's before it is used. */
#include "learned/format.h"

#include <string.h>

#include "io/io.h"

static const char magic[8] = "kvclearn";

enum { SEALED_FROM = offsetof(struct learned_head, bytes) };

static uint32_t crc_of(const void *file, size_t bytes)
{
        return kio_crc32c((const char *)file + SEALED_FROM, bytes - SEALED_FROM);
}

void learned_seal(struct learned_head *file, size_t bytes)
{
        memcpy(file->magic, magic, sizeof(magic));
        file->version = LEARNED_VERSION;
        file->bytes = bytes;
        file->crc = crc_of(file, bytes);
}

size_t learned_section_bytes(const struct learned_section *s)
{
        return sizeof(*s) + (size_t)(s->n_chunks + s->n_remembered) * sizeof(s->records[0]);
}

static const char *check_sections(const struct learned_head *head, size_t bytes)
{
        const struct learned_section *before = NULL;
        size_t at = sizeof(*head);

        if (head->n_sections > LEARNED_MAX_SECTIONS)
                return "the file has too many sections";
        for (uint32_t i = 0; i < head->n_sections; i++) {
                const struct learned_section *s = (const void *)((const char *)head + at);

                if (bytes - at < sizeof(*s))
                        return "a section is truncated";
                if (s->n_chunks > LEARNED_MAX_CHUNKS || s->n_remembered > LEARNED_MAX_REMEMBERED ||
                    bytes - at < learned_section_bytes(s))
                        return "a section is longer than the file";
                if (s->tier >= LEARNED_TIERS || !memchr(s->policy, '\0', sizeof(s->policy)))
                        return "a section has an unknown kind";
                if (before && (s->tier < before->tier ||
                               (s->tier == before->tier && s->number <= before->number)))
                        return "the sections are not in order";
                before = s;
                at += learned_section_bytes(s);
        }
        return at == bytes ? NULL : "the file continues after its last section";
}

const char *learned_check(const void *file, size_t bytes)
{
        const struct learned_head *head = file;

        if (bytes < sizeof(*head) || memcmp(head->magic, magic, sizeof(magic)) != 0)
                return "not a file of saved eviction state";
        if (head->version != LEARNED_VERSION)
                return "the file has an unsupported version";
        if (head->bytes != bytes)
                return "the file does not have the length that it states";
        if (head->crc != crc_of(file, bytes))
                return "the file does not match its checksum";
        return check_sections(head, bytes);
}

const struct learned_section *learned_next(const struct learned_head *file,
                                           const struct learned_section *section)
{
        const char *at = section ? (const char *)section + learned_section_bytes(section)
                                 : (const char *)file + sizeof(*file);

        return at < (const char *)file + file->bytes ? (const void *)at : NULL;
}
