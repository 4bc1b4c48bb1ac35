/* SPDX-License-Identifier: Apache-2.0 */
/* A startup on any disk: the input damages the superblock, namespaces and table ring of a good
 * store. The store opens or gives a reason. It then returns only bytes that were put; a put, a drop
 * and a purge work; and the next startup opens it.
 *
 * libFuzzer runs it. A good store is made once. Its files and their damaged copies are in
 * memory-files.c, and inline-io.c performs the I/O, so that an execution needs one thread and no
 * disk.
 *
 * The input: a byte that chooses what is done (enum doing), one that chooses the file call that
 * fails, if any, and then changes for image_change(). */
#include <assert.h>
#include <errno.h>

#include "memory-files.h"
#include "store-image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum doing {
        DO_READ = 1 << 0,   /* some of the keys; which ones, the two highest bits say */
        DO_WRITE = 1 << 1,  /* a put, a drop and a purge in a namespace that is opened */
        DO_SHRINK = 1 << 2, /* with a limit below the stored chunks */
        DO_AS_IS = 1 << 3,  /* to look at it only */
        DO_AGAIN = 1 << 4,  /* a second start, on what the first one left */
};

static void read_keys(uint32_t first)
{
        for (uint32_t k = first; k < IMAGE_KEYS; k += 4)
                for (unsigned i = 0; i < IMAGE_NAMES && store_namespace_at(image_store, i); i++)
                        image_get(store_namespace_at(image_store, i)->id, k);
}

static void write_keys(void)
{
        uint32_t ns = image_namespace(1);
        struct key key = image_key(IMAGE_KEYS);

        if (ns == 0)
                return;
        if (image_put(ns, IMAGE_KEYS) == 0)
                image_get(ns, IMAGE_KEYS);
        store_drop(image_store, ns, &key, store_hash(image_store, ns, &key));
        image_purge(ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static bool made;
        char error[512] = "";
        uint64_t limit;
        unsigned doing;
        int r;

        if (!made)
                image_make();
        made = true;
        if (size < 2)
                return 0;
        doing = data[0];
        limit = doing & DO_SHRINK ? IMAGE_LIMIT / 4 * 3 : IMAGE_LIMIT;
        memory_files_reset();
        image_change(NULL, data + 2, size - 2);
        memory_files_fail(data[1], data[1] & 1 ? EIO : ENOSPC);
        r = image_open(limit, doing & DO_AS_IS, error);
        if (r < 0) {
                assert(error[0] != '\0');
                return 0;
        }
        if (doing & DO_READ)
                read_keys(doing >> 6);
        if (doing & DO_WRITE)
                write_keys();
        image_close();
        if (doing & DO_AGAIN) {
                memory_files_fail(0, 0);
                if (image_open(limit, doing & DO_AS_IS, error) == 0)
                        image_close();
        }
        return 0;
}
