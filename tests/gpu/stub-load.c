/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>

#include "stub-cuda.h"
#include "stub-cufile.h"

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
        *(void **)&ret->begin_capture = dlsym(library, "stub_begin_capture");
        *(void **)&ret->end_capture = dlsym(library, "stub_end_capture");
        *(void **)&ret->arm_capture = dlsym(library, "stub_arm_capture");
        *(void **)&ret->disarm_capture = dlsym(library, "stub_disarm_capture");
        return ret->begin_capture && ret->end_capture && ret->arm_capture && ret->disarm_capture &&
               ret->run && ret->step && ret->fault && ret->calls && ret->live && ret->memory &&
               ret->reset;
}

bool stub_cufile_load(struct stub_cufile *ret)
{
        void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

        if (!library)
                return false;
        *(void **)&ret->fault = dlsym(library, "stub_cufile_fault");
        *(void **)&ret->calls = dlsym(library, "stub_cufile_calls");
        *(void **)&ret->live = dlsym(library, "stub_cufile_live");
        *(void **)&ret->hold = dlsym(library, "stub_cufile_hold");
        *(void **)&ret->set_nvfs = dlsym(library, "stub_cufile_set_nvfs");
        *(void **)&ret->reset = dlsym(library, "stub_cufile_reset");
        return ret->fault && ret->calls && ret->live && ret->hold && ret->set_nvfs && ret->reset;
}
