/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: the daemon moves bytes between a buffer of the program and the disk, without a
 * copy.
 *
 * cc registered-memory.c $(pkg-config --cflags --libs kvcache) && ./a.out [SOCKET] */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create() */
#endif
#include <kvcache.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 4, BLOCK_BYTES = 256 * 1024, BUFFER_BYTES = BLOCKS * BLOCK_BYTES };

/* Creates memory that can be registered: a memfd that cannot shrink. */
static int make_memory(void)
{
        int fd = memfd_create("example", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (fd < 0)
                return -errno;
        if (ftruncate(fd, BUFFER_BYTES) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
                int r = -errno;

                close(fd);
                return r;
        }
        return fd;
}

static int transfer(struct kvcache *kv, uint32_t ns, enum kvcache_op op, unsigned char *buffer)
{
        struct kvcache_entry entries[BLOCKS];
        struct kvcache_result results[BLOCKS];
        struct kvcache_request request;
        int r, good = 0;

        memset(entries, 0, sizeof(entries));
        for (unsigned i = 0; i < BLOCKS; i++) {
                memcpy(entries[i].key.bytes, "registered", 10);
                entries[i].key.bytes[31] = (unsigned char)(i + 1);
                entries[i].data = buffer + i * BLOCK_BYTES; /* a multiple of 4,096 bytes */
                entries[i].length = BLOCK_BYTES;
        }
        if (op == KVCACHE_OP_PUT)
                kvcache_prep_put(&request, ns, entries, BLOCKS, KVCACHE_WRITTEN, results);
        else
                kvcache_prep_get_into(&request, ns, entries, BLOCKS, results);
        r = kvcache_submit_and_wait(kv, &request, NULL);
        if (r < 0)
                return r;
        for (unsigned i = 0; i < BLOCKS; i++)
                good += kvcache_status_ok(results[i].status);
        return good;
}

static int fail(const struct kvcache *kv, const char *what, int error)
{
        fprintf(stderr, "%s: %s: %s\n", what, strerror(-error), kvcache_error(kv));
        return error;
}

static int use(struct kvcache *kv, uint32_t ns, unsigned char *buffer)
{
        int r;

        for (unsigned i = 0; i < BLOCKS; i++)
                memset(buffer + i * BLOCK_BYTES, (int)i + 1, BLOCK_BYTES);
        r = transfer(kv, ns, KVCACHE_OP_PUT, buffer);
        if (r < 0)
                return fail(kv, "the blocks were not stored", r);
        printf("%d of %d blocks were kept\n", r, BLOCKS);
        memset(buffer, 0, BUFFER_BYTES);
        r = transfer(kv, ns, KVCACHE_OP_GET_INTO, buffer);
        if (r < 0)
                return fail(kv, "the blocks were not loaded", r);
        for (unsigned i = 0; i < BLOCKS; i++)
                if (buffer[i * BLOCK_BYTES] != i + 1) {
                        fprintf(stderr, "block %u came back with other bytes\n", i);
                        return -EBADMSG;
                }
        printf("%d of %d blocks came back\n", r, BLOCKS);
        return 0;
}

int main(int argc, char **argv)
{
        struct kvcache_options options = { .size = sizeof(options),
                                           .socket_path = argc > 1 ? argv[1] : NULL };
        struct kvcache_namespace_options ns_options = {
                .size = sizeof(ns_options),
                .name = "example-registered",
                .fingerprint = "dtype=bf16\nmodel=demo\n",
                .chunk_bytes = BLOCK_BYTES,
        };
        struct kvcache_buffer_options buffer_options = { .size = sizeof(buffer_options),
                                                         .bytes = BUFFER_BYTES };
        struct kvcache *kv;
        char why[256];
        uint32_t ns, number;
        void *buffer;
        int r;

        if (kvcache_connect(&kv, &options, why, sizeof(why)) < 0) {
                fprintf(stderr, "cannot connect: %s\n", why);
                return 1;
        }
        r = kvcache_namespace_open(kv, &ns_options, &ns);
        if (r < 0) {
                (void)fail(kv, "the namespace was not opened", r);
                goto closed;
        }
        r = buffer_options.fd = make_memory();
        if (r < 0) {
                fprintf(stderr, "the memory for the blocks cannot be made: %s\n", strerror(-r));
                goto closed;
        }
        r = kvcache_buffer_register(kv, &buffer_options, &number, &buffer);
        if (r < 0) {
                (void)fail(kv, "the memory was not registered", r);
        } else {
                int ended;

                r = use(kv, ns, buffer);
                /* Afterwards only the program accesses the memory. */
                ended = kvcache_buffer_unregister(kv, number);
                if (ended < 0)
                        r = fail(kv, "the memory is still in use", ended);
        }
        close(buffer_options.fd);
closed:
        kvcache_close(kv);
        return r < 0;
}
