/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../lib/folder.h"
#include "checked.h"
#include "cleanup.h"
#include "config-fixture.h"

struct config config;

struct config_error fault;

char folder[64];

char said[64][1200];

unsigned n_said;

void say(const char *text)
{
        if (n_said < ARRAY_SIZE(said))
                snprintf(said[n_said++], sizeof(said[0]), "%s", text);
}

bool was_said(const char *part)
{
        for (unsigned i = 0; i < n_said; i++)
                if (strstr(said[i], part))
                        return true;
        return false;
}

void reset(void)
{
        config_fini(&config);
        config_init(&config);
        memset(&fault, 0, sizeof(fault));
}

int load_bytes(const char *text, size_t length)
{
        reset();
        return config_load_text(&config, "t", text, length, &fault);
}

int load(const char *text)
{
        return load_bytes(text, strlen(text));
}

void write_file(const char *path, const char *text, size_t length)
{
        _cleanup_(closep) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, length), (ssize_t)length);
}

const char *in_folder(const char *name, char ret[static 256])
{
        snprintf(ret, 256, "%s/%s", folder, name);
        return ret;
}

char *printed(void (*print)(FILE *out))
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);

        assert_non_null(out);
        print(out);
        assert_int_equal(fclose(out), 0);
        return text;
}

void print_it(FILE *out)
{
        config_print(&config, out);
}

void assert_same(const struct config *a, const struct config *b)
{
        for (unsigned i = 0; i < config_n_rows; i++) {
                _cleanup_(freep) char *ta = config_format(a, &config_rows[i]);
                _cleanup_(freep) char *tb = config_format(b, &config_rows[i]);

                assert_string_equal(ta, tb);
        }
}

void assert_reads_back(void)
{
        _cleanup_(freep) char *text = printed(print_it);
        struct config again;

        config_init(&again);
        if (config_load_text(&again, "again", text, strlen(text), &fault) < 0)
                fail_msg("%s in:\n%s", fault.text, text);
        assert_same(&config, &again);
        config_fini(&again);
}

int setup(void **state)
{
        config_init(&config);
        memset(&fault, 0, sizeof(fault));
        n_said = 0;
        strcpy(folder, "/tmp/kvcache-test-config-XXXXXX");
        return mkdtemp(folder) ? 0 : -1;
}

int teardown(void **state)
{
        config_fini(&config);
        return folder_remove(folder);
}
