/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the daemon's binary, waits until it answers, and cleans up after it.
 *
 * The temporary directory is locked while this process or its caretaker (embedded.h) lives. An
 * unlocked directory of that name that belongs to this user was left by a crash of the machine,
 * or by a run whose caretaker was killed, too; the next run removes it. */
#include "embedded.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "common.h"
#include "program.h"

#define NAME_PREFIX "kvcache-bench-profile-"
#define KEPT_NAME   "kvcache-store"

enum {
        START_MS = 60000,
        STOP_MS = 20000,
        LOOK_MS = 10,
        LOG_TAIL_BYTES = 4000,
        SOCKET_PATH_MAX = 107,
        MOST_SETTINGS = 12,
        MOST_FURTHER = 24,
        MOST_ATTEMPTS = 100,
};

static void pause_ms(unsigned ms)
{
        struct timespec t = { .tv_nsec = (long)ms * 1000000 };

        clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

const char *embedded_parent(void)
{
        const char *tmpdir = getenv("TMPDIR");

        if (tmpdir && *tmpdir == '/' && strlen(tmpdir) < 60)
                return tmpdir;
        return access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        (void)remove(path);
        return 0;
}

static void remove_tree(const char *path)
{
        (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static int lock_directory(const char *path)
{
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        struct stat st;

        if (fd >= 0 &&
            (flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &st) < 0 || st.st_nlink == 0)) {
                close(fd);
                return -1;
        }
        return fd;
}

static void remove_leftovers(const char *parent)
{
        DIR *dir = opendir(parent);
        const struct dirent *entry;

        while (dir && (entry = readdir(dir))) {
                char path[512];
                struct stat st;
                int fd;

                if (strncmp(entry->d_name, NAME_PREFIX, strlen(NAME_PREFIX)) != 0)
                        continue;
                snprintf(path, sizeof(path), "%s/%s", parent, entry->d_name);
                fd = lock_directory(path);
                if (fd < 0)
                        continue;
                if (fstat(fd, &st) == 0 && st.st_uid == geteuid())
                        remove_tree(path);
                close(fd);
        }
        if (dir)
                closedir(dir);
}

/* --- size of the kept store, and the daemon's binary --- */

uint64_t embedded_kept_bytes(const char *directory)
{
        char path[512];
        uint64_t bytes = 0;
        const struct dirent *entry;
        struct stat st;
        DIR *dir;

        snprintf(path, sizeof(path), "%s/" KEPT_NAME, directory);
        dir = opendir(path);
        while (dir && (entry = readdir(dir)))
                if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISREG(st.st_mode))
                        bytes += (uint64_t)st.st_blocks * 512;
        if (dir)
                closedir(dir);
        return bytes;
}

/* Finds the daemon's binary, as installed or built. Returns false if there is none. */
static bool find_binary(char *ret, size_t room)
{
        static const char *const directories[] = { "", "../sbin", "../../daemon", NULL };

        return program_find("kvcache-daemon", directories, ret, room);
}

/* --- the process --- */

/* Removes variables meant for the host's own daemon. */
static void clean_environment(void)
{
        static const char *const others[] = {
                "NOTIFY_SOCKET",     "LISTEN_FDS",      "LISTEN_PID",
                "LISTEN_FDNAMES",    "WATCHDOG_PID",    "WATCHDOG_USEC",
                "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "DYNAMO_BENCHMARK_SESSION"
        };

        for (unsigned i = 0; i < ARRAY_SIZE(others); i++)
                unsetenv(others[i]);
        for (char **e = environ; e && *e;) {
                char name[256];
                size_t length = strcspn(*e, "=");

                if (strncmp(*e, "KVCACHE_", 8) != 0 || length >= sizeof(name)) {
                        e++;
                        continue;
                }
                snprintf(name, sizeof(name), "%.*s", (int)length, *e);
                unsetenv(name);
                e = environ;
        }
}

__attribute__((noreturn)) static void become_daemon(const char *binary, char *const *argv,
                                                    const char *log, pid_t parent)
{
        int null = open("/dev/null", O_RDONLY);
        int out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);

        if (null < 0 || out < 0 || dup2(null, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
                _exit(127);
        setpgid(0, 0); /* a separate process group: only this process handles Ctrl-C */
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
                _exit(127);
        clean_environment();
        execv(binary, argv);
        dprintf(2, "%s: %s\n", binary, strerror(errno));
        _exit(127);
}

/* Waits until the daemon, which the kernel signals when its parent ends, has ended, and kills
 * the daemon after STOP_MS. `fd` is the daemon's pidfd, or -1 on a kernel before 5.3: the daemon
 * is then not killed, because its process id may already belong to another process. */
static void wait_for_end(pid_t pid, int fd)
{
        struct pollfd ended = { .fd = fd, .events = POLLIN };

        if (fd >= 0) {
                if (poll(&ended, 1, STOP_MS) == 0)
                        (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
                (void)poll(&ended, 1, STOP_MS);
                return;
        }
        for (unsigned waited = 0; waited < STOP_MS && kill(pid, 0) == 0; waited += LOOK_MS)
                pause_ms(LOOK_MS);
}

/* Runs the caretaker, a child process: waits until its parent has ended, then until the daemon
 * has, and removes the directory. A parent that ends normally cleans up itself, and kills the
 * caretaker in embedded_stop(). */
__attribute__((noreturn)) static void become_caretaker(const struct embedded *e, int alive)
{
        int null = open("/dev/null", O_RDWR), daemon_fd = (int)syscall(SYS_pidfd_open, e->pid, 0);
        ssize_t n;
        char c;

        setsid(); /* signals to the parent's terminal or process group must not end the caretaker */
        for (int fd = 0; null >= 0 && fd < 3; fd++)
                (void)dup2(null, fd); /* programs that read the parent's output must not wait for
                                         the caretaker */
        close(e->alive_fd);
        signal(SIGHUP, SIG_IGN);
        do
                n = read(alive, &c, 1);
        while (n < 0 && errno == EINTR);
        wait_for_end(e->pid, daemon_fd);
        remove_tree(e->directory);
        _exit(0);
}

/* Starts the caretaker (embedded.h), which cleans up if this process is killed. If the start fails,
 * the run continues; if this process is then killed, the next run cleans up. */
static void start_caretaker(struct embedded *e)
{
        int ends[2];

        if (pipe2(ends, O_CLOEXEC) < 0)
                return;
        e->alive_fd = ends[1];
        e->caretaker = fork();
        if (e->caretaker == 0)
                become_caretaker(e, ends[0]);
        close(ends[0]);
}

static void end_caretaker(struct embedded *e)
{
        if (e->caretaker > 0) {
                kill(e->caretaker, SIGKILL);
                while (waitpid(e->caretaker, NULL, 0) < 0 && errno == EINTR)
                        ;
        }
        if (e->alive_fd >= 0)
                close(e->alive_fd);
        e->caretaker = 0;
        e->alive_fd = -1;
}

static void print_log_tail(const struct embedded *e)
{
        char path[320], text[LOG_TAIL_BYTES + 1];
        _cleanup_(fclosep) FILE *f = NULL;
        size_t n;

        snprintf(path, sizeof(path), "%s/log", e->directory);
        f = fopen(path, "re");
        if (!f)
                return;
        if (fseek(f, -LOG_TAIL_BYTES, SEEK_END) < 0)
                rewind(f);
        n = fread(text, 1, LOG_TAIL_BYTES, f);
        text[n] = '\0';
        if (n > 0 && complain_is_json())
                complain(EXIT_OK, "the end of the daemon's log: %s", text);
        else if (n > 0)
                fprintf(stderr, "The end of the daemon's log:\n%s", text);
}

bool embedded_died(struct embedded *e, unsigned wait_ms)
{
        int status;

        for (unsigned waited = 0;; waited += LOOK_MS) {
                if (e->pid <= 0)
                        return false;
                if (waitpid(e->pid, &status, WNOHANG) == e->pid)
                        break;
                if (waited >= wait_ms)
                        return false;
                pause_ms(LOOK_MS);
        }
        e->pid = 0;
        if (WIFSIGNALED(status))
                complain(1, "the embedded daemon was ended by signal %d (%s)", WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
        else
                complain(1, "the embedded daemon ended with status %d", WEXITSTATUS(status));
        print_log_tail(e);
        return true;
}

void embedded_stop(struct embedded *e)
{
        if (e->pid > 0) {
                kill(e->pid, SIGTERM);
                for (unsigned waited = 0; waitpid(e->pid, NULL, WNOHANG) == 0; waited += LOOK_MS) {
                        if (waited >= STOP_MS)
                                kill(e->pid, SIGKILL);
                        pause_ms(LOOK_MS);
                }
        }
        if (*e->directory)
                remove_tree(e->directory);
        end_caretaker(e);
        if (e->lock_fd >= 0)
                close(e->lock_fd);
        *e = (struct embedded){ .lock_fd = -1, .alive_fd = -1 };
}

static int wait_until_it_answers(struct embedded *e, const atomic_int *interrupted)
{
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = e->socket,
                .client_name = "kvcache-bench",
        };
        char error[512] = "";

        for (unsigned waited = 0; waited < START_MS; waited += LOOK_MS) {
                struct kvcache *kv = NULL;

                if (interrupted && *interrupted)
                        return EXIT_INTERRUPTED;
                if (embedded_died(e, 0))
                        return EXIT_NOT_FOUND;
                if (kvcache_connect(&kv, &options, error, sizeof(error)) >= 0) {
                        kvcache_close(kv);
                        return EXIT_OK;
                }
                pause_ms(LOOK_MS);
        }
        complain(1, "the embedded daemon does not answer: %s", error);
        print_log_tail(e);
        return 1;
}

static int make_directories(struct embedded *e, const struct embedded_options *o)
{
        const char *parent = embedded_parent();

        remove_leftovers(parent);
        for (unsigned attempt = 0; e->lock_fd < 0; attempt++) {
                snprintf(e->directory, sizeof(e->directory), "%s/" NAME_PREFIX "XXXXXX", parent);
                if (!mkdtemp(e->directory) || attempt == MOST_ATTEMPTS) {
                        int r = complain(1,
                                         "%s: a temporary directory cannot be made: %s; set TMPDIR "
                                         "to another absolute path of less than 60 bytes",
                                         e->directory, strerror(errno));

                        e->directory[0] = '\0';
                        return r;
                }
                /* Between mkdtemp() and the lock, another run may have removed the directory. */
                e->lock_fd = lock_directory(e->directory);
                if (e->lock_fd < 0)
                        (void)rmdir(e->directory);
        }
        snprintf(e->socket, sizeof(e->socket), "%s/socket", e->directory);
        if (strlen(e->socket) > SOCKET_PATH_MAX)
                return complain(
                        1, "%s is too long for the path of a socket: set TMPDIR to a shorter one",
                        e->socket);
        if (o->directory && mkdir(o->directory, 0700) < 0 && errno != EEXIST)
                return complain(1, "%s: %s", o->directory, strerror(errno));
        snprintf(e->store, sizeof(e->store), "%s/%s", o->directory ? o->directory : e->directory,
                 o->directory ? KEPT_NAME : "store");
        return EXIT_OK;
}

int embedded_start(struct embedded *e, const struct embedded_options *o)
{
        char settings[MOST_SETTINGS][640], binary[640], log[320];
        char *argv[2 * (MOST_SETTINGS + MOST_FURTHER) + 4];
        unsigned n = 0, arguments = 0;
        pid_t self = getpid();
        int status;

        *e = (struct embedded){ .lock_fd = -1, .alive_fd = -1 };
        if (!find_binary(binary, sizeof(binary)))
                return complain(
                        1, "no daemon can be started: kvcache-daemon is found neither in the "
                           "directory "
                           "of kvcache-bench nor in $PATH; install it, or start a daemon (remote "
                           "always needs a daemon of its own)");
        status = make_directories(e, o);
        if (status != EXIT_OK) {
                embedded_stop(e);
                return status;
        }
        snprintf(log, sizeof(log), "%s/log", e->directory);
        snprintf(settings[n++], sizeof(settings[0]), "listen.socket=%s", e->socket);
        snprintf(settings[n++], sizeof(settings[0]), "listen.http=off");
        snprintf(settings[n++], sizeof(settings[0]), "store.path=%s", e->store);
        snprintf(settings[n++], sizeof(settings[0]), "store.limit=%" PRIu64, o->limit_bytes);
        snprintf(settings[n++], sizeof(settings[0]), "store.entries=%" PRIu64, o->entries);
        snprintf(settings[n++], sizeof(settings[0]), "memory.pool=%" PRIu64, o->pool_bytes);
        snprintf(settings[n++], sizeof(settings[0]), "limits.leased_bytes=%" PRIu64, o->pool_bytes);
        snprintf(settings[n++], sizeof(settings[0]), "io.backend=%s", o->io_backend);

        argv[arguments++] = binary;
        argv[arguments++] = (char *)"--config";
        argv[arguments++] = (char *)"/dev/null";
        for (unsigned i = 0; i < n; i++) {
                argv[arguments++] = (char *)"--set";
                argv[arguments++] = settings[i];
        }
        for (unsigned i = 0; o->settings && o->settings[i] && i < MOST_FURTHER; i++) {
                argv[arguments++] = (char *)"--set";
                argv[arguments++] = (char *)(uintptr_t)o->settings[i];
        }
        argv[arguments] = NULL;

        e->pid = fork();
        if (e->pid == 0)
                become_daemon(binary, argv, log, self);
        if (e->pid < 0)
                status = complain(1, "cannot start a process for the embedded daemon: %s",
                                  strerror(errno));
        if (e->pid > 0)
                start_caretaker(e);
        if (e->pid > 0)
                status = wait_until_it_answers(e, o->interrupted);
        if (status != EXIT_OK)
                embedded_stop(e);
        return status;
}
