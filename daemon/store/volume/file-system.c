/* SPDX-License-Identifier: Apache-2.0 */
/* The table of known file systems. The log, the status and kvcachectl doctor repeat its
 * sentences. */
#include "store/volume/file-system.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include "checked.h"

/* Magic numbers that <linux/magic.h> lacks. */
#define ZFS_SUPER_MAGIC 0x2fc12fc1
#define BCACHEFS_MAGIC  0xca451a4eul
#define LUSTRE_MAGIC    0x0bd00bd0

static const char copies[] = "the file system copies on write: each write takes new space; use XFS "
                             "or ext4, or disable copy-on-write for the directory (chattr +C)";
static const char copies_always[] =
        "the file system copies on write: each write takes new space; use XFS or ext4";
static const char network[] =
        "the file system is on the network: the shared tier is made for that; put store.path on a "
        "local disk, and use remote: for the network";

static const struct file_system file_systems[] = {
        { EXT4_SUPER_MAGIC, "ext4", "", "", false },
        { XFS_SUPER_MAGIC, "xfs", "", "", false },
        { F2FS_SUPER_MAGIC, "f2fs", "", "", false },
        { TMPFS_MAGIC, "tmpfs",
          "tmpfs is memory: chunks take memory and are lost at a reboot; put store.path on a disk",
          "", true },
        { RAMFS_MAGIC, "ramfs",
          "ramfs is memory without a bound: chunks take memory and are lost at a reboot; put "
          "store.path on a disk",
          "", true },
        { OVERLAYFS_SUPER_MAGIC, "overlay",
          "overlay is the layer of a container: chunks are lost with the container; mount a volume "
          "of the host at store.path",
          "", false },
        { BTRFS_SUPER_MAGIC, "btrfs", "", copies, false },
        { ZFS_SUPER_MAGIC, "zfs", "", copies_always, false },
        { BCACHEFS_MAGIC, "bcachefs", "", copies, false },
        { NFS_SUPER_MAGIC, "nfs", "", network, false },
        { CIFS_SUPER_MAGIC, "cifs", "", network, false },
        { SMB2_SUPER_MAGIC, "cifs", "", network, false },
        { CEPH_SUPER_MAGIC, "ceph", "", network, false },
        { LUSTRE_MAGIC, "lustre", "", network, false },
};

static const struct file_system unknown = {
        0, "", "", "the store has not been tried on this kind of file system; use XFS or ext4",
        false
};

const struct file_system *file_system_by_magic(unsigned long magic)
{
        for (unsigned i = 0; i < ARRAY_SIZE(file_systems); i++)
                if (file_systems[i].magic == magic)
                        return &file_systems[i];
        return &unknown;
}

const struct file_system *file_system_of(int fd)
{
        struct statfs fs;

        return fstatfs(fd, &fs) < 0 ? &unknown : file_system_by_magic((unsigned long)fs.f_type);
}
