/* SPDX-License-Identifier: Apache-2.0 */
/* The store's bytes on disk, which volume/README.md explains. All numbers are little-endian, as on
 * every supported host. The functions at the end check a struct that was read, before any of its
 * fields is used. */
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
        DISK_VERSION = 1,
        DISK_UUID_BYTES = 16,
        DISK_SUPERBLOCKS = 4,     /* copies, one a page */
        DISK_NAMESPACE_FILES = 2, /* copies, one a file */
        DISK_PAGE_ENTRIES = 31,
        DISK_SEGMENTS_MAX = 16384,
        DISK_SIZES_MAX = 440,
};

/* Flags that this build knows. An unknown flag of the last two kinds refuses the store, because a
 * store is always opened for writing. */
#define DISK_COMPAT    UINT64_C(0)
#define DISK_RO_COMPAT UINT64_C(0)
#define DISK_INCOMPAT  DISK_INCOMPAT_VOID_PAGES

/* `void_pages` is not 0. Cleared once those pages have been erased. */
#define DISK_INCOMPAT_VOID_PAGES UINT64_C(1)

/* The data files from this segment up to that of the next record have chunks within this many
 * pages. 0: the files do not exist, or none of their slots is in use, and older entries that name
 * them are void. */
struct disk_size {
        uint32_t segment;
        uint32_t pages;
};

struct disk_superblock {
        uint8_t magic[8];              /*  0  DISK_SUPERBLOCK_MAGIC */
        uint32_t crc;                  /*  8  CRC32C of all that follows */
        uint32_t version;              /* 12  DISK_VERSION */
        uint64_t compat;               /* 16 */
        uint64_t ro_compat;            /* 24 */
        uint64_t incompat;             /* 32 */
        uint8_t uuid[DISK_UUID_BYTES]; /* 40  in every page of every other file */
        uint64_t generation;           /* 56  the highest valid copy counts */
        uint64_t created_ms;           /* 64 */
        uint64_t limit;                /* 72  as last opened */
        uint64_t segment_bytes; /* 80  of new segments, as last opened; each segment has its file's
                                   size */
        uint16_t volume_index;  /* 88  this volume's number in its set */
        uint16_t volume_count;  /* 90  numbers that the set has given out */
        uint32_t clean;         /* 92  1: closed properly */
        uint8_t set[DISK_UUID_BYTES]; /* 96  the same on all paths of a store of several; zero:
                                    it never had more than one */
        uint64_t set_limit;           /* 112  of all paths together, when `limit` was computed */
        uint32_t set_volumes;         /* 120  configured then; 0: it was not */
        uint32_t away; /* 124  1: the volume was offline while others of the set continued, and they
                          know of later purges */
        uint32_t unsynced;      /* 128  1: a sync has failed since the last startup, so that any
                                   number of the newest table pages may be lost */
        uint32_t void_position; /* 132  a write of the table failed, and may have been done all the
                                   same: from this page on ... */
        uint32_t void_pages;    /* 136  ... so many are to be erased before the table is read */
        uint32_t reserved0;     /* 140 */
        uint64_t doubt_seq; /* 144  a sync of data has failed: of chunks of sequences up to this one
                               the bytes may be in the page cache alone; 0: of none */
        uint8_t reserved1[104]; /* 152 */
        uint64_t seq_ceiling;   /* 256  no sequence has been given that is higher, nor is one before
                                   this   has been raised; 0: not kept */
        uint64_t page_ceiling;  /* 264  the same of the sequences of table pages */
        uint64_t ceiling_generation; /* 272  that of this copy, or the two are as an older daemon,
                                    which does not raise them, has found them */
        uint64_t sizes_seq;       /* 280  the last sequence given when `sizes` was computed: entries
                                     of later epochs are of segments cut after that */
        uint32_t n_sizes;         /* 288  0: not known */
        uint32_t table_pages;     /* 292  of the file "table", at the same time; 0: not known */
        uint64_t directory_inode; /* 296  at the same time; 0: not known */
        uint64_t table_inode;     /* 304  likewise */
        struct disk_size sizes[DISK_SIZES_MAX]; /* 312  ascending by segment */
        uint64_t rights;           /* 3832  digest of the access rights under which data files may
                                      have been lent; 0: not known */
        uint64_t sizes_generation; /* 3840  that of this copy, or all from sizes_seq on is as an
                                      older daemon, which does not maintain it, has found it */
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

/* An entry of this namespace, which no chunk is in, records a hand-over: from its epoch on the
 * segment is of its tenant, and all that older entries say of the segment is void. It names the
 * segment's first slot and has the lowest sequence there is, so that by every rule for entries,
 * those of a daemon that has never written one included, it is a dead one, whose epoch counts. */
enum { DISK_HANDOVER_NAMESPACE = 0, DISK_HANDOVER_SEQ = 1 };

enum disk_entry_flags {
        DISK_ENTRY_TOMBSTONE =
                1, /* key, namespace and seq count: nothing older of that key is there */
};

struct disk_entry {
        struct key key;       /*   0 */
        uint64_t seq;         /*  32  of the put or drop; the highest of a slot and of a key wins */
        uint32_t segment;     /*  40 */
        uint32_t slot_offset; /*  44  in pages */
        uint32_t slot_pages;  /*  48  size of the segment's slots since `segment_epoch` */
        uint32_t length;      /*  52  bytes of payload */
        uint32_t payload_crc; /*  56  CRC32C, unseeded */
        uint16_t tenant;      /*  60 */
        uint16_t flags;       /*  62  enum disk_entry_flags; an unknown bit voids the entry */
        uint32_t namespace_id;  /*  64 */
        uint32_t reserved0;     /*  68 */
        uint64_t created_ms;    /*  72 */
        uint8_t parent[8];      /*  80  first bytes of the parent's key; zero: root, or not known */
        uint64_t segment_epoch; /*  88  seq when the segment was cut into these slots; only the
                                   highest counts */
        uint8_t reserved[28];   /*  96 */
        uint32_t crc;           /* 124  CRC32C of the store's uuid and of all before this, turned:
                                   disk_entry_crc() */
};
static_assert(sizeof(struct disk_entry) == 128, "disk format");
static_assert(offsetof(struct disk_entry, seq) == 32, "disk format");
static_assert(offsetof(struct disk_entry, namespace_id) == 64, "disk format");
static_assert(offsetof(struct disk_entry, segment_epoch) == 88, "disk format");
static_assert(offsetof(struct disk_entry, crc) == 124, "disk format");

struct disk_page {
        uint32_t magic;                /*  0  DISK_PAGE_MAGIC */
        uint32_t crc;                  /*  4  CRC32C of all that follows */
        uint8_t uuid[DISK_UUID_BYTES]; /*  8 */
        uint64_t sequence;   /* 24  of pages: one more than the page written before; the highest is
                                the newest */
        uint32_t position;   /* 32  of this page in the file, in pages */
        uint16_t count;      /* 36  of entries */
        uint16_t reserved0;  /* 38 */
        uint32_t ring_pages; /* 40  of the ring when this was written */
        uint32_t safe;       /* 44  so many pages after this one hold nothing that is needed */
        uint64_t run_sequence; /* 48  from it on each page is one more than the one before it; since
                                  the ring started, or the first of its round when it grew */
        uint8_t reserved[72];  /* 56 */
        struct disk_entry entries[DISK_PAGE_ENTRIES]; /* 128 */
};
static_assert(sizeof(struct disk_page) == DISK_PAGE, "disk format");
static_assert(offsetof(struct disk_page, entries) == 128, "disk format");
#define DISK_PAGE_MAGIC UINT32_C(0x5054564b) /* "KVTP" */

/* A namespaces file: this header, `count` records, ascending by id, and the epochs of what volumes
 * have missed. */
struct disk_namespaces {
        uint8_t magic[8];              /*  0  DISK_NAMESPACES_MAGIC */
        uint32_t crc;                  /*  8  CRC32C of what follows, up to `bytes` */
        uint32_t count;                /* 12 */
        uint8_t uuid[DISK_UUID_BYTES]; /* 16 */
        uint64_t generation;           /* 32  the highest valid copy counts */
        uint64_t bytes;                /* 40  this header and all records */
        uint64_t purge_seq;            /* 48  of purging everything: entries up to it are dead */
        uint32_t next_id;    /* 56  ids below have been given. At UINT32_MAX those of removed
                                namespaces are given again */
        uint32_t reserved0;  /* 60 */
        uint64_t set_epoch;  /* 64  of a store of several volumes: moves when a volume that is not
                                there begins to miss purges or drops */
        uint64_t set_missed; /* 72  paths, by bit, that have missed some ... */
        uint64_t set_missed_at;  /* 80  ... by this epoch at the latest; an older version knows only
                                    this one. See set_missed_count */
        uint64_t set_removed_at; /* 88  the last epoch at which a namespace was removed */
        uint64_t set_emptied_at; /* 96  this volume has been emptied for all that it had missed by
                                    this epoch, plus 1; 0: written by a version that did not say */
        uint32_t set_missed_count; /* 104  after the records, beyond `bytes`: of so many paths, by
                                      number, the epoch (64 bits) by which each has missed some; 0:
                                      it has not. None: set_missed_at holds for each. Where
                                      set_claims_count is 0 */
        uint32_t set_missed_crc;   /* 108  CRC32C of those epochs */
        /* Number of volumes whose claims follow those epochs. Each volume's claims are, by number
         * of a volume, the epoch by which that volume has missed something, and for the volume
         * itself the epochs for which it has been emptied; and finally, for each volume, the last
         * epoch at which a namespace was removed according to it. 0: the fields above apply. */
        uint32_t set_claims_count; /* 112 */
        uint32_t set_claims_crc;   /* 116  CRC32C of those */
        uint8_t reserved[8];       /* 120 */
};
static_assert(sizeof(struct disk_namespaces) == 128, "disk format");
static_assert(offsetof(struct disk_namespaces, set_claims_count) == 112, "disk format");
static_assert(offsetof(struct disk_namespaces, purge_seq) == 48, "disk format");
static_assert(offsetof(struct disk_namespaces, set_missed_at) == 80, "disk format");
static_assert(offsetof(struct disk_namespaces, set_removed_at) == 88, "disk format");
static_assert(offsetof(struct disk_namespaces, set_missed_count) == 104, "disk format");
#define DISK_NAMESPACES_MAGIC "KVCNAMES"

struct disk_namespace {  /* then name and fingerprint, without NUL, padded with zeros to 8 bytes */
        uint32_t id;     /*  0 */
        uint16_t tenant; /*  4 */
        uint16_t name_length;        /*  6 */
        uint16_t fingerprint_length; /*  8 */
        uint16_t lifetime; /* 10  of its chunks: disk_lifetime_decode(); 0: no end, as of a version
                              that knows of none */
        uint32_t owner;    /* 12  user id of who made it, plus 1; 0: not known */
        uint64_t chunk_bytes; /* 16  declared; 0: none */
        uint64_t purge_seq;   /* 24  entries of this namespace up to it are dead: purged, or of
                                 another namespace that had the id before */
        uint64_t created_ms;  /* 32 */
};
static_assert(sizeof(struct disk_namespace) == 40, "disk format");

/* A lifetime in seconds, as 11 bits of mantissa and 5 of exponent: exact up to 2,047 s, and rounded
 * up by less than a thousandth above, so that no chunk expires too early. */
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

/* Computes an entry's CRC, turned by 15 bits. Without the turn, bytes followed by their own CRC
 * look the same to a CRC over both, so the page's CRC would not detect that an entry was replaced
 * by another whole one, and the sectors of a torn page would pass for one page. */
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

/* Returns whether the page is whole and belongs to this store and this position. */
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
