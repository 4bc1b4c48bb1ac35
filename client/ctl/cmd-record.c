/* SPDX-License-Identifier: Apache-2.0 */
/* record: writes the gets and puts of all clients as a trace, for `kvcache-bench simulate` and
 * `replay`. The daemon hashes the keys and streams them; this program assembles the lines and
 * writes the file. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checked.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "latency.h"
#include "progress.h"
#include "recording.h"
#include "interrupt.h"

enum { OPTION_MAX_BYTES = OPTION_LONG };
enum { DRAIN_BYTES = 1024 * 1024 };

static const struct option_row record_options[] = {
        { 'o', "out", "FILE", "the trace to write, which must not exist; \"-\": standard output" },
        { 'd', "duration", "TIME", "how long to record: 90s, 30m, 12h, up to 7d (default: 1h)" },
        { OPTION_MAX_BYTES, "max-bytes", "SIZE",
          "end when the trace has SIZE bytes (default: 1GiB)" },
        { 0 },
};

struct record {
        const char *path;
        uint32_t duration_s;
        unsigned long long max_bytes;
        int fd;
        struct recording lines;
        uint64_t lost;
        struct progress progress;
        bool has_ended; /* the daemon has sent WIRE_RECORD_END */
        size_t n;       /* number of bytes in `buffer` */
        uint8_t buffer[64 * 1024];
};

static bool parse_duration(const char *text, uint32_t *ret)
{
        double seconds;

        if (human_parse_seconds(text, &seconds) < 0 || seconds < 1 || seconds > WIRE_MAX_RECORD_S)
                return false;
        *ret = (uint32_t)seconds;
        return true;
}

static bool record_option(struct ctl *ctl, const struct command *self, int option,
                          const char *argument, struct record *r)
{
        switch (option) {
        case 'o':
                r->path = argument;
                return true;
        case 'd':
                if (parse_duration(argument, &r->duration_s))
                        return true;
                ctl->exit_status = usage_error(
                        self, "--duration: '%s' is not a time from 1s to 7d, such as 30m or 12h",
                        argument);
                return false;
        default:
                return option_bytes(ctl, "--max-bytes", argument, &r->max_bytes);
        }
}

/* Connects, starts the recording, and then opens the file. Returns an exit status. */
static int begin(struct ctl *ctl, struct record *r)
{
        bool is_stdout = strcmp(r->path, "-") == 0;
        int result, fd;

        result = ctl_connect(ctl);
        if (result)
                return result;
        result = kvcache_record(ctl->kv, r->duration_s, &r->fd);
        if (result == -EACCES)
                return complain_admin("record");
        if (result < 0)
                return complain_call(ctl, result, "record");
        if (is_stdout) {
                r->lines.out = stdout;
                return EXIT_OK;
        }
        fd = open(r->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        r->lines.out = fd >= 0 ? fdopen(fd, "w") : NULL;
        if (!r->lines.out)
                return complain(EXIT_LOCAL, "record: cannot create %s: %s%s", r->path,
                                strerror(errno),
                                errno == EEXIST ? "; name another file with --out" : "");
        return EXIT_OK;
}

/* Takes the complete entries of the buffer. Returns 0; -EBADMSG if they are malformed; -ENOMEM. */
static int take_entries(struct record *r)
{
        uint64_t ids[WIRE_MAX_KEYS];
        struct wire_record_entry entry;
        size_t at = 0;

        while (!r->has_ended && r->n - at >= sizeof(entry)) {
                size_t bytes;
                int result = 0;

                memcpy(&entry, r->buffer + at, sizeof(entry));
                if (entry.count > WIRE_MAX_KEYS)
                        return -EBADMSG;
                bytes = entry.count * sizeof(ids[0]);
                if (r->n - at - sizeof(entry) < bytes)
                        break;
                memcpy(ids, r->buffer + at + sizeof(entry), bytes);
                at += sizeof(entry) + bytes;
                r->lost = entry.lost;
                if (entry.kind == WIRE_RECORD_PUT || entry.kind == WIRE_RECORD_GET)
                        result = recording_add(&r->lines, &entry, ids);
                r->has_ended = entry.kind == WIRE_RECORD_END;
                if (result < 0)
                        return result;
        }
        r->n -= at;
        memmove(r->buffer, r->buffer + at, r->n);
        return 0;
}

/* Reads until the recording ends, the trace is full, or a write fails, which the caller checks by
 * ferror(). After a signal, reads only data that has already arrived, and stops after DRAIN_BYTES.
 * Returns 0; -EPIPE if the daemon has ended; another error of recv() or take_entries(). */
static int read_recording(struct record *r)
{
        uint64_t began_ns = latency_now_ns();
        size_t left = DRAIN_BYTES;

        while (left > 0 && !r->has_ended && !r->lines.is_full && !ferror(r->lines.out)) {
                struct pollfd ready = { .fd = r->fd, .events = POLLIN };
                ssize_t n;
                int result;

                if (r->lines.out != stdout)
                        progress_note(&r->progress,
                                      (double)(latency_now_ns() - began_ns) / 1e9 / r->duration_s,
                                      "recording", r->lines.requests, "request");
                /* The timeout bounds the wait if a signal arrives just before the call. */
                result = poll(&ready, 1, interrupted ? 0 : 500);
                if (result == 0 && interrupted)
                        break;
                if (result <= 0)
                        continue;
                n = recv(r->fd, r->buffer + r->n, sizeof(r->buffer) - r->n, MSG_DONTWAIT);
                if (n == 0)
                        return -EPIPE;
                if (n < 0 && errno != EAGAIN && errno != EINTR)
                        return -errno;
                n = MAX(n, (ssize_t)0);
                r->n += (size_t)n;
                if (interrupted)
                        left -= MIN(left, (size_t)n);
                result = take_entries(r);
                if (result < 0)
                        return result;
        }
        return 0;
}

static int report(struct ctl *ctl, const struct record *r)
{
        char requests[HUMAN_BYTES], blocks[HUMAN_BYTES], seconds[HUMAN_BYTES];
        const struct recording *lines = &r->lines;

        if (r->lines.out == stdout)
                return EXIT_OK;
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "trace", r->path);
                cJSON_AddNumberToObject(object, "requests", (double)lines->requests);
                cJSON_AddNumberToObject(object, "blocks", (double)lines->blocks);
                cJSON_AddNumberToObject(object, "bytes", (double)lines->bytes);
                cJSON_AddNumberToObject(object, "lost_blocks", (double)(r->lost + lines->dropped));
                cJSON_AddBoolToObject(object, "full", lines->is_full);
                return print_json(object);
        }
        human_things(lines->requests, "request", requests);
        human_things(lines->blocks, "block", blocks);
        human_seconds((double)lines->last_ms / 1000, seconds);
        print_safe(r->path, stdout);
        printf(": %s for %s in %s\n", requests, blocks, seconds);
        return EXIT_OK;
}

static int finish(struct ctl *ctl, struct record *r, int result)
{
        uint64_t lost;
        bool good;
        int status = EXIT_OK;

        progress_end(&r->progress);
        recording_flush(&r->lines);
        lost = r->lost + r->lines.dropped;
        if (lost > 0)
                fprintf(r->lines.out,
                        "{\"timestamp\": %llu, \"hash_ids\": [], \"lost_blocks\": %llu}\n",
                        (unsigned long long)r->lines.last_ms, (unsigned long long)lost);
        good = fflush(r->lines.out) == 0 && !ferror(r->lines.out);
        if (r->lines.out != stdout && fclose(r->lines.out) != 0)
                good = false;
        if (!good)
                return complain(EXIT_LOCAL, "record: cannot write %s: %s",
                                r->lines.out == stdout ? "standard output" : r->path,
                                strerror(errno));
        if (result == -ENOMEM)
                status = complain_memory();
        else if (result == -EBADMSG)
                status = complain(EXIT_REFUSED, "record: the daemon sent malformed data");
        else if (result < 0)
                status = complain(
                        EXIT_UNREACHABLE,
                        "record: the daemon went away, so the trace ends before --duration");
        if (lost > 0)
                complain(
                        EXIT_OK,
                        "record: the trace lacks %llu blocks, because requests arrived too fast or "
                        "it reached --max-bytes",
                        (unsigned long long)lost);
        if (r->lines.is_full)
                complain(EXIT_OK,
                         "the recording ended early, because the trace has reached --max-bytes");
        result = report(ctl, r);
        return status ? status : result;
}

static int run_record(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        static struct record r = { .duration_s = 3600, .max_bytes = 1024 * 1024 * 1024, .fd = -1 };
        const char *argument;
        int result, first;

        while ((result = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (!record_option(ctl, self, result, argument, &r))
                        return ctl->exit_status;
        if (result < 0)
                return ctl->exit_status;
        if (first < argc)
                return usage_error(self, "record takes no operand, but '%s' is one", argv[first]);
        if (!r.path)
                return usage_error(self, "--out FILE is needed");
        if (ctl->json && strcmp(r.path, "-") == 0)
                return usage_error(self, "--out - and --json both print to standard output");
        result = begin(ctl, &r);
        if (result == EXIT_OK) {
                r.lines.max_bytes = r.max_bytes;
                interrupt_catch();
                progress_init(&r.progress);
                result = finish(ctl, &r, read_recording(&r));
        }
        if (r.fd >= 0)
                close(r.fd);
        return result;
}

const struct command command_record = {
        .name = "record",
        .arguments = "--out FILE",
        .summary = "record the daemon's traffic as a trace for sizing the store",
        .help = "Records which chunks all clients get and put, until --duration has passed, the "
                "file\n"
                "is full, or SIGINT arrives. \"kvcache-bench simulate FILE\" computes the hit "
                "ratio of\n"
                "this traffic with caches of other sizes and policies; replay repeats it. For "
                "admins.\n"
                "\n"
                "Each line is one request: the chunks that were got, and those that were put "
                "after\n"
                "them on the same connection within two minutes. Keys are hashed with a secret "
                "that\n"
                "the daemon forgets when the recording ends. Lookups are not recorded, because\n"
                "clients answer most of them without the daemon. The trace therefore lacks chunks\n"
                "that a client looked up but neither got nor put.\n"
                "\n"
                "The daemon does not wait for this program. If the program cannot keep up, some\n"
                "blocks are lost; the end of the output and the last line of the trace say so.\n",
        .options = record_options,
        .run = run_record,
};
