/* SPDX-License-Identifier: Apache-2.0 */
/* Implements stale-socket.h. Any thread. */
#include "base/stale-socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"

int stale_socket_remove(const struct sockaddr_un *address, int type)
{
        _cleanup_(closep) int fd = -1;
        struct stat st;

        if (lstat(address->sun_path, &st) < 0)
                return errno == ENOENT ? 0 : -errno;
        if (!S_ISSOCK(st.st_mode))
                return -EEXIST;
        fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        /* Only ECONNREFUSED says that no process listens. With another error a process may have a
         * full backlog, or a socket of another type or of another user. */
        if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
            (errno != ECONNREFUSED && errno != ENOENT))
                return -EADDRINUSE;
        return unlink(address->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}
