/* SPDX-License-Identifier: Apache-2.0 */
#include "data-file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "common.h"
#include "suggest.h"
#include "yaml-file.h"

#include "build-config.h"

DEFINE_CLEANUP(DIR *, closedir);

/* Gets the directory of this program, relative to which both an installation and a build find their
 * data. */
static bool program_directory(char ret[static DATA_FILE_BYTES])
{
        ssize_t n = readlink("/proc/self/exe", ret, DATA_FILE_BYTES - 1);
        char *slash;

        if (n < 0)
                return false;
        ret[n] = '\0';
        slash = strrchr(ret, '/');
        if (!slash)
                return false;
        *slash = '\0';
        return true;
}

/* Adds the directory `base` + `data` / `folder`, unless it equals the one before it, its path is
 * too long, or it does not exist although `base` is the program's directory. With an empty `base`,
 * a missing directory is added, so that an error message lists it. Returns the number of
 * directories. */
static size_t add_directory(const char *base, const char *data, const char *folder,
                            char ret[static DATA_FILE_DIRECTORIES][DATA_FILE_BYTES], size_t n)
{
        char path[2 * DATA_FILE_BYTES];
        _cleanup_(freep) char *real = NULL;

        snprintf(path, sizeof(path), "%s%s/%s", base, data, folder);
        real = realpath(path, NULL);
        if (real)
                snprintf(path, sizeof(path), "%s", real);
        if ((!real && *base) || strlen(path) >= DATA_FILE_BYTES ||
            (n > 0 && strcmp(path, ret[n - 1]) == 0))
                return n;
        strcpy(ret[n], path);
        return n + 1;
}

size_t data_file_directories(const char *folder,
                             char ret[static DATA_FILE_DIRECTORIES][DATA_FILE_BYTES])
{
        const char *override = getenv("KVCACHE_DATA_DIR");
        char self[DATA_FILE_BYTES];
        size_t n = 0;

        if (override && *override)
                return add_directory("", override, folder, ret, 0);
        if (program_directory(self))
                n = add_directory(self, "/" KVCACHE_DATADIR_FROM_BIN, folder, ret, n);
        n = add_directory("", KVCACHE_DATADIR, folder, ret, n);
        if (program_directory(self)) /* may be BUILD/client/bench/ of a source tree */
                n = add_directory(self, "/../../../conf", folder, ret, n);
        return n;
}

const char *data_file_of_example(const char *name)
{
        static const char folder[] = "examples/", prefix[] = "model_";
        const size_t folder_bytes = strlen(folder), prefix_bytes = strlen(prefix);
        const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
        size_t before = (size_t)(base - name);

        if (slash &&
            (before < folder_bytes || memcmp(base - folder_bytes, folder, folder_bytes) != 0 ||
             (before > folder_bytes && base[-(ptrdiff_t)folder_bytes - 1] != '/')))
                return NULL;
        if (strncmp(base, prefix, prefix_bytes) == 0)
                return base + prefix_bytes;
        return slash ? base : NULL;
}

void data_file_note(const char *name, const char *path)
{
        char shown[KVBENCH_SHOWN_BYTES];

        if (data_file_of_example(name) && strcmp(name, path) != 0)
                complain(0, "%s: %s; using %s", yaml_file_shown(name, shown, sizeof(shown)),
                         strerror(ENOENT), path);
}

/* Searches the data directories for a name without '/', as given and with ".yaml". Returns whether
 * a file was found; `ret` is its path. */
static bool find_named(const char *folder, const char *name, char ret[static DATA_FILE_BYTES])
{
        char directories[DATA_FILE_DIRECTORIES][DATA_FILE_BYTES];
        size_t n = data_file_directories(folder, directories);

        for (size_t i = 0; i < n && *name; i++) {
                static const char *const ends[] = { "", ".yaml" };

                for (size_t k = 0; k < ARRAY_SIZE(ends); k++)
                        if (snprintf(ret, DATA_FILE_BYTES, "%s/%s%s", directories[i], name,
                                     ends[k]) < DATA_FILE_BYTES &&
                            access(ret, F_OK) == 0)
                                return true;
        }
        return false;
}

bool data_file_find(const char *folder, const char *name, char ret[static DATA_FILE_BYTES])
{
        const char *example = data_file_of_example(name);

        if (access(name, F_OK) == 0 || errno != ENOENT) {
                snprintf(ret, DATA_FILE_BYTES, "%s", name);
                return strlen(name) < DATA_FILE_BYTES;
        }
        if (!strchr(name, '/') && find_named(folder, name, ret))
                return true;
        return example && find_named(folder, example, ret);
}

/* Gets the name of a YAML file without its extension. Returns false for another file. */
static bool stem_of(const struct dirent *entry, char ret[static KVBENCH_SHOWN_BYTES])
{
        const char *end = strrchr(entry->d_name, '.');
        size_t n = end ? (size_t)(end - entry->d_name) : 0;

        if (n == 0 || n >= KVBENCH_SHOWN_BYTES || strcmp(end, ".yaml") != 0)
                return false;
        snprintf(ret, KVBENCH_SHOWN_BYTES, "%.*s", (int)n, entry->d_name);
        return true;
}

void data_file_each(const char *folder, void (*name)(const char *stem))
{
        char directories[DATA_FILE_DIRECTORIES][DATA_FILE_BYTES], stem[KVBENCH_SHOWN_BYTES];
        size_t n = data_file_directories(folder, directories);

        for (size_t i = 0; i < n; i++) {
                _cleanup_(closedirp) DIR *dir = opendir(directories[i]);
                const struct dirent *entry;

                while (dir && (entry = readdir(dir)))
                        if (stem_of(entry, stem))
                                name(stem);
        }
}

/* Finds the file name in a directory, without extension, that is most similar to `name`. */
static void suggest_in(const char *directory, const char *name, struct suggestion *meant,
                       char ret[static KVBENCH_SHOWN_BYTES])
{
        _cleanup_(closedirp) DIR *dir = opendir(directory);
        const struct dirent *entry;

        while (dir && (entry = readdir(dir))) {
                char stem[KVBENCH_SHOWN_BYTES];

                if (!stem_of(entry, stem))
                        continue;
                suggest_try(meant, name, stem);
                if (meant->text == stem) {
                        memcpy(ret, stem, sizeof(stem));
                        meant->text = ret;
                }
        }
}

int data_file_complain(const char *folder, const char *name)
{
        char directories[DATA_FILE_DIRECTORIES][DATA_FILE_BYTES];
        char shown[KVBENCH_SHOWN_BYTES], stem[KVBENCH_SHOWN_BYTES], alike[KVBENCH_SHOWN_BYTES],
                searched[DATA_FILE_DIRECTORIES * (DATA_FILE_BYTES + 2)] = "";
        const char *example = data_file_of_example(name);
        size_t n = strchr(name, '/') && !example ? 0 : data_file_directories(folder, directories),
               used = 0;
        struct suggestion meant;
        char *end;

        snprintf(stem, sizeof(stem), "%s", example ? example : name);
        end = strrchr(stem, '.');
        if (end && strcmp(end, ".yaml") == 0)
                *end = '\0';
        meant = suggest_init(stem);
        for (size_t i = 0; i < n; i++) {
                used += (size_t)snprintf(searched + used, sizeof(searched) - used, "%s%s",
                                         i ? ", " : "", directories[i]);
                suggest_in(directories[i], stem, &meant, alike);
        }
        yaml_file_shown(name, shown, sizeof(shown));
        if (n == 0)
                return complain(KVBENCH_FAILED, "%s: %s", shown, strerror(ENOENT));
        return complain(KVBENCH_FAILED,
                        "%s: %s; it is not in %s either, with or without .yaml%s%s%s", shown,
                        strerror(ENOENT), searched, meant.text ? "; did you mean \"" : "",
                        meant.text ? meant.text : "", meant.text ? "\"?" : "");
}
