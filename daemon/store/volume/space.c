/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the volume smaller when its file system has less room than the limit.
 *
 * A write to a data file, the table or a namespaces file can fail for lack of room although the
 * file has that size already: the file is sparse (store.prewrite: off), the file system never
 * overwrites in place (btrfs, ZFS, reflinks), or a quota was lowered. Evicting a chunk would not
 * help, because a write to the freed slot may fail, too. So the volume removes its coldest data
 * file, which frees space on the file system, and the failed write is tried again. After some
 * removals the volume is as large as the file system permits, and evicts as usual.
 *
 * Loop thread. Failures: while every data file has I/O in flight, none can be removed. Removing
 * files may free no space, because a snapshot shares their blocks or another program takes the
 * space. So after STORE_MOST_IN_VAIN removals without a successful write, the next removal waits
 * for STORE_FULL_PAUSE_NS. */
#include "base/clock.h"
#include "store/volume/internal.h"

bool space_make(struct volume *v, uint8_t epoch)
{
        uint64_t before = v->stats.evictions;
        uint32_t slab;

        volume_note_full(v, true);
        v->no_room_until_ns = clock_mono_ns() + STORE_FULL_PAUSE_NS;
        if (v->bypassed || v->params.as_is)
                return false;
        if (epoch != v->space_epoch)
                return true;
        if (v->given_up_in_vain >= STORE_MOST_IN_VAIN && clock_mono_ns() < v->give_up_after_ns)
                return false;
        slab = room_take_occupied_slab(v);
        if (slab == UINT32_MAX)
                return false;
        segment_retire(v, slab);
        v->space_epoch++;
        v->given_up_in_vain =
                v->given_up_in_vain >= STORE_MOST_IN_VAIN ? 1 : v->given_up_in_vain + 1;
        v->give_up_after_ns = clock_mono_ns() + STORE_FULL_PAUSE_NS;
        v->stats.files_given_up++;
        v->ops.gave_up(v->ops.userdata, v, slab, v->stats.evictions - before);
        return true;
}
