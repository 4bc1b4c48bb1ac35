/* SPDX-License-Identifier: Apache-2.0 */
/* The trace reader of kvcache-bench replay, and with it its JSON parser: any bytes are read to
 * their end, or to an error that names the place, and the requests are consistent.
 *
 * libFuzzer runs it. The bytes are a file in memory, opened by its name under /proc. */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static int fd = -1;
        struct trace_request request;
        struct trace *t = NULL;
        char error[TRACE_ERROR_BYTES] = "", path[64];
        int r;

        if (fd < 0)
                fd = memfd_create("trace", 0);
        assert(fd >= 0);
        r = ftruncate(fd, 0);
        assert(r == 0);
        if (size > 0 && pwrite(fd, data, size, 0) != (ssize_t)size)
                return 0;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        r = trace_open(&t, path, &(struct trace_format){ 0 }, error);
        assert(r == 0);
        while ((r = trace_next(t, &request, error)) == 1) {
                assert(request.n_ids == 0 || request.ids);
                for (size_t i = 0; i < request.n_ids; i++)
                        assert(request.ids[i] <= UINT64_C(1) << 53);
                assert(request.timestamp_ms <= UINT64_C(1) << 53);
        }
        if (r < 0) {
                assert(error[0] != '\0' && memchr(error, '\0', sizeof(error)));
                assert(r != -EBADMSG || strstr(error, path));
        }
        trace_close(t);
        return 0;
}
