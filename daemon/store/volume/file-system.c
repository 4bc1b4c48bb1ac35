/* SPDX-License-Identifier: Apache-2.0 */
/* The table names the file systems on which a host may have its store. kvcachectl doctor judges
 * others as well, by name (client/ctl/doctor-host.c). */
#include "store/volume/file-system.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include "checked.h"

static const struct file_system file_systems[] = {
        { EXT4_SUPER_MAGIC, "ext4", "", false },
        { XFS_SUPER_MAGIC, "xfs", "", false },
        { BTRFS_SUPER_MAGIC, "btrfs", "", false },
        { F2FS_SUPER_MAGIC, "f2fs", "", false },
        { NFS_SUPER_MAGIC, "nfs", "", false },
        { TMPFS_MAGIC, "tmpfs",
          "tmpfs is memory: chunks take memory and are lost at a reboot; put store.path on a disk",
          true },
        { RAMFS_MAGIC, "ramfs",
          "ramfs is memory without a bound: chunks take memory and are lost at a reboot; put "
          "store.path on a disk",
          true },
        { OVERLAYFS_SUPER_MAGIC, "overlay",
          "overlay is the layer of a container: chunks are lost with the container; mount a volume "
          "of the host at store.path",
          false },
};

static const struct file_system unknown = { 0, "", "", false };

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
