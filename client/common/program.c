/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"

static bool is_program(const char *path)
{
        struct stat st;

        return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* Tries the directory `between` in `directory`. Returns false if it does not have the program
 * `name`, or if the path does not fit `ret`. */
static bool try(const char *directory, size_t length, const char *between, const char *name,
                char *ret, size_t room)
{
        int n = snprintf(ret, room, "%.*s/%s%s%s", (int)length, directory, between,
                         *between ? "/" : "", name);

        return n >= 0 && (size_t)n < room && is_program(ret);
}

bool program_find(const char *name, const char *const *directories, char *ret, size_t room)
{
        char self[512];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        const char *path = getenv("PATH"), *slash;

        self[MAX(n, (ssize_t)0)] = '\0';
        slash = strrchr(self, '/');
        for (; slash && *directories; directories++)
                if (try(self, (size_t)(slash - self), *directories, name, ret, room))
                        return true;
        while (path && *path) {
                size_t length = strcspn(path, ":");

                if (length > 0 && try(path, length, "", name, ret, room))
                        return true;
                path += length + (path[length] == ':');
        }
        return false;
}
