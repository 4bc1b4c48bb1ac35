/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl-fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio_ext.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "../lib/folder.h"
#include "color.h"

int kvcachectl_main(int argc, char **argv); /* main() of client/ctl/main.c, compiled by this name */

char ctl_out[256 * 1024], ctl_err[64 * 1024];
size_t ctl_out_bytes;

static char folder[] = "/tmp/test-ctl-XXXXXX";
static bool has_folder;
static FILE *input;
static int terminal = -1, keyboard = -1; /* the two ends of a pseudo-terminal */
static bool output_to_terminal, output_closed;
static const char *output_device; /* NULL: a file */

static void close_terminal(void)
{
        if (terminal >= 0)
                close(terminal);
        if (keyboard >= 0)
                close(keyboard);
        terminal = keyboard = -1;
        output_to_terminal = false;
}

int ctl_reset(void **state)
{
        setenv("TZ", "UTC", 1);
        tzset();
        unsetenv("KVCACHE_SOCKET");
        unsetenv("NO_COLOR");
        setenv("TERM", "dumb", 1);
        if (input)
                fclose(input);
        input = NULL;
        close_terminal();
        fake_admin_reset();
        return 0;
}

void ctl_input(const void *bytes, size_t n)
{
        if (input)
                fclose(input);
        input = tmpfile();
        assert_non_null(input);
        assert_int_equal(fwrite(bytes, 1, n, input), n);
        fflush(input);
}

void ctl_type(const char *keys)
{
        struct termios mode;

        close_terminal();
        keyboard = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(keyboard >= 0 && grantpt(keyboard) == 0 && unlockpt(keyboard) == 0);
        terminal = open(ptsname(keyboard), O_RDWR | O_NOCTTY | O_CLOEXEC);
        assert_true(terminal >= 0 && tcgetattr(terminal, &mode) == 0);
        mode.c_lflag &= ~(tcflag_t)ECHO; /* an echo of the keys would be in the output */
        assert_int_equal(tcsetattr(terminal, TCSANOW, &mode), 0);
        assert_int_equal(write(keyboard, keys, strlen(keys)), strlen(keys));
}

void ctl_output_to_terminal(void)
{
        output_to_terminal = true;
}

void ctl_output_to(const char *device)
{
        output_device = device;
        output_closed = !device;
}

/* --- a run --- */

struct streams {
        FILE *in, *out, *err;
        int saved[3];
};

static void streams_replace(struct streams *s)
{
        int fds[3];

        s->in = input ? input : tmpfile();
        s->out = output_device ? fopen(output_device, "w+") : tmpfile();
        s->err = tmpfile();
        assert_true(s->in && s->out && s->err);
        rewind(s->in);
        fds[0] = terminal >= 0 ? terminal : fileno(s->in);
        fds[1] = output_to_terminal ? terminal : fileno(s->out);
        fds[2] = fileno(s->err);
        fflush(stdout);
        for (int i = 0; i < 3; i++) {
                s->saved[i] = dup(i);
                assert_true(s->saved[i] >= 0 && dup2(fds[i], i) == i);
        }
        if (output_closed)
                close(STDOUT_FILENO);
        clearerr(stdin);
        __fpurge(stdin);
}

static size_t read_back(FILE *file, char *ret, size_t room)
{
        size_t n;

        rewind(file);
        n = fread(ret, 1, room - 1, file);
        ret[n] = '\0';
        fclose(file);
        return n;
}

/* Reads the output from the terminal, which may take a moment to arrive: up to a mark behind it. */
static size_t read_terminal(char *ret, size_t room)
{
        static const char mark = '\x16';
        size_t length = 0;
        ssize_t n;

        assert_int_equal(write(terminal, &mark, 1), 1);
        do {
                assert_in_range(length, 0, room - 1);
                n = read(keyboard, ret + length, room - length);
                assert_true(n > 0);
                length += (size_t)n;
        } while (ret[length - 1] != mark);
        ret[--length] = '\0';
        return length;
}

static void streams_restore(struct streams *s)
{
        fflush(stdout);
        __fpurge(stdout);
        for (int i = 0; i < 3; i++) {
                dup2(s->saved[i], i);
                close(s->saved[i]);
        }
        clearerr(stdout);
        ctl_out_bytes = output_device ? 0 : read_back(s->out, ctl_out, sizeof(ctl_out));
        ctl_out[ctl_out_bytes] = '\0';
        read_back(s->err, ctl_err, sizeof(ctl_err));
        if (output_to_terminal)
                ctl_out_bytes = read_terminal(ctl_out, sizeof(ctl_out));
        if (output_device)
                fclose(s->out);
        if (!input)
                fclose(s->in);
        output_device = NULL;
        output_closed = false;
        close_terminal();
}

static int run_main(const char *const *argv)
{
        char *words[64];
        int argc = 0, status;

        for (; argv[argc]; argc++) {
                assert_in_range(argc, 0, ARRAY_SIZE(words) - 2);
                words[argc] = strdup(argv[argc]); /* the parser respells and reorders them */
                assert_non_null(words[argc]);
        }
        words[argc] = NULL;
        optind = 0; /* from the beginning */
        complain_in_json(false);
        color_set("auto");
        status = kvcachectl_main(argc, words);
        for (int i = 0; i < argc; i++)
                free(words[i]);
        return status;
}

int ctl_run(const char *const *argv)
{
        struct streams s;
        int status;

        streams_replace(&s);
        status = run_main(argv);
        streams_restore(&s);
        assert_int_equal(fake.handles, 0);
        assert_int_equal(fake.leases, 0);
        return status;
}

int ctl_run_in_child(const char *const *argv)
{
        struct streams s;
        int status = 0;
        pid_t pid;

        streams_replace(&s);
        pid = fork();
        if (pid == 0)
                exit(run_main(argv));
        assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
        streams_restore(&s);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

void ctl_compare(int status, int expected, const char *out, const char *err, const char *file,
                 int line)
{
        if (status != expected || (out && strcmp(out, ctl_out) != 0) ||
            (err && strcmp(err, ctl_err) != 0)) {
                print_error("exit status %d, expected %d\nstdout:\n%s\nstderr:\n%s\n", status,
                            expected, ctl_out, ctl_err);
                if (out && strcmp(out, ctl_out) != 0)
                        print_error("expected stdout:\n%s\n", out);
                if (err && strcmp(err, ctl_err) != 0)
                        print_error("expected stderr:\n%s\n", err);
                _fail(file, line);
        }
}

void ctl_has(const char *text, const char *part, bool wanted, const char *file, int line)
{
        if ((strstr(text, part) != NULL) == wanted)
                return;
        print_error("\"%s\" is %s:\n%s\n", part, wanted ? "not in" : "in", text);
        _fail(file, line);
}

/* --- files and keys --- */

const char *ctl_path(const char *name)
{
        static char path[4096];

        if (!has_folder) {
                assert_non_null(mkdtemp(folder));
                has_folder = true;
        }
        snprintf(path, sizeof(path), "%s/%s", folder, name);
        return path;
}

const char *ctl_file(const char *name, const void *bytes, size_t n)
{
        const char *path = ctl_path(name);
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        assert_int_equal(fwrite(bytes, 1, n, file), n);
        fclose(file);
        return path;
}

int ctl_remove_files(void **state)
{
        return has_folder ? folder_remove(folder) : 0;
}

void ctl_host_new(struct ctl_host *ret)
{
        static unsigned n_hosts;

        snprintf(ret->root, sizeof(ret->root), "%s%u", ctl_path("host"), n_hosts++);
        snprintf(ret->volume, sizeof(ret->volume), "%s/volume", ret->root);
        assert_int_equal(mkdir(ret->root, 0755), 0);
        assert_int_equal(mkdir(ret->volume, 0755), 0);
        setenv("KVCACHE_TEST_ROOT", ret->root, 1);
}

void ctl_host_write(const struct ctl_host *host, const char *name, const char *text)
{
        char path[512];
        FILE *file;

        snprintf(path, sizeof(path), "%s/%s", host->root, name);
        for (char *slash = path + strlen(host->root) + 1; (slash = strchr(slash, '/'));
             *slash++ = '/') {
                *slash = '\0';
                assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
        }
        file = fopen(path, "w");
        assert_non_null(file);
        assert_true(fputs(text, file) >= 0);
        fclose(file);
}

const char *ctl_json(const char *text)
{
        static char json[16 * 1024];

        assert_in_range(strlen(text), 0, sizeof(json) - 1);
        strcpy(json, text);
        for (char *p = json; (p = strchr(p, '\''));)
                *p = '"';
        return json;
}

struct kvcache_key ctl_key(const char *text)
{
        struct kvcache_key key;

        assert_int_equal(key_parse(text, &key), 0);
        return key;
}

const char *ctl_hex(const char *text)
{
        static char hex[KEY_TEXT_BYTES];
        struct kvcache_key key = ctl_key(text);

        key_print(&key, hex);
        return hex;
}

void ctl_store(const char *key_text, const char *bytes)
{
        struct kvcache_options options = { .size = sizeof(options) };
        struct kvcache_key key = ctl_key(key_text);
        struct kvcache *kv;
        char error[64];

        assert_int_equal(kvcache_connect(&kv, &options, error, sizeof(error)), 0);
        assert_int_equal(kvcache_put(kv, 1, &key, bytes, strlen(bytes), KVCACHE_WRITTEN), 0);
        kvcache_close(kv);
        memset(fake.made, 0, sizeof(fake.made));
}
