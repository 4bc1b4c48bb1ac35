/* SPDX-License-Identifier: Apache-2.0 */
#include "fake-admin.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct fake_admin fake_admin;

void fake_admin_reset(void)
{
        fake_reset();
        fake_admin = (struct fake_admin){ .record_fd = -1 };
}

static int begin_namespace(struct kvcache *kv, enum fake_call call, const char *name,
                           const char *tenant)
{
        fake_record(fake_admin.name, sizeof(fake_admin.name), name);
        fake_record(fake.tenant, sizeof(fake.tenant), tenant);
        return fake_begin(kv, call);
}

int kvcache_namespace_stat_sized(struct kvcache *kv, const char *name, const char *tenant,
                                 struct kvcache_namespace_info *ret, size_t info_size,
                                 char **ret_fingerprint)
{
        int r = begin_namespace(kv, FAKE_NAMESPACE_STAT, name, tenant);
        const char *fingerprint = fake_admin.fingerprint;

        assert(info_size == sizeof(*ret));
        if (r)
                return r;
        for (size_t i = 0; i < fake.n_namespaces; i++) {
                if (strcmp(fake.namespaces[i].name, name) != 0)
                        continue;
                *ret = fake.namespaces[i];
                if (fake_admin.lifetime_s)
                        ret->lifetime_s = fake_admin.lifetime_s;
                if (fake_admin.fingerprints)
                        fingerprint = fake_admin.fingerprints[i];
                if (ret_fingerprint)
                        *ret_fingerprint = strdup(fingerprint ? fingerprint : "");
                return 0;
        }
        return -ENOENT;
}

int kvcache_namespace_set_lifetime(struct kvcache *kv, const char *name, const char *tenant,
                                   uint32_t lifetime_s)
{
        int r = begin_namespace(kv, FAKE_NAMESPACE_LIFETIME, name, tenant);

        fake_admin.lifetime_s = lifetime_s;
        return r;
}

int kvcache_namespace_remove(struct kvcache *kv, const char *name, const char *tenant,
                             uint32_t flags, uint64_t *ret_dropped)
{
        int r = begin_namespace(kv, FAKE_NAMESPACE_REMOVE, name, tenant);

        fake_admin.remove_flags = flags;
        if (r == 0 && ret_dropped)
                *ret_dropped = fake_admin.dropped;
        return r;
}

static int change_device(struct kvcache *kv, uint32_t volume, bool suspend)
{
        fake_admin.volume = volume;
        fake_admin.suspended = suspend;
        return fake_begin(kv, FAKE_DEVICE);
}

int kvcache_device_suspend(struct kvcache *kv, uint32_t volume)
{
        return change_device(kv, volume, true);
}

int kvcache_device_resume(struct kvcache *kv, uint32_t volume)
{
        return change_device(kv, volume, false);
}

int kvcache_verify(struct kvcache *kv, struct kvcache_verify *verify)
{
        int r = fake_begin(kv, FAKE_VERIFY);
        struct kvcache_verify found = { .volumes = 1, .segments = 1, .segment = 1 };

        assert(verify->size == sizeof(*verify));
        fake_admin.verify = *verify;
        if (r)
                return r;
        if (fake_admin.n_found > 0) {
                found = *fake_admin.found++;
                fake_admin.n_found--;
        }
        found.size = verify->size;
        found.volume = verify->volume;
        *verify = found;
        return 0;
}

static int purge_remote(struct kvcache *kv, uint64_t *ret_dropped, uint32_t *ret_seconds)
{
        int r = fake_begin(kv, FAKE_PURGE);

        fake_admin.purged_remote = true;
        if (r == 0) {
                *ret_dropped = fake_admin.dropped;
                *ret_seconds = fake_admin.other_hosts_seconds;
        }
        return r;
}

int kvcache_purge_remote(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped,
                         uint32_t *ret_seconds)
{
        return purge_remote(kv, ret_dropped, ret_seconds);
}

int kvcache_purge_all_remote(struct kvcache *kv, uint64_t *ret_dropped, uint32_t *ret_seconds)
{
        fake_admin.purged_all = true;
        return purge_remote(kv, ret_dropped, ret_seconds);
}

int kvcache_remote_sweep(struct kvcache *kv, struct kvcache_sweep *sweep)
{
        int r = fake_begin(kv, FAKE_SWEEP);

        assert(sweep->size == sizeof(*sweep));
        fake_admin.sweep = *sweep;
        if (r)
                return r;
        sweep->seen = fake_admin.swept.seen;
        sweep->seen_bytes = fake_admin.swept.seen_bytes;
        sweep->deleted = fake_admin.swept.deleted;
        sweep->deleted_bytes = fake_admin.swept.deleted_bytes;
        return 0;
}

int kvcache_reload(struct kvcache *kv, char **ret_json)
{
        int r = fake_begin(kv, FAKE_RELOAD);

        if (r)
                return r;
        *ret_json = strdup(fake_admin.reloaded ? fake_admin.reloaded : "{}");
        return fake_admin.reload_refused;
}

int kvcache_record(struct kvcache *kv, uint32_t duration_s, int *ret_fd)
{
        int r = fake_begin(kv, FAKE_RECORD);

        fake_admin.record_s = duration_s;
        if (r == 0)
                *ret_fd = fake_admin.record_fd;
        return r;
}

/* Returns the next of `n` results, and copies its events. */
static int take_events(const int **results, size_t *n, struct kvcache_event *ret, size_t max)
{
        int r;

        if (*n == 0)
                return 0;
        r = *(*results)++;
        --*n;
        assert(r <= (int)max);
        for (int i = 0; i < r; i++)
                ret[i] = *fake_admin.events++;
        return r;
}

int kvcache_events_next_sized(struct kvcache *kv, struct kvcache_events_position *position,
                              struct kvcache_event *ret, size_t event_size, size_t max,
                              uint32_t wait_ms)
{
        int r = fake_begin(kv, FAKE_EVENTS);

        assert(event_size == sizeof(*ret));
        if (r == 0 && wait_ms > 0 && fake_admin.n_event_results == 0)
                return -EPIPE;
        if (r == 0)
                r = take_events(&fake_admin.event_results, &fake_admin.n_event_results, ret, max);
        if (r == -ESTALE)
                *position = (struct kvcache_events_position){ .epoch = 1, .next = 9, .oldest = 5 };
        return r;
}

int kvcache_events_snapshot_sized(struct kvcache *kv,
                                  const struct kvcache_events_position *position, uint64_t *cursor,
                                  struct kvcache_event *ret, size_t event_size, size_t max)
{
        int r = take_events(&fake_admin.snapshot_results, &fake_admin.n_snapshot_results, ret, max);

        assert(event_size == sizeof(*ret) && position->epoch == 1);
        *cursor = fake_admin.n_snapshot_results;
        if (fake_admin.snapshot_signal)
                raise(fake_admin.snapshot_signal);
        return r;
}
