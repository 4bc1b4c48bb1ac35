/* SPDX-License-Identifier: Apache-2.0 */
#include "bench-rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "folder.h"
#include "kvcache.h"

enum { MOST_ARGUMENTS = 64, PATHS = 16, PATH_BYTES = 256 };

static char *texts[2]; /* standard output and standard error of the latest run */
static char *squeezed;
static char directory[] = "/tmp/test-bench-XXXXXX";

/* Makes `stream` write into memory. Returns that memory's descriptor. */
static int capture(FILE *stream, int *ret_original)
{
        int fd = memfd_create("output", MFD_CLOEXEC);

        assert_true(fd >= 0);
        fflush(stream);
        *ret_original = dup(fileno(stream));
        assert_true(*ret_original >= 0 && dup2(fd, fileno(stream)) >= 0);
        return fd;
}

static char *read_all(int fd)
{
        off_t bytes = lseek(fd, 0, SEEK_END);
        char *text = calloc(1, (size_t)bytes + 1);

        assert_non_null(text);
        assert_int_equal(pread(fd, text, (size_t)bytes, 0), bytes);
        return text;
}

static char *end_capture(FILE *stream, int fd, int original)
{
        char *text;

        fflush(stream);
        dup2(original, fileno(stream));
        close(original);
        text = read_all(fd);
        close(fd);
        return text;
}

int bench_run(const struct command *command, const char *const *arguments)
{
        char *argv[MOST_ARGUMENTS + 2] = { strdup(command->name) };
        struct ctl ctl = { 0 };
        int n = 1, fds[2], originals[2], status;

        for (; arguments[n - 1]; n++) {
                assert_true(n <= MOST_ARGUMENTS);
                argv[n] = strdup(arguments[n - 1]);
        }
        complain_as("kvcache-bench");
        complain_in_json(false);
        unsetenv("KVCACHE_SOCKET");
        optind = 0; /* restarts getopt_long() */
        fds[0] = capture(stdout, &originals[0]);
        fds[1] = capture(stderr, &originals[1]);
        status = command->run(&ctl, command, n, argv);
        kvcache_close(ctl.kv);
        for (int i = 0; i < 2; i++) {
                free(texts[i]);
                texts[i] = end_capture(i ? stderr : stdout, fds[i], originals[i]);
        }
        /* getopt_long() has permuted the arguments, but they are all there. */
        for (int i = 0; i < n; i++)
                free(argv[i]);
        return status;
}

const char *bench_out(void)
{
        return texts[0];
}

const char *bench_err(void)
{
        return texts[1];
}

cJSON *bench_json(void)
{
        cJSON *json = cJSON_Parse(texts[0]);

        if (!json)
                fail_msg("not JSON: %s%s", texts[0], texts[1]);
        return json;
}

const char *bench_squeezed(void)
{
        char *to;

        free(squeezed);
        squeezed = to = calloc(1, strlen(texts[0]) + 1);
        assert_non_null(squeezed);
        for (const char *p = texts[0]; *p; p++)
                if (*p != ' ' || p[1] != ' ')
                        *to++ = *p;
        return squeezed;
}

void assert_out(const char *part)
{
        if (!strstr(bench_squeezed(), part) && !strstr(texts[0], part))
                fail_msg("not printed: %s\n--- out\n%s--- err\n%s", part, texts[0], texts[1]);
}

void assert_err(const char *part)
{
        if (!strstr(texts[1], part))
                fail_msg("not said: %s\n--- out\n%s--- err\n%s", part, texts[0], texts[1]);
}

static const cJSON *json_at(const cJSON *object, const char *path)
{
        const cJSON *item = object;
        char name[64];

        for (const char *p = path; *p;) {
                size_t n = strcspn(p, ".");

                assert_true(n < sizeof(name));
                memcpy(name, p, n);
                name[n] = '\0';
                item = cJSON_GetObjectItemCaseSensitive(item, name);
                if (!item)
                        fail_msg("there is no %s in the JSON", path);
                p += n + (p[n] == '.');
        }
        return item;
}

double json_number(const cJSON *object, const char *path)
{
        const cJSON *item = json_at(object, path);

        if (!cJSON_IsNumber(item))
                fail_msg("%s is no number", path);
        return item->valuedouble;
}

const char *json_text(const cJSON *object, const char *path)
{
        const cJSON *item = json_at(object, path);

        if (!cJSON_IsString(item))
                fail_msg("%s is no text", path);
        return item->valuestring;
}

int bench_directory_make(void **state)
{
        return mkdtemp(directory) ? 0 : -1;
}

int bench_directory_remove(void **state)
{
        for (int i = 0; i < 2; i++)
                free(texts[i]);
        free(squeezed);
        folder_empty(directory); /* a folder that is left behind is a failure */
        return rmdir(directory);
}

const char *bench_path(const char *name)
{
        static char paths[PATHS][PATH_BYTES];
        static unsigned next;
        char *path = paths[next++ % PATHS];

        assert_true(snprintf(path, PATH_BYTES, "%s/%s", directory, name) < PATH_BYTES);
        return path;
}

const char *bench_file(const char *name, const char *text)
{
        const char *path = bench_path(name);
        FILE *file = fopen(path, "we");

        assert_non_null(file);
        assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
        assert_int_equal(fclose(file), 0);
        return path;
}

char *bench_read(const char *path)
{
        FILE *file = fopen(path, "re");
        char *text;

        if (!file)
                return NULL;
        text = read_all(fileno(file));
        fclose(file);
        return text;
}
