/* SPDX-License-Identifier: Apache-2.0 */
/* Reports whether this build supports a volume's format, for operators before an upgrade or a
 * downgrade. Reads the superblock, and checks it with the function that opening a volume uses.
 * Blocks; runs on any thread; keeps no state. It is an error if the superblock cannot be read, but
 * not if this build would refuse the volume. */
#include <stdio.h>
#include <string.h>

#include "store/volume/dir.h"
#include "store/volume/volume.h"

/* Appends the name of a feature to the list; without `has_name`, also its flags as a number. */
static void add_feature(struct store_format *format, const char *name, uint64_t flags,
                        bool has_name)
{
        size_t used = strlen(format->features);
        char *end = format->features + used;

        if (flags == 0)
                return;
        snprintf(end, sizeof(format->features) - used, "%s%s", used > 0 ? ", " : "", name);
        used = strlen(format->features);
        end = format->features + used;
        if (!has_name)
                snprintf(end, sizeof(format->features) - used, " %#llx", (unsigned long long)flags);
}

int volume_read_format(const char *path, struct store_format *ret,
                       char ret_error[static STORE_ERROR_BYTES])
{
        struct disk_superblock sb;
        int r = dir_read_superblock(path, &sb, ret_error);

        if (r < 0)
                return r;
        ret_error[0] = '\0';
        *ret = (struct store_format){
                .version = sb.version,
                .compat = sb.compat,
                .ro_compat = sb.ro_compat,
                .incompat = sb.incompat,
                .opens = dir_check_format(path, &sb, ret_error) == 0,
                .version_known = DISK_VERSION,
                .compat_known = DISK_COMPAT,
                .ro_compat_known = DISK_RO_COMPAT,
                .incompat_known = DISK_INCOMPAT,
        };
        add_feature(ret, "void-pages", sb.incompat & DISK_INCOMPAT_VOID_PAGES, true);
        add_feature(ret, "incompat", sb.incompat & ~DISK_INCOMPAT_VOID_PAGES, false);
        add_feature(ret, "ro_compat", sb.ro_compat, false);
        return 0;
}
