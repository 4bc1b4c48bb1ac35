/* SPDX-License-Identifier: Apache-2.0 */
/* Loads librados. The library stays loaded until the process ends, because its threads may outlive
 * the back end. */
#include "remote/librados.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

int librados_open(struct librados *ret, char ret_error[static 256])
{
        struct librados l = { .dl = dlopen("librados.so.2",
                                           RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
        const char *missing = NULL;

        if (!l.dl) {
                snprintf(ret_error, 256,
                         "remote.backend: rados needs librados.so.2, which cannot be loaded (%s): "
                         "install librados2 (Debian, Ubuntu, Fedora)",
                         dlerror());
                return -ELIBACC;
        }
#define X(name, type, arguments)                                                                   \
        *(void **)&l.name = dlsym(l.dl, "rados_" #name);                                           \
        if (!l.name && !missing)                                                                   \
                missing = "rados_" #name;
        LIBRADOS_FUNCTIONS(X)
#undef X
        if (missing) {
                snprintf(ret_error, 256,
                         "remote.backend: rados needs librados.so.2 of Ceph 14 or later: the "
                         "installed library has no %s()",
                         missing);
                dlclose(l.dl);
                return -ELIBACC;
        }
        *ret = l;
        return 0;
}
