/* SPDX-License-Identifier: Apache-2.0 */
/* The disk format of a volume, which volume/README.md explains. All numbers are little-endian, as
 * on every supported host. A sequence is a number from one rising counter of the volume, which each
 * put, drop, purge and cut takes; table pages have a counter of their own. A segment is cut when it
 * is divided into slots of one size; its epoch is the sequence of the cut. An entry that is void or
 * dead is ignored by recovery. The set is all volumes that have formed one store. The functions at
 * the end check a struct that was read, before any of its fields is used. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "io/io.h"
#include "key.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the disk format is written as it lies in memory");

enum {
        DISK_PAGE = 4096, /* unit of every file: of slots, table pages and superblock copies */
        DISK_VERSION = 1, /* format version; a volume with another one is refused */
        DISK_UUID_BYTES = 16,
        DISK_SUPERBLOCKS = 4,      /* copies of the superblock, one per page */
        DISK_NAMESPACE_FILES = 2,  /* copies of the list of namespaces, one per file */
        DISK_PAGE_ENTRIES = 31,    /* most entries in a table page */
        DISK_SEGMENTS_MAX = 16384, /* most data files of a volume */
        DISK_SIZES_MAX = 440,      /* most elements of disk_superblock.sizes */
};

/* Feature flags that this build knows. A volume with an unknown compat flag is opened; one with an
 * unknown ro_compat or incompat flag is refused, because a volume is always opened for writing. */
#define DISK_COMPAT    UINT64_C(0)
#define DISK_RO_COMPAT UINT64_C(0)
#define DISK_INCOMPAT  DISK_INCOMPAT_VOID_PAGES

/* disk_superblock.void_pages is not 0. The flag is cleared once these pages have been erased. */
#define DISK_INCOMPAT_VOID_PAGES UINT64_C(1)

/* The size of a range of data files, from number `segment` up to, but not including, that of the
 * next element: all chunks of these files lie within the first `pages` pages. If `pages` is 0, the
 * files do not exist or have not been cut; table entries that name them, of epochs up to sizes_seq,
 * are void. */
struct disk_size {
        uint32_t segment;
        uint32_t pages;
};

struct disk_superblock {
        uint8_t magic[8];   /*  0  DISK_SUPERBLOCK_MAGIC */
        uint32_t crc;       /*  8  CRC32C of the bytes after this field */
        uint32_t version;   /* 12  DISK_VERSION */
        uint64_t compat;    /* 16  feature flags that a version without them may ignore */
        uint64_t ro_compat; /* 24  feature flags that a version without them may read but not write
                             */
        uint64_t incompat;  /* 32  feature flags that a version without them must refuse */
        uint8_t uuid[DISK_UUID_BYTES]; /* 40  identifies the volume; repeated in every table page
                                          and namespaces file */
        uint64_t generation; /* 56  raised by each write; the valid copy with the highest generation
                                is used */
        uint64_t created_ms; /* 64  Unix time at which the volume was made */
        uint64_t limit; /* 72  share of store.limit, in bytes, when the volume was last opened */
        uint64_t segment_bytes;       /* 80  size of new data files when the volume was last opened;
                                         existing ones keep their size */
        uint16_t volume_index;        /* 88  this volume's number in its set */
        uint16_t volume_count;        /* 90  how many volume numbers the set has given out */
        uint32_t clean;               /* 92  1: the volume was closed properly */
        uint8_t set[DISK_UUID_BYTES]; /* 96  uuid of the set, the same on all its volumes; zero: the
                                         store never had more than one volume */
        uint64_t set_limit;           /* 112  store.limit when `limit` was computed */
        uint32_t set_volumes; /* 120  number of volumes in the configuration when `limit` was
                                 computed; 0: unknown */
        uint32_t away; /* 124  1: the volume was offline while others of the set were in use, and
                          may have missed purges */
        uint32_t unsynced; /* 128  1: a sync has failed since the last startup, so any number of the
                              newest table pages may be lost */
        uint32_t void_position; /* 132  first page of a table write that failed, and that may
                                   nevertheless have reached the disk */
        uint32_t void_pages; /* 136  number of these pages; recovery erases them before it reads the
                                table */
        uint32_t reserved0;  /* 140 */
        uint64_t doubt_seq; /* 144  a sync of a data file or directory has failed: chunks up to this
                               sequence may exist in the page cache only; 0: none has failed */
        uint8_t reserved1[104]; /* 152 */
        uint64_t seq_ceiling;  /* 256  upper bound of the sequences of entries; it is raised on disk
                                  before a higher one is assigned; 0: not maintained */
        uint64_t page_ceiling; /* 264  upper bound of the sequences of table pages, maintained like
                                  seq_ceiling */
        uint64_t ceiling_generation; /* 272  equals `generation`; otherwise an older daemon, which
                                        does not raise the two bounds, wrote this copy, and they are
                                        void */
        uint64_t sizes_seq; /* 280  the last sequence assigned before `sizes` was computed: entries
                               with higher epochs belong to segments that were cut later */
        uint32_t
                n_sizes; /* 288  number of elements of `sizes` in use; 0: the sizes are not known */
        uint32_t table_pages; /* 292  number of pages of the file "table" when `sizes` was computed;
                                 0: not known */
        uint64_t directory_inode; /* 296  inode of the volume's directory when `sizes` was computed;
                                     0: not known */
        uint64_t table_inode; /* 304  inode of the file "table" when `sizes` was computed; 0: not
                                 known */
        struct disk_size sizes[DISK_SIZES_MAX]; /* 312  in ascending order of segment */
        uint64_t rights;           /* 3832  digest of the access rights under which data files may
                                      have been lent; 0: not known */
        uint64_t sizes_generation; /* 3840  equals `generation`; otherwise an older daemon, which
                                      does not maintain the fields from sizes_seq on, wrote this
                                      copy, and they are void */
        uint8_t reserved[248];     /* 3848 */
};
static_assert(sizeof(struct disk_superblock) == DISK_PAGE, "disk format");
static_assert(offsetof(struct disk_superblock, uuid) == 40, "disk format");
static_assert(offsetof(struct disk_superblock, clean) == 92, "disk format");
static_assert(offsetof(struct disk_superblock, away) == 124, "disk format");
static_assert(offsetof(struct disk_superblock, unsynced) == 128, "disk format");
static_assert(offsetof(struct disk_superblock, void_position) == 132, "disk format");
static_assert(offsetof(struct disk_superblock, doubt_seq) == 144, "disk format");
static_assert(offsetof(struct disk_superblock, seq_ceiling) == 256, "disk format");
static_assert(offsetof(struct disk_superblock, ceiling_generation) == 272, "disk format");
static_assert(offsetof(struct disk_superblock, sizes_seq) == 280, "disk format");
static_assert(offsetof(struct disk_superblock, sizes) == 312, "disk format");
static_assert(offsetof(struct disk_superblock, reserved) == 3848, "disk format");
#define DISK_SUPERBLOCK_MAGIC "KVCSTORE"

/* Namespace and sequence of an entry that records a hand-over: from the entry's epoch on, the
 * segment belongs to the entry's tenant, and all older entries for the segment are void. No chunk
 * is in this namespace. The entry names the segment's first slot and has the lowest possible
 * sequence. So a daemon that does not know hand-overs treats the entry as superseded, and uses only
 * its epoch. */
enum { DISK_HANDOVER_NAMESPACE = 0, DISK_HANDOVER_SEQ = 1 };

enum disk_entry_flags {
        DISK_ENTRY_TOMBSTONE = 1, /* the entry is a tombstone: older entries of its key and
                                     namespace are void; the fields of slot and chunk are unused */
};

struct disk_entry {
        struct key key;   /*   0 */
        uint64_t seq;     /*  32  sequence of the put or drop. Of several entries of one slot or one
                             key, only the one with the highest sequence counts */
        uint32_t segment; /*  40 */
        uint32_t slot_offset;  /*  44  offset of the slot in the data file, in pages */
        uint32_t slot_pages;   /*  48  size of the segment's slots in pages */
        uint32_t length;       /*  52  bytes of payload */
        uint32_t payload_crc;  /*  56  CRC32C of the payload */
        uint16_t tenant;       /*  60 */
        uint16_t flags;        /*  62  enum disk_entry_flags; an unknown bit voids the entry */
        uint32_t namespace_id; /*  64 */
        uint32_t reserved0;    /*  68 */
        uint64_t created_ms;   /*  72  Unix time of the put */
        uint8_t parent[8]; /*  80  first bytes of the parent's key; zeros if the chunk is a root, or
                              the parent is not known */
        uint64_t segment_epoch; /*  88  sequence of the moment when the segment was cut into these
                                   slots; only entries with the highest epoch of their segment count
                                 */
        uint8_t reserved[28];   /*  96 */
        uint32_t crc; /* 124  CRC32C of the volume's uuid and of all fields before this one,
                         rotated: disk_entry_crc() */
};
static_assert(sizeof(struct disk_entry) == 128, "disk format");
static_assert(offsetof(struct disk_entry, seq) == 32, "disk format");
static_assert(offsetof(struct disk_entry, namespace_id) == 64, "disk format");
static_assert(offsetof(struct disk_entry, segment_epoch) == 88, "disk format");
static_assert(offsetof(struct disk_entry, crc) == 124, "disk format");

struct disk_page {
        uint32_t magic;                /*  0  DISK_PAGE_MAGIC */
        uint32_t crc;                  /*  4  CRC32C of the bytes after this field */
        uint8_t uuid[DISK_UUID_BYTES]; /*  8 */
        uint64_t sequence;     /* 24  one more than the sequence of the page written before */
        uint32_t position;     /* 32  offset of this page in the file, in pages */
        uint16_t count;        /* 36  number of entries */
        uint16_t reserved0;    /* 38 */
        uint32_t ring_pages;   /* 40  number of pages of the ring when this page was written */
        uint32_t safe;         /* 44  number of pages after this one that hold no live entry */
        uint64_t run_sequence; /* 48  sequence of the oldest page from which on all pages are known
                                  to have been written without a gap: the first page after the
                                  newest gap that a startup found, or the page at the beginning of
                                  the file when the ring grew */
        uint8_t reserved[72];  /* 56 */
        struct disk_entry entries[DISK_PAGE_ENTRIES]; /* 128 */
};
static_assert(sizeof(struct disk_page) == DISK_PAGE, "disk format");
static_assert(offsetof(struct disk_page, entries) == 128, "disk format");
#define DISK_PAGE_MAGIC UINT32_C(0x5054564b) /* "KVTP" */

/* The header of a namespaces file. It is followed by `count` records in ascending order of id, and
 * by the record of the purges and drops that volumes have missed (store/membership.c). */
struct disk_namespaces {
        uint8_t magic[8];              /*  0  DISK_NAMESPACES_MAGIC */
        uint32_t crc;                  /*  8  CRC32C of the bytes after this field, up to `bytes` */
        uint32_t count;                /* 12  number of records */
        uint8_t uuid[DISK_UUID_BYTES]; /* 16 */
        uint64_t generation; /* 32  raised by each change of the list; the valid file with the
                                highest generation is used */
        uint64_t bytes;      /* 40  length of this header and all records */
        uint64_t purge_seq;  /* 48  sequence of the last purge of everything: entries up to it are
                                dead */
        uint32_t next_id; /* 56  the next id to assign; at UINT32_MAX, ids of removed namespaces are
                             assigned again */
        uint32_t reserved0;     /* 60 */
        uint64_t set_epoch;     /* 64  in a store of several volumes: raised when an offline volume
                                   begins to miss purges or drops */
        uint64_t set_missed;    /* 72  for versions that keep one epoch per volume: the volumes that
                                   have missed purges or drops, one bit for each number in the set */
        uint64_t set_missed_at; /* 80  for versions that keep one epoch per volume: the latest epoch
                                   at which one of the volumes in set_missed missed something */
        uint64_t set_removed_at; /* 88  the last epoch at which a namespace was removed */
        uint64_t set_emptied_at; /* 96  1 + the epoch up to which this volume has been emptied for
                                    everything that it had missed; 0: written by a version without
                                    this field */
        /* Number of 64-bit epochs that follow the records, after `bytes`: for each volume, by
         * number in the set, the latest epoch at which it missed something, or 0. Read only if
         * set_claims_count is 0. If this field is 0, too, set_missed_at applies to each volume in
         * set_missed. */
        uint32_t set_missed_count; /* 104 */
        uint32_t set_missed_crc;   /* 108  CRC32C of these epochs */
        /* Number n of volumes in the record of claims (store/membership.c), which follows these
         * epochs: n rows of n epochs, and n more epochs. Row i has, for each claimant, the last
         * epoch at which volume i missed something; the row of the volume that owns this file has
         * instead the epochs for which it has been emptied. The last n epochs are, for each
         * claimant, when a namespace was last removed. 0: there is no record of claims, and the
         * fields above apply. */
        uint32_t set_claims_count; /* 112 */
        uint32_t set_claims_crc;   /* 116  CRC32C of the record of claims */
        uint8_t reserved[8];       /* 120 */
};
static_assert(sizeof(struct disk_namespaces) == 128, "disk format");
static_assert(offsetof(struct disk_namespaces, set_claims_count) == 112, "disk format");
static_assert(offsetof(struct disk_namespaces, purge_seq) == 48, "disk format");
static_assert(offsetof(struct disk_namespaces, set_missed_at) == 80, "disk format");
static_assert(offsetof(struct disk_namespaces, set_removed_at) == 88, "disk format");
static_assert(offsetof(struct disk_namespaces, set_missed_count) == 104, "disk format");
#define DISK_NAMESPACES_MAGIC "KVCNAMES"

struct disk_namespace {  /* followed by name and fingerprint, without NUL, padded with zeros to a
                            multiple of 8 bytes */
        uint32_t id;     /*  0  ascending */
        uint16_t tenant; /*  4 */
        uint16_t name_length;        /*  6 */
        uint16_t fingerprint_length; /*  8 */
        uint16_t lifetime; /* 10  lifetime of the namespace's chunks, see disk_lifetime_decode(); 0:
                              unlimited, or written by a version without lifetimes */
        uint32_t owner;    /* 12  1 + the uid of the user that created it; 0: unknown */
        uint64_t chunk_bytes; /* 16  declared size of the chunks in bytes; 0: none declared */
        uint64_t
                purge_seq; /* 24  entries of this id up to this sequence are dead, because they were
                              purged, or belong to a removed namespace that had the id before */
        uint64_t created_ms; /* 32 */
};
static_assert(sizeof(struct disk_namespace) == 40, "disk format");

/* The code of a lifetime in seconds has 11 bits of mantissa and 5 of exponent. It is exact up to
 * 2,047 s; longer lifetimes are rounded up by less than a thousandth, so that no chunk expires too
 * early. */
enum { DISK_LIFETIME_MANTISSA_BITS = 11, DISK_LIFETIME_MANTISSA = 0x7ff };

static inline uint32_t disk_lifetime_decode(uint16_t code)
{
        uint64_t seconds = (uint64_t)(code & DISK_LIFETIME_MANTISSA)
                           << (code >> DISK_LIFETIME_MANTISSA_BITS);

        return seconds < UINT32_MAX ? (uint32_t)seconds : UINT32_MAX;
}

static inline uint16_t disk_lifetime_encode(uint32_t seconds)
{
        uint64_t mantissa = seconds;
        unsigned exponent = 0;

        while (mantissa > DISK_LIFETIME_MANTISSA) {
                exponent++;
                mantissa = (seconds + (UINT64_C(1) << exponent) - 1) >> exponent;
        }
        return (uint16_t)(exponent << DISK_LIFETIME_MANTISSA_BITS | mantissa);
}

static inline uint32_t disk_superblock_crc(const struct disk_superblock *sb)
{
        return kio_crc32c(&sb->version, sizeof(*sb) - offsetof(struct disk_superblock, version));
}

static inline uint32_t disk_page_crc(const struct disk_page *page)
{
        return kio_crc32c(page->uuid, sizeof(*page) - offsetof(struct disk_page, uuid));
}

/* Computes an entry's CRC, rotated by 15 bits. Bytes that are followed by their own unrotated CRC
 * always contribute the same value to a CRC over both. So without the rotation the page's CRC would
 * not detect an entry that was replaced by another valid one, and a torn page with sectors of two
 * writes would be valid. */
static inline uint32_t disk_entry_crc(const struct disk_entry *entry,
                                      const uint8_t uuid[static DISK_UUID_BYTES])
{
        uint32_t crc = kio_crc32c_extend(kio_crc32c(uuid, DISK_UUID_BYTES), entry,
                                         offsetof(struct disk_entry, crc));

        return crc << 15 | crc >> 17;
}

static inline bool disk_entry_is_handover(const struct disk_entry *entry)
{
        return entry->namespace_id == DISK_HANDOVER_NAMESPACE &&
               !(entry->flags & DISK_ENTRY_TOMBSTONE);
}

/* Returns whether the page is whole and belongs to the volume with this uuid and to this
 * position. */
static inline bool disk_page_valid(const struct disk_page *page,
                                   const uint8_t uuid[static DISK_UUID_BYTES], uint32_t position)
{
        return page->magic == DISK_PAGE_MAGIC && page->position == position &&
               page->count <= DISK_PAGE_ENTRIES && page->sequence > 0 &&
               page->sequence < UINT64_MAX / 2 && memcmp(page->uuid, uuid, DISK_UUID_BYTES) == 0 &&
               page->crc == disk_page_crc(page);
}

static inline bool disk_entry_valid(const struct disk_entry *entry,
                                    const uint8_t uuid[static DISK_UUID_BYTES])
{
        return (entry->flags & ~DISK_ENTRY_TOMBSTONE) == 0 && entry->seq > 0 &&
               entry->seq < UINT64_MAX / 2 && entry->crc == disk_entry_crc(entry, uuid);
}
