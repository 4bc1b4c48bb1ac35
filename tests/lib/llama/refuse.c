/* SPDX-License-Identifier: Apache-2.0 */
/* LLAMA_STUB_REFUSE=N has the N-th put of the example and those behind it be refused, as a daemon
 * without room does after a while: stands before the library's function, which it calls. */
#include <dlfcn.h>
#include <kvcache.h>
#include <stdlib.h>

int kvcache_submit_and_wait(struct kvcache *kv, const struct kvcache_request *request,
                            uint64_t *ret_value)
{
        int (*real)(struct kvcache *, const struct kvcache_request *, uint64_t *);
        const char *refuse = getenv("LLAMA_STUB_REFUSE");
        static int puts;

        if (refuse && request->op == KVCACHE_OP_PUT && ++puts >= atoi(refuse)) {
                request->results[0] = (struct kvcache_result){ .status = KVCACHE_BUSY };
                return 0;
        }
        *(void **)&real = dlsym(RTLD_NEXT, "kvcache_submit_and_wait");
        return real ? real(kv, request, ret_value) : -1;
}
