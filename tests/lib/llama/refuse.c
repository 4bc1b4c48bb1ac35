/* SPDX-License-Identifier: Apache-2.0 */
/* LLAMA_STUB_REFUSE=N makes the N-th put of the example and all later ones fail, like a daemon that
 * has run out of room. Interposes on the library's function, and calls it. */
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
