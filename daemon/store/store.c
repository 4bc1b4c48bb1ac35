/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, iterates and closes the store; see store.h for the contract, internal.h for the tasks of
 * the other files, and README.md for the format. Combines several independent volumes into one
 * store.
 *
 * Opening proceeds in steps, each for all volumes: prepare them; check that they form one set;
 * divide the limit; create the new volumes; open all; give each the others' records. After that,
 * each iteration runs the volumes, reports their changes and completes requests, until no work is
 * left. Loop thread; while the store is open, blocking work runs on the blocking-call thread of the
 * volume. Owns struct store and the volumes.
 *
 * Failures: if a device fails at startup, its volume is bypassed, unless no other volume is left. A
 * mistake in the configuration, or the failure of all volumes, ends startup with one sentence.
 * After startup, a failure affects one volume (health.c) or one request. Once the store stops,
 * store_iterate() is no longer called, so completions call store_reap() themselves. */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checked.h"
#include "cleanup.h"
#include "evict/evict.h"
#include "store/internal.h"

DEFINE_CLEANUP(struct store *, store_close);

/* --- opening --- */

static int check_params(const struct store_params *params, char ret_error[static STORE_ERROR_BYTES])
{
        if (params->n_paths == 0 || !params->paths[0])
                return store_error(ret_error, -EINVAL,
                                   "store.path: at least one directory is required");
        if (params->n_paths > STORE_MAX_VOLUMES)
                return store_error(ret_error, -EINVAL,
                                   "store.path: more than %u directories; remove some",
                                   (unsigned)STORE_MAX_VOLUMES);
        if (!params->as_is &&
            (params->limit / params->n_paths < VOLUMES_MIN_LIMIT || params->limit > INT64_MAX / 2))
                return store_error(
                        ret_error, -EINVAL,
                        "store.limit: %llu bytes are out of range; use at least %u MiB%s",
                        (unsigned long long)params->limit, VOLUMES_MIN_LIMIT / 1024 / 1024,
                        params->n_paths > 1 ? " per volume" : "");
        if (!evict_policy_exists(params->policy))
                return store_error(ret_error, -EINVAL,
                                   "eviction.policy: \"%s\" does not exist; use cq or lru",
                                   params->policy);
        for (unsigned i = 0; i < params->n_paths; i++)
                for (unsigned j = 0; j < i; j++) {
                        struct stat a, b;

                        if (strcmp(params->paths[i], params->paths[j]) == 0 ||
                            (stat(params->paths[i], &a) == 0 && stat(params->paths[j], &b) == 0 &&
                             a.st_dev == b.st_dev && a.st_ino == b.st_ino))
                                return store_error(ret_error, -EINVAL,
                                                   "store.path: %s and %s are the same directory",
                                                   params->paths[j], params->paths[i]);
                }
        return 0;
}

int store_prepare_volume(struct member *p, int lock_fd, struct volume **ret,
                         char ret_error[static STORE_ERROR_BYTES])
{
        return volume_prepare(ret,
                              &(struct volume_params){
                                      .store = &p->store->params,
                                      .path = p->name,
                                      .number = p->number,
                                      .lock_fd = lock_fd,
                                      .ops = &p->store->ops,
                              },
                              ret_error);
}

/* Creates volumes in the empty directories. If that fails, the number announced for the volume may
 * be given again, unless the volume may exist. */
static int make_fresh(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        unsigned left = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                left += s->volumes[i].volume && volume_is_fresh(s->volumes[i].volume);
        for (unsigned i = 0; left > 0 && i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];
                int r;

                if (!p->volume || !volume_is_fresh(p->volume))
                        continue;
                r = volume_make(p->volume, s->in_set ? s->set : NULL, s->set_count,
                                s->set_count + left--, p->error);
                s->set_count += r == 0 || volume_is_half_made(p->volume);
                if (r < 0)
                        r = health_leave_out(p, r, ret_error);
                if (r < 0)
                        return r;
        }
        return 0;
}

int store_prepare(struct store **ret, const struct store_params *params, char ret_error[static 512])
{
        _cleanup_(store_closep) struct store *s = NULL;
        int r = check_params(params, ret_error), failed = 0;

        if (r < 0)
                return r;
        s = calloc(1, sizeof(*s));
        if (!s)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        list_init(&s->watches);
        list_init(&s->fan_outs);
        list_init(&s->removals);
        list_init(&s->held);
        list_init(&s->done);
        sync_all_init(s);
        s->params = *params;
        s->params.paths = NULL; /* the array belongs to the caller */
        s->policy = strdup(params->policy);
        s->params.policy = s->policy;
        s->policy_now = evict_policy_name(params->policy);
        s->n_volumes = params->n_paths;
        s->ops = (struct volume_ops){
                .put_done = placement_put_done,
                .bypassed = health_on_bypassed,
                .doubtful = health_on_doubtful,
                .full = health_on_full,
                .gave_up = health_on_gave_up,
                .astray = health_on_astray,
                .placement = s->n_volumes > 1 ? placement_of : NULL,
                .userdata = s,
        };
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];

                p->store = s;
                p->number = i;
                p->name = strdup(params->paths[i]);
                if (!s->policy || !p->name)
                        return store_error(ret_error, -ENOMEM, "out of memory for the store");
        }
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];

                r = store_prepare_volume(p, -1, &p->volume, p->error);
                if (r == 0) {
                        health_set_state(p, STORE_VOLUME_UP, "");
                        p->since_ms = 0;
                        continue;
                }
                if (!health_may_start_without(s, r))
                        return store_error(ret_error, r, "%s", p->error);
                if (failed++ == 0)
                        store_error(ret_error, r, "%s", p->error);
                p->state = STORE_VOLUME_BYPASSED;
                p->news = true;
                member_set_reason(p, p->error);
        }
        if (s->up == 0)
                return r;
        r = membership_check(s, ret_error);
        if (r == 0)
                r = membership_found(s, ret_error);
        if (r < 0)
                return r;
        capacity_give_out(s);
        r = make_fresh(s, ret_error);
        if (r < 0)
                return r;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (s->volumes[i].volume)
                        membership_prepare_superblock(&s->volumes[i], s->volumes[i].volume,
                                                      s->set_count);
        *ret = TAKE_PTR(s);
        return 0;
}

unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_VOLUMES])
{
        unsigned n = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i))
                        ret_fds[n++] = volume_lock_fd(s->volumes[i].volume);
        return n;
}

int store_probe_fd(const struct store *s)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i))
                        return volume_probe_fd(s->volumes[i].volume);
        return -1;
}

int store_read_format(const char *path, struct store_format *ret,
                      char ret_error[static STORE_ERROR_BYTES])
{
        return volume_read_format(path, ret, ret_error);
}

const char *store_volume_path(const struct store *s, unsigned i)
{
        return i < s->n_volumes ? s->volumes[i].name : NULL;
}

int store_open(struct store *s, struct kio *io, char ret_error[static 512])
{
        int r = -EIO;

        s->io = io;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];
                int failed;

                if (!p->volume)
                        continue;
                failed = volume_open(p->volume, io, p->error);
                if (failed == 0)
                        continue;
                if (!health_may_start_without(s, failed))
                        return store_error(ret_error, failed, "%s", p->error);
                r = store_error(ret_error, failed, "%s", p->error);
                health_set_state(p, STORE_VOLUME_BYPASSED, p->error);
                p->since_ms = 0;
                p->news = true;
        }
        if (s->up == 0)
                return r;
        r = membership_join_all(s, ret_error);
        if (r < 0)
                return r;
        s->open = true;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];

                health_tell_losses(p);
                if (p->emptied)
                        health_tell(p, STORE_VOLUME_IS_EMPTIED, "");
                if (p->news)
                        health_tell(p, STORE_VOLUME_IS_BYPASSED, p->reason);
                p->news = p->emptied = false;
        }
        return 0;
}

/* --- iterating --- */

void store_reap(struct store *s)
{
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];

                if (p->news)
                        health_tell_news(p);
                if (p->suspending)
                        health_rest_when_quiet(p);
                if (p->numbering)
                        health_number_when_marked(p);
        }
        sync_all_iterate(s);
        fan_out_answer_due(s);
}

static int do_nothing(struct kio_request *req)
{
        (void)req;
        return 0;
}

static void nudged(struct kio_request *req)
{
        struct store *s = container_of(req, struct store, nudge_io);

        s->nudged = false;
        store_reap(s);
}

void store_nudge(struct store *s)
{
        s->again = true;
        if (!s->stopping || s->nudged || !s->io)
                return;
        s->nudged = true;
        s->nudge_io = (struct kio_request){
                .op = KIO_CALL, .class = KIO_CLASS_GET, .call = do_nothing, .complete = nudged
        };
        list_init(&s->nudge_io.node);
        kio_submit(s->io, &s->nudge_io, 0);
        kio_flush(s->io);
}

void store_iterate(struct store *s)
{
        if (!s->open)
                return;
        store_sweep(s);
        do {
                s->again = false;
                for (unsigned i = 0; i < s->n_volumes; i++)
                        if (member_has_volume(s, i) &&
                            !(s->volumes[i].calling && s->volumes[i].resting))
                                volume_iterate(s->volumes[i].volume);
                store_reap(s);
        } while (s->again);
}

uint64_t store_deadline_ns(const struct store *s)
{
        uint64_t soonest = 0;

        for (unsigned i = 0; i < s->n_volumes; i++) {
                uint64_t at = member_is_up(s, i) ? volume_deadline_ns(s->volumes[i].volume) : 0;

                if (at && (soonest == 0 || at < soonest))
                        soonest = at;
        }
        return soonest;
}

void store_stop(struct store *s)
{
        if (!s)
                return;
        s->stopping = true;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                health_stop(&s->volumes[i]);
                if (member_has_volume(s, i))
                        volume_stop(s->volumes[i].volume);
        }
        if (s->open)
                store_reap(s);
}

uint64_t store_pending(const struct store *s)
{
        uint64_t pending = s->waiting + s->nudged + s->sweeping;

        for (unsigned i = 0; i < s->n_volumes; i++)
                pending += s->volumes[i].calling +
                           (member_has_volume(s, i) ? volume_pending(s->volumes[i].volume) : 0);
        return pending;
}

struct store *store_close(struct store *s)
{
        if (!s)
                return NULL;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                loans_forget_volume(s, i);
                volume_close(s->volumes[i].volume);
                free(s->volumes[i].name);
        }
        free(s->loans);
        fan_out_fini(s);
        set_namespaces_fini(s);
        free(s->tenant_limits);
        free(s->policy);
        free(s);
        return NULL;
}

/* --- watch and walk --- */

static bool is_walked(const struct store *s, unsigned i)
{
        return member_has_volume(s, i) && volume_is_open(s->volumes[i].volume);
}

void store_add_watch(struct store *s, struct store_watch *watch)
{
        list_append(&s->watches, &watch->node);
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (is_walked(s, i))
                        volume_set_watches(s->volumes[i].volume, &s->watches);
}

void store_remove_watch(struct store_watch *watch)
{
        list_unlink(&watch->node);
}

bool store_is_in_use(const struct store *s, uint64_t at)
{
        unsigned volume = (unsigned)(at >> STORE_WALK_RECORD_BITS);

        return volume < s->n_volumes && member_is_up(s, volume);
}

static bool is_readable(const struct store *s, unsigned i)
{
        return member_is_up(s, i) && volume_is_open(s->volumes[i].volume);
}

void store_report_leaving(struct store *s,
                          void (*each)(void *userdata, const struct store_leaving *leaving),
                          void *userdata)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (is_readable(s, i))
                        volume_report_leaving(s->volumes[i].volume, each, userdata);
}

void store_next(const struct store *s, uint16_t tenant, unsigned most,
                void (*each)(void *userdata, const struct store_leaving *leaving), void *userdata)
{
        unsigned classes = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (is_readable(s, i))
                        classes += volume_classes_in_use(s->volumes[i].volume, tenant);
        for (unsigned i = 0; i < s->n_volumes && classes > 0; i++) {
                const struct volume *v = s->volumes[i].volume;

                if (is_readable(s, i))
                        volume_next(v, tenant, most * volume_classes_in_use(v, tenant) / classes,
                                    MAX(most / classes, 1U), each, userdata);
        }
}

static void walk(const struct store *s, uint64_t *cursor, unsigned max_records, bool findable,
                 void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                              uint32_t length),
                 void *userdata)
{
        uint64_t volume = *cursor >> STORE_WALK_RECORD_BITS;
        uint32_t record = (uint32_t)*cursor;

        while (volume < s->n_volumes && (!is_walked(s, (unsigned)volume) ||
                                         (findable && !member_is_up(s, (unsigned)volume)))) {
                volume++;
                record = 0;
        }
        if (volume < s->n_volumes &&
            !volume_walk(s->volumes[volume].volume, &record, max_records, each, userdata)) {
                volume++;
                record = 0;
        }
        *cursor = volume < s->n_volumes ? store_walk_at((unsigned)volume, record) : STORE_WALK_END;
}

void store_walk(const struct store *s, uint64_t *cursor, unsigned max_records,
                void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                             uint32_t length),
                void *userdata)
{
        walk(s, cursor, max_records, false, each, userdata);
}

void store_walk_findable(const struct store *s, uint64_t *cursor, unsigned max_records,
                         void (*each)(void *userdata, uint32_t namespace_id, const struct key *key,
                                      uint32_t length),
                         void *userdata)
{
        walk(s, cursor, max_records, true, each, userdata);
}

/* --- eviction policy and verification --- */

bool store_remembers(const struct store *s, uint32_t namespace_id, const struct key *key,
                     uint64_t hash)
{
        unsigned i = s->n_volumes == 1 ? 0 : placement_of(s, namespace_id, key);

        return member_is_up(s, i) && volume_remembers(s->volumes[i].volume, hash);
}

uint8_t store_remembered_gap(const struct store *s, uint32_t namespace_id, const struct key *key,
                             uint64_t hash, struct evict_return *ret)
{
        unsigned i = s->n_volumes == 1 ? 0 : placement_of(s, namespace_id, key);

        return member_is_up(s, i) ? volume_remembered_gap(s->volumes[i].volume, hash, ret)
                                  : EVICT_NO_GAP;
}

void store_admit_all(struct store *s, bool all)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i))
                        volume_admit_all(s->volumes[i].volume, all);
}

int store_set_policy(struct store *s, const char *policy)
{
        int ret = 0;

        s->policy_now = evict_policy_name(policy);
        for (unsigned i = 0; i < s->n_volumes; i++) {
                int r = member_has_volume(s, i) ? volume_set_policy(s->volumes[i].volume, policy)
                                                : 0;

                if (r < 0)
                        ret = r;
        }
        return ret;
}

void store_set_scrub(struct store *s, const struct store_scrub *scrub)
{
        s->params.scrub = *scrub;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i))
                        volume_set_scrub(s->volumes[i].volume, scrub);
}

int store_verify(struct store *s, struct store_verify *req)
{
        req->volumes = s->n_volumes;
        if (req->volume >= s->n_volumes)
                return STORE_MISS;
        return member_is_up(s, req->volume) ? volume_verify(s->volumes[req->volume].volume, req)
                                            : STORE_BYPASSED;
}

/* --- saving and restoring the eviction order --- */

unsigned store_volumes(const struct store *s)
{
        return s->n_volumes;
}

const struct evict *store_eviction(const struct store *s, unsigned volume)
{
        return volume < s->n_volumes && member_is_up(s, volume)
                       ? volume_eviction(s->volumes[volume].volume)
                       : NULL;
}

uint32_t store_save_order(const struct store *s, unsigned volume, uint32_t *cursor,
                          uint32_t max_records, struct evict_record *ret, uint32_t room)
{
        if (store_eviction(s, volume))
                return volume_save_order(s->volumes[volume].volume, cursor, max_records, ret, room);
        *cursor = UINT32_MAX;
        return 0;
}

uint32_t store_restore_order(struct store *s, unsigned volume, const struct store_order *order)
{
        return store_eviction(s, volume) ? volume_restore_order(s->volumes[volume].volume, order)
                                         : 0;
}

/* --- statistics --- */

uint64_t store_max_chunk(const struct store *s)
{
        uint64_t bytes = UINT64_MAX;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i) && volume_max_chunk(s->volumes[i].volume) > 0)
                        bytes = MIN(bytes, volume_max_chunk(s->volumes[i].volume));
        return bytes == UINT64_MAX ? 0 : bytes;
}

static void add_stats(struct store_stats *sum, const struct store_stats *one)
{
#define ADD(member) sum->member += one->member
        ADD(used_bytes);
        ADD(payload_bytes);
        ADD(chunks);
        ADD(entries_max);
        ADD(slots);
        ADD(segments);
        ADD(segments_max);
        for (unsigned i = 0; i < STORE_MEMORY_PARTS; i++)
                ADD(memory[i]);
        ADD(table_pages);
        ADD(table_pages_written);
        ADD(table_entries_written);
        ADD(table_entries_carried);
        ADD(puts);
        ADD(gets);
        ADD(drops);
        ADD(evictions);
        ADD(evicted_bytes);
        ADD(payload_bytes_written);
        ADD(table_bytes_written);
        ADD(prewrite_bytes_written);
        ADD(bytes_read);
        ADD(payload_writes);
        ADD(table_writes);
        ADD(reads);
        ADD(syncs);
        ADD(crc_failures);
        ADD(crc_rereads);
        sum->crc_failed_ns = MAX(sum->crc_failed_ns, one->crc_failed_ns);
        ADD(read_errors);
        ADD(write_errors);
        ADD(sync_errors);
        ADD(recovered_chunks);
        ADD(recovered_pages);
        ADD(skipped_pages);
        ADD(lost_chunks);
        ADD(lost_files);
        sum->lost_ns = MAX(sum->lost_ns, one->lost_ns);
        ADD(recover_ms);
        ADD(slab_moves);
        ADD(retained_evictions);
        ADD(expired);
        ADD(handovers);
        ADD(handover_failures);
        ADD(handover_replacements);
        ADD(files_given_up);
        ADD(detached_files);
        ADD(scrub_bytes);
        ADD(scrub_chunks);
        ADD(scrub_failures);
        ADD(scrub_passes);
        ADD(scrub_segments_done);
        ADD(scrub_segments);
        ADD(scrub_pinned);
#undef ADD
        evict_add_stats(&sum->evict, &one->evict);
        sum->purges = MAX(sum->purges, one->purges);
        sum->segment_bytes = MAX(sum->segment_bytes, one->segment_bytes);
        sum->scrub_last_pass_ms = MAX(sum->scrub_last_pass_ms, one->scrub_last_pass_ms);
        if (!one->direct && sum->direct) {
                sum->direct = false;
                sum->direct_reason = one->direct_reason;
        }
        sum->clean_start = sum->clean_start && one->clean_start;
}

void store_get_stats(const struct store *s, struct store_stats *ret)
{
        struct store_stats sum = { .direct = true, .direct_reason = "", .clean_start = true };

        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct store_stats one;

                if (!member_has_volume(s, i))
                        continue;
                volume_get_stats(s->volumes[i].volume, &one);
                add_stats(&sum, &one);
        }
        sum.limit = s->params.limit;
        sum.namespaces = s->n_namespaces;
        sum.bypassed = s->up == 0;
        *ret = sum;
}

void store_get_evicted_ages(const struct store *s, struct histogram *ret)
{
        *ret = (struct histogram){ 0 };
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i))
                        histogram_merge(ret, volume_evicted_ages(s->volumes[i].volume));
}

bool store_get_volume_stats(const struct store *s, unsigned i, struct store_volume_stats *ret)
{
        const struct member *p = &s->volumes[i];
        const struct file_system *fs;

        if (i >= s->n_volumes)
                return false;
        *ret = (struct store_volume_stats){
                .path = p->name,
                .state = p->state,
                .reason = p->reason,
                .since_ms = p->since_ms,
                .bypasses = p->bypasses,
                .hung = p->hung,
                .oldest_ns = s->io ? kio_oldest(s->io, i + 1) : 0,
                .file_system = "",
                .file_system_warning = "",
                .file_system_advice = "",
                .stats = { .limit = p->limit, .direct_reason = "" },
        };
        if (!p->volume)
                return true;
        volume_get_stats(p->volume, &ret->stats);
        fs = volume_file_system(p->volume);
        ret->file_system = fs->name;
        ret->file_system_warning = fs->warning;
        ret->file_system_advice = fs->advice;
        ret->pending = volume_pending(p->volume);
        ret->full = volume_is_full(p->volume, &ret->full_refusals);
        return true;
}

unsigned store_volumes_up(const struct store *s)
{
        return (unsigned)__builtin_popcount(s->up);
}
