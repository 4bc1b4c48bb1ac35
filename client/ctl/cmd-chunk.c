/* SPDX-License-Identifier: Apache-2.0 */
/* put and get: copies one chunk from or to a file, or standard input or output. A get that cannot
 * write the whole chunk removes the file. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "units.h"
#include "checked.h"

/* --- put --- */

enum { OPTION_ACK = OPTION_LONG, OPTION_OFFSET, OPTION_LENGTH };

static const struct option_row put_options[] = {
        NAMESPACE_OPTION,
        { 'f', "fingerprint", "K=V,...",
          "everything that the bytes depend on: model, dtype, layout ...; must be\n"
          "equal for all who use it. Without it, a namespace that exists is used as\n"
          "it is, and a new one gets \"format=raw\"" },
        { OPTION_ACK, "ack", "CLASS",
          "answer when the chunk is accepted (visible), written (survives a crash\n"
          "of the daemon; the default) or durable (survives power loss)",
          ACK_VALUES },
        { 0 },
};

/* Reads a whole file of 1 to `most` bytes; NULL and "-" are standard input. The caller frees
 * `*ret`. Returns an exit status. */
static int read_input(const char *path, uint64_t most, uint8_t **ret, size_t *ret_bytes)
{
        bool is_stdin = !path || strcmp(path, "-") == 0;
        _cleanup_(fclosep) FILE *file = is_stdin ? NULL : fopen(path, "re");
        _cleanup_(freep) uint8_t *data = NULL;
        const char *name = is_stdin ? "standard input" : path;
        FILE *in = is_stdin ? stdin : file;
        size_t room = 0, n = 0;
        struct stat st;

        if (!in)
                return complain(EXIT_BAD_INPUT, "cannot read %s: %s", path, strerror(errno));
        if (fstat(fileno(in), &st) == 0 && S_ISDIR(st.st_mode))
                return complain(EXIT_BAD_INPUT, "cannot read %s: %s", name, strerror(EISDIR));
        for (;;) {
                if (n == room) {
                        uint8_t *p;

                        room = MAX(room * 2, (size_t)64 * 1024);
                        p = realloc(data, room);
                        if (!p)
                                return complain_memory();
                        data = p;
                }
                n += fread(data + n, 1, room - n, in);
                if (n > most) {
                        char text[HUMAN_BYTES];

                        units_bytes(most, text);
                        return complain(EXIT_REFUSED,
                                        "%s is larger than %s, the most that this daemon takes as "
                                        "one chunk",
                                        name, text);
                }
                if (ferror(in))
                        return complain(EXIT_BAD_INPUT, "cannot read %s: %s", name,
                                        strerror(errno));
                if (feof(in))
                        break;
        }
        if (n == 0)
                return complain(EXIT_BAD_INPUT, "%s is empty; a chunk has at least 1 byte", name);
        *ret = TAKE_PTR(data);
        *ret_bytes = n;
        return EXIT_OK;
}

/* Opens a namespace for a put, and creates it if it does not exist. `fingerprint`: an existing
 * namespace must have it; NULL: a new one gets "format=raw". Returns an exit status. */
static int open_for_put(struct ctl *ctl, const char *name, const char *fingerprint, uint32_t *ret)
{
        _cleanup_(freep) char *canonical = NULL;
        struct kvcache_namespace_options options = {
                .size = sizeof(options),
                .name = name,
        };
        int r;

        if (fingerprint) {
                r = fingerprint_parse(fingerprint, &canonical);
                if (r == -ENOMEM)
                        return complain_memory();
                if (r < 0)
                        return complain(EXIT_WRONG_USAGE,
                                        "--fingerprint: '%s' is not of the form "
                                        "key=value,key=value with at most 128 keys, each once",
                                        fingerprint);
                options.fingerprint = canonical;
        } else {
                options.flags = KVCACHE_ATTACH;
                r = kvcache_namespace_open(ctl->kv, &options, ret);
                if (r != -ENOENT)
                        return r < 0 ? complain_call(ctl, r, name) : EXIT_OK;
                options.flags = 0;
                options.fingerprint = "format=raw\n";
        }
        r = kvcache_namespace_open(ctl->kv, &options, ret);
        if (r == -EEXIST)
                return complain(EXIT_REFUSED, "%s", kvcache_error(ctl->kv));
        return r < 0 ? complain_call(ctl, r, name) : EXIT_OK;
}

/* Reports a stored chunk, for people or as JSON. */
static int report_put(const struct ctl *ctl, const char *namespace_name, const char *key_text,
                      const struct kvcache_key *key, size_t bytes, int status)
{
        char hex[KEY_TEXT_BYTES], text[HUMAN_BYTES];

        key_print(key, hex);
        units_bytes(bytes, text);
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "key", hex);
                cJSON_AddStringToObject(object, "name", key_text);
                cJSON_AddStringToObject(object, "namespace", namespace_name);
                cJSON_AddNumberToObject(object, "length", (double)bytes);
                cJSON_AddStringToObject(object, "status", kvcache_status_name(status));
                cJSON_AddBoolToObject(object, "existed", status == KVCACHE_EXISTS);
                return print_json(object);
        }
        print_safe(key_text, stdout);
        if (status == KVCACHE_EXISTS)
                puts("  is stored already: the first put of a key wins");
        else if (strstr(key_text, hex))
                printf("  %s put\n", text);
        else
                printf("  %s put, under %s\n", text, hex);
        return EXIT_OK;
}

/* Puts a file, or standard input if `file` is NULL, and reports the result. Returns an exit status:
 * EXIT_REFUSED also for a chunk that is stored, but not durable. */
static int put_chunk(struct ctl *ctl, const char *namespace_name, const char *fingerprint,
                     const char *key_text, const struct kvcache_key *key, const char *file,
                     enum kvcache_ack ack)
{
        struct kvcache_info info = { .size = sizeof(info) };
        _cleanup_(freep) uint8_t *data = NULL;
        uint32_t namespace;
        size_t bytes = 0;
        int r, status;

        r = ctl_connect(ctl);
        if (r)
                return r;
        r = kvcache_get_info(ctl->kv, &info);
        if (r < 0)
                return complain_call(ctl, r, "put");
        r = read_input(file, info.max_chunk_bytes, &data, &bytes);
        if (r)
                return r;
        r = open_for_put(ctl, namespace_name, fingerprint, &namespace);
        if (r)
                return r;

        status = kvcache_put(ctl->kv, namespace, key, data, bytes, ack);
        if (status < 0)
                return complain_call(ctl, status, "put");
        if (status != KVCACHE_NOT_DURABLE) {
                r = complain_status(status, "put");
                if (r)
                        return r;
        }
        r = report_put(ctl, namespace_name, key_text, key, bytes, status);
        return status == KVCACHE_NOT_DURABLE ? complain_status(status, "put") : r;
}

static int run_put(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        const char *namespace_name = DEFAULT_NAMESPACE, *fingerprint = NULL, *argument;
        enum kvcache_ack ack = KVCACHE_WRITTEN;
        struct kvcache_key key;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                switch (r) {
                case 'n':
                        namespace_name = argument;
                        break;
                case 'f':
                        fingerprint = argument;
                        break;
                case OPTION_ACK:
                        if (!ack_parse(argument, &ack))
                                return usage_error(
                                        self,
                                        "--ack: '%s' is unknown; use accepted, written or durable",
                                        argument);
                        break;
                }
        if (r < 0)
                return ctl->exit_status;
        if (argc - first < 1 || argc - first > 2)
                return usage_error(self, "a key is needed; a file may follow");
        if (key_parse(argv[first], &key) < 0)
                return usage_error(self, KEY_REFUSED, argv[first]);
        return put_chunk(ctl, namespace_name, fingerprint, argv[first], &key,
                         first + 1 < argc ? argv[first + 1] : NULL, ack);
}

const struct command command_put = {
        .name = "put",
        .arguments = "KEY [FILE]",
        .summary = "store a file, or standard input, under a key",
        .help = "Stores FILE, or standard input, as one chunk. The first put of a key wins: a\n"
                "later one changes nothing and says so.\n"
                "\n" KEY_HELP,
        .options = put_options,
        .run = run_put,
};

/* --- get --- */

static const struct option_row get_options[] = {
        NAMESPACE_OPTION,
        { 'o', "output", "FILE", "write to FILE instead of standard output" },
        { OPTION_OFFSET, "offset", "BYTES", "begin at this offset in the chunk" },
        { OPTION_LENGTH, "length", "BYTES", "write at most BYTES" },
        { 0 },
};

static int write_file(const char *path, const void *data, size_t bytes)
{
        FILE *file = fopen(path, "we");
        bool regular, written;
        struct stat st;
        int error;

        if (!file)
                return complain(EXIT_LOCAL, "cannot write %s: %s", path, strerror(errno));
        regular = fstat(fileno(file), &st) == 0 && S_ISREG(st.st_mode);
        written = fwrite(data, 1, bytes, file) == bytes && fflush(file) == 0;
        error = errno;
        if (fclose(file) != 0 && written) {
                written = false;
                error = errno;
        }
        if (written)
                return EXIT_OK;
        if (regular)
                (void)unlink(path); /* do not leave a partial chunk */
        return complain(EXIT_LOCAL, "cannot write %s: %s", path, strerror(error));
}

/* Writes to the file `path`, or to standard output if `path` is NULL. Returns an exit status. */
static int write_output(const char *path, const void *data, size_t bytes)
{
        if (path)
                return write_file(path, data, bytes);
        if (fwrite(data, 1, bytes, stdout) == bytes && fflush(stdout) == 0)
                return EXIT_OK;
        return complain_output(errno);
}

struct get_arguments {
        const char *namespace_name;
        const char *output; /* NULL: standard output */
        unsigned long long offset,
                length; /* 0 for `offset`: from the start; 0 for `length`: to the end */
        const char *key_text;
        struct kvcache_key key;
};

/* Handles an option. Returns false if the command must end with ctl->exit_status. */
static bool get_option(struct ctl *ctl, const struct command *self, int option,
                       const char *argument, struct get_arguments *a)
{
        switch (option) {
        case 'n':
                a->namespace_name = argument;
                return true;
        case 'o':
                a->output = strcmp(argument, "-") == 0 ? NULL : argument;
                return true;
        case OPTION_OFFSET:
                return option_bytes(ctl, "--offset", argument, &a->offset);
        case OPTION_LENGTH:
                if (!option_bytes(ctl, "--length", argument, &a->length))
                        return false;
                if (a->length == 0)
                        ctl->exit_status =
                                usage_error(self, "--length: at least 1 byte must be read");
                return a->length > 0;
        }
        return true;
}

/* Gets the chunk. Returns an exit status: EXIT_OK, and the caller releases the lease of `*ret`;
 * EXIT_NOT_FOUND if the chunk or its namespace is not stored. */
static int get_chunk(struct ctl *ctl, const struct get_arguments *a, struct kvcache_result *ret)
{
        struct kvcache_entry entry = {
                .key = a->key,
                .range_offset = a->offset,
                .range_length = a->length,
        };
        struct kvcache_request request;
        uint32_t namespace;
        int r;

        r = namespace_attach(ctl, a->namespace_name, &namespace);
        if (r)
                return r;
        kvcache_prep(&request, KVCACHE_OP_GET, namespace, 1, ret);
        request.entries = &entry;
        r = kvcache_submit_and_wait(ctl->kv, &request, NULL);
        if (r < 0)
                return complain_call(ctl, r, "get");
        if (ret->status == KVCACHE_INVALID && (a->offset || a->length))
                return complain(EXIT_WRONG_USAGE,
                                "%s: the range of --offset and --length is not within the chunk",
                                a->key_text);
        if (ret->status == KVCACHE_MISS)
                return complain(EXIT_NOT_FOUND, "%s: not found in namespace '%s'", a->key_text,
                                a->namespace_name);
        return complain_status(ret->status, a->key_text);
}

static int print_got(const struct get_arguments *a, const struct kvcache_result *result)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        char hex[KEY_TEXT_BYTES];

        key_print(&a->key, hex);
        cJSON_AddStringToObject(object, "key", hex);
        cJSON_AddStringToObject(object, "name", a->key_text);
        cJSON_AddNumberToObject(object, "length", (double)result->length);
        cJSON_AddNumberToObject(object, "chunk_length", (double)result->chunk_length);
        cJSON_AddItemToObject(object, "from", tiers_json(result->tiers));
        return print_json(object);
}

static int run_get(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct get_arguments a = { .namespace_name = DEFAULT_NAMESPACE };
        struct kvcache_result result = { .status = KVCACHE_MISS };
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (!get_option(ctl, self, r, argument, &a))
                        return ctl->exit_status;
        if (r < 0)
                return ctl->exit_status;
        if (argc - first != 1)
                return usage_error(self, "one key is needed");
        if (ctl->json && !a.output)
                return usage_error(self, "--json needs --output: standard output cannot have both "
                                         "the chunk and the JSON");
        a.key_text = argv[first];
        if (key_parse(a.key_text, &a.key) < 0)
                return usage_error(self, KEY_REFUSED, a.key_text);

        r = ctl_connect(ctl);
        if (r)
                return r;
        r = get_chunk(ctl, &a, &result);
        if (r)
                return r;
        r = write_output(a.output, result.data, result.length);
        kvcache_release(ctl->kv, &result.lease, 1);
        return r == EXIT_OK && ctl->json ? print_got(&a, &result) : r;
}

const struct command command_get = {
        .name = "get",
        .arguments = "KEY",
        .summary = "fetch a chunk",
        .help = "Writes a chunk, or a part of it, to standard output or to a file. The daemon\n"
                "verifies the checksum; a chunk that does not match is not found.\n"
                "\n" KEY_HELP,
        .options = get_options,
        .run = run_get,
};
