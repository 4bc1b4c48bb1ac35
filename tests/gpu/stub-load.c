/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>

#include "stub-cuda.h"

bool stub_cuda_load(struct stub_cuda *ret)
{
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

        if (!library)
                return false;
        *(void **)&ret->run = dlsym(library, "stub_run");
        *(void **)&ret->step = dlsym(library, "stub_step");
        *(void **)&ret->fault = dlsym(library, "stub_fault");
        *(void **)&ret->calls = dlsym(library, "stub_calls");
        *(void **)&ret->live = dlsym(library, "stub_live");
        *(void **)&ret->memory = dlsym(library, "stub_memory");
        *(void **)&ret->reset = dlsym(library, "stub_reset");
        return ret->run && ret->step && ret->fault && ret->calls && ret->live && ret->memory &&
               ret->reset;
}
