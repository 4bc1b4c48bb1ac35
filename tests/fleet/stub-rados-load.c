/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>

#include "stub-rados.h"

bool stub_rados_load(struct stub_rados *ret)
{
        void *library = dlopen("librados.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

        if (!library)
                return false;
        *(void **)&ret->fault = dlsym(library, "stub_fault");
        *(void **)&ret->hang = dlsym(library, "stub_hang");
        *(void **)&ret->ignore_cancel = dlsym(library, "stub_ignore_cancel");
        *(void **)&ret->hang_connect = dlsym(library, "stub_hang_connect");
        *(void **)&ret->lie = dlsym(library, "stub_lie");
        *(void **)&ret->calls = dlsym(library, "stub_calls");
        *(void **)&ret->option = dlsym(library, "stub_option");
        *(void **)&ret->set_mtime = dlsym(library, "stub_set_mtime");
        *(void **)&ret->mtime = dlsym(library, "stub_mtime");
        *(void **)&ret->has = dlsym(library, "stub_has");
        *(void **)&ret->live = dlsym(library, "stub_live");
        *(void **)&ret->pending = dlsym(library, "stub_pending");
        *(void **)&ret->reset = dlsym(library, "stub_reset");
        return ret->fault && ret->hang && ret->ignore_cancel && ret->hang_connect && ret->lie &&
               ret->calls && ret->option && ret->set_mtime && ret->mtime && ret->has && ret->live &&
               ret->pending && ret->reset;
}
