/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the volume smaller when its file system has less room than the limit.
 *
 * A write into a data file, the table or the list of namespaces can fail for lack of room although
 * the volume counts the place as its own: the file is sparse (store.prewrite: off), the file system
 * never overwrites in place (btrfs, ZFS, reflinks), or a quota was lowered. Evicting a chunk would
 * not help, since its place may be as unwritable. So the volume removes its coldest data file,
 * which returns room to the file system, and the failed write is tried again. After some of these
 * the volume is as large as the file system permits, and evicts as usual.
 *
 * Loop thread. Failures: while I/O runs in every data file, none can be removed. Where removing
 * files brings no room, as their blocks belong to a snapshot too or another program takes them, it
 * stops after a few, and continues after a pause. */
#include "base/clock.h"
#include "store/volume/internal.h"

enum { MOST_IN_VAIN = 4 };

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
        if (v->given_up_in_vain >= MOST_IN_VAIN && clock_mono_ns() < v->give_up_after_ns)
                return false;
        slab = room_take_occupied_slab(v);
        if (slab == UINT32_MAX)
                return false;
        segment_retire(v, slab);
        v->space_epoch++;
        v->given_up_in_vain = v->given_up_in_vain >= MOST_IN_VAIN ? 1 : v->given_up_in_vain + 1;
        v->give_up_after_ns = clock_mono_ns() + STORE_FULL_PAUSE_NS;
        v->stats.files_given_up++;
        v->ops.gave_up(v->ops.userdata, v, slab, v->stats.evictions - before);
        return true;
}
