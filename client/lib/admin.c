/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that send one message and wait for its reply: opening namespaces, list, purge, sweep,
 * verify, volumes, ping, reports, benchmark sessions, recordings, reload.
 *
 * Runs in the handle's thread. Owns the table of namespaces. A namespace handle is a row's number
 * plus one and outlives the session. The daemon's id in the row belongs to one session, and is
 * requested again when it is first needed in the next.
 *
 * Each call connects if necessary, sends its message and waits for at most the handle's timeout. A
 * refusal of the daemon is returned as an errno, with its text as the error text. */
#include "lib/admin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "fingerprint.h"
#include "lib/abi.h"
#include "lib/connection.h"
#include "lib/flow.h"

enum { REPORT_MAX = 256 << 20, VERIFY_CHUNKS = 4096, VERIFY_BYTES = 16 << 20 };

int admin_begin(struct kvcache *kv)
{
        int r = handle_enter(kv);

        if (r < 0)
                return r;
        flow_check_idle(kv);
        r = conn_ready(kv);
        if (r < 0)
                handle_leave(kv);
        return r;
}

int admin_call(struct kvcache *kv, struct message *m, struct control *c)
{
        int r = flow_call(kv, m, c, handle_deadline(0, kv->request_timeout_ms));

        handle_leave(kv);
        return r;
}

/* Begins a call, opens the namespace in this session, and sets `*ret_id` to the daemon's number of
 * it. Returns 0, or -errno after ending the call. */
static int begin_in(struct kvcache *kv, uint32_t namespace_handle, uint32_t *ret_id)
{
        int r = admin_begin(kv);

        if (r < 0)
                return r;
        r = admin_namespace_ready(kv, namespace_handle, ret_id);
        if (r < 0)
                handle_leave(kv);
        return r;
}

/* --- namespaces --- */

static int namespace_call(struct kvcache *kv, struct namespace *ns)
{
        size_t name = strlen(ns->name), fingerprint = ns->fingerprint ? strlen(ns->fingerprint) : 0;
        struct wire_namespace *w;
        struct control c = { 0 };
        struct message *m;
        int r;

        if (ns->lifetime_s > 0 && !(kv->conn->features & WIRE_FEATURE_LIFETIME))
                return handle_fail(kv, -EOPNOTSUPP, "this daemon is too old for lifetimes");
        m = message_new(WIRE_NAMESPACE, sizeof(*w) + name + fingerprint);
        if (!m)
                return handle_no_memory(kv);
        w = (struct wire_namespace *)m->data;
        w->hdr.flags = (ns->flags & KVCACHE_ATTACH) ? WIRE_F_ATTACH : 0;
        w->chunk_bytes = ns->chunk_bytes;
        w->lifetime_s = ns->lifetime_s;
        w->name_length = (uint16_t)name;
        w->fingerprint_length = (uint16_t)fingerprint;
        memcpy(w + 1, ns->name, name);
        if (fingerprint > 0)
                memcpy((char *)(w + 1) + name, ns->fingerprint, fingerprint);
        r = flow_call(kv, m, &c, handle_deadline(0, kv->request_timeout_ms));
        if (r < 0)
                return r;
        ns->id = c.value;
        ns->session = kv->sessions;
        return 0;
}

int admin_namespace_ready(struct kvcache *kv, uint32_t namespace_handle, uint32_t *ret_id)
{
        struct namespace *ns;
        int r;

        if (namespace_handle == 0 || namespace_handle > kv->n_namespaces)
                return handle_fail(kv, -EINVAL,
                                   "%u is not a namespace of this handle: open one with "
                                   "kvcache_namespace_open()",
                                   namespace_handle);
        ns = &kv->namespaces[namespace_handle - 1];
        if (ns->session != kv->sessions) {
                r = namespace_call(kv, ns);
                if (r < 0)
                        return r;
        }
        *ret_id = ns->id;
        return 0;
}

static void namespace_fini(struct namespace *ns)
{
        free(ns->name);
        free(ns->fingerprint);
}

void admin_namespaces_free(struct kvcache *kv)
{
        for (uint32_t i = 0; i < kv->n_namespaces; i++)
                namespace_fini(&kv->namespaces[i]);
        free(kv->namespaces);
}

static bool namespace_equal(const struct namespace *ns, const struct kvcache_namespace_options *o)
{
        return strcmp(ns->name, o->name) == 0 && !ns->fingerprint == !o->fingerprint &&
               (!ns->fingerprint || strcmp(ns->fingerprint, o->fingerprint) == 0) &&
               ns->flags == o->flags && ns->chunk_bytes == o->chunk_bytes &&
               ns->lifetime_s == o->lifetime_s;
}

static int namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *o,
                          uint32_t *ret)
{
        struct namespace ns = { .chunk_bytes = o->chunk_bytes,
                                .lifetime_s = o->lifetime_s,
                                .flags = o->flags },
                         *table;
        uint32_t id = 0;
        int r;

        for (uint32_t i = 0; i < kv->n_namespaces; i++) {
                if (!namespace_equal(&kv->namespaces[i], o))
                        continue;
                r = admin_namespace_ready(kv, i + 1, &id);
                if (r == 0)
                        *ret = i + 1;
                return r;
        }

        table = realloc(kv->namespaces, (kv->n_namespaces + 1) * sizeof(*table));
        if (!table)
                return handle_no_memory(kv);
        kv->namespaces = table;
        ns.name = strdup(o->name);
        if (o->fingerprint)
                ns.fingerprint = strdup(o->fingerprint);
        if (!ns.name || (o->fingerprint && !ns.fingerprint))
                r = handle_no_memory(kv);
        else
                r = namespace_call(kv, &ns);
        if (r < 0) {
                namespace_fini(&ns);
                return r;
        }
        kv->namespaces[kv->n_namespaces++] = ns;
        *ret = kv->n_namespaces;
        return 0;
}

int kvcache_namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *options,
                           uint32_t *ret_namespace)
{
        struct kvcache_namespace_options o = { 0 };
        size_t length;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!options || !ret_namespace ||
            !abi_size_is_valid(options->size, ABI_NAMESPACE_OPTIONS_MIN))
                return handle_fail(
                        kv, -EINVAL,
                        "the options or the result is NULL, or the options' size is not set");
        if (abi_copy_in(&o, sizeof(o), options, options->size) < 0)
                return handle_is_newer(kv, "options");
        length = o.name ? strlen(o.name) : 0;
        if (wire_name_check(o.name, length) < 0)
                return handle_fail(kv, -EINVAL,
                                   "a namespace's name is 1 to %d printable ASCII characters",
                                   WIRE_MAX_NAME);
        if (o.flags & ~(uint32_t)KVCACHE_ATTACH)
                return handle_fail(kv, -EINVAL, "unknown flags 0x%x", o.flags);
        if (o.reserved != 0)
                return handle_fail(kv, -EINVAL, "the options' reserved member is not 0");
        if (o.lifetime_s != 0 && o.flags & KVCACHE_ATTACH)
                return handle_fail(kv, -EINVAL,
                                   "a lifetime is not allowed with KVCACHE_ATTACH, because the "
                                   "namespace has one already");
        if (!o.fingerprint && !(o.flags & KVCACHE_ATTACH))
                return handle_fail(kv, -EINVAL,
                                   "the fingerprint is NULL; use \"\" for none, or KVCACHE_ATTACH");
        length = o.fingerprint ? strlen(o.fingerprint) : 0;
        if (length > WIRE_MAX_FINGERPRINT)
                return handle_fail(kv, -EINVAL, "a fingerprint has at most %d bytes",
                                   WIRE_MAX_FINGERPRINT);
        if (length > 0 && wire_fingerprint_check(o.fingerprint, length) < 0)
                return handle_fail(kv, -EINVAL,
                                   "the fingerprint is not canonical: lines \"key=value\\n\", keys "
                                   "of [a-z0-9_.-] ascending");

        r = admin_begin(kv);
        if (r < 0)
                return r;
        r = namespace_open(kv, &o, ret_namespace);
        handle_leave(kv);
        return r;
}

/* --- listing, purging, sweeping, checking, reporting, recording, reloading --- */

int kvcache_list_sized(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                       struct kvcache_listed *ret, size_t listed_size, size_t max)
{
        _cleanup_(freep) struct wire_list_result *listed = NULL;
        struct control c = { 0 };
        struct wire_list *w;
        struct message *m;
        size_t wanted;
        uint32_t id = 0;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!cursor || !ret || max == 0)
                return handle_fail(kv, -EINVAL,
                                   "the cursor or the array for the listed chunks is NULL, or the "
                                   "array is empty");
        if (!abi_size_is_valid(listed_size, ABI_LISTED_MIN))
                return handle_fail(kv, -EINVAL,
                                   "%zu bytes are not the size of a struct kvcache_listed",
                                   listed_size);
        r = begin_in(kv, namespace_handle, &id);
        if (r < 0)
                return r;
        wanted = (kv->conn->max_message - sizeof(struct wire_reply)) / sizeof(*listed);
        wanted = MIN(MIN(wanted, (size_t)kv->conn->max_keys), max);
        listed = malloc(wanted * sizeof(*listed));
        m = listed ? message_new(WIRE_LIST, sizeof(*w)) : NULL;
        if (m) {
                w = (struct wire_list *)m->data;
                w->namespace_id = id;
                w->max = (uint32_t)wanted;
                w->cursor = *cursor;
                m->count = (uint16_t)wanted;
        }
        c.payload = listed;
        c.payload_bytes = wanted * sizeof(*listed);
        r = admin_call(kv, m, &c);
        if (r < 0)
                return r;

        for (unsigned i = 0; i < c.count; i++) {
                struct kvcache_listed l = {
                        .length = listed[i].length,
                        .created_ms = listed[i].created_ms,
                        .tiers = listed[i].tiers,
                };

                memcpy(&l.key, &listed[i].key, sizeof(l.key));
                abi_copy_out(abi_at(ret, listed_size, i), listed_size, &l, sizeof(l));
        }
        *cursor = c.value64;
        return c.count;
}

static int purge(struct kvcache *kv, uint32_t id, uint16_t flags, uint64_t *ret_dropped,
                 uint32_t *ret_seconds)
{
        struct message *m = message_new(WIRE_PURGE, sizeof(struct wire_purge));
        struct control c = { 0 };
        int r;

        if (m) {
                ((struct wire_purge *)m->data)->hdr.flags = flags;
                ((struct wire_purge *)m->data)->namespace_id = id;
        }
        r = admin_call(kv, m, &c);
        if (r == 0 && ret_dropped)
                *ret_dropped = c.value64;
        if (r == 0 && ret_seconds)
                *ret_seconds = c.value;
        return r;
}

int kvcache_purge(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped)
{
        uint32_t id = 0;
        int r = begin_in(kv, namespace_handle, &id);

        return r < 0 ? r : purge(kv, id, 0, ret_dropped, NULL);
}

int kvcache_purge_all(struct kvcache *kv, uint64_t *ret_dropped)
{
        int r = admin_begin(kv);

        return r < 0 ? r : purge(kv, 0, WIRE_F_ALL, ret_dropped, NULL);
}

/* Checks, in a call that has begun, that the daemon has a shared tier. Returns 0, or -EOPNOTSUPP
 * after ending the call. */
static int check_remote(struct kvcache *kv)
{
        if (kv->conn->features & WIRE_FEATURE_REMOTE)
                return 0;
        handle_leave(kv);
        return handle_fail(kv, -EOPNOTSUPP,
                           "this daemon has no shared tier (remote.backend), or is too old");
}

int kvcache_purge_remote(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped,
                         uint32_t *ret_seconds)
{
        uint32_t id = 0;
        int r = begin_in(kv, namespace_handle, &id);

        if (r == 0)
                r = check_remote(kv);
        return r < 0 ? r : purge(kv, id, WIRE_F_REMOTE, ret_dropped, ret_seconds);
}

int kvcache_purge_all_remote(struct kvcache *kv, uint64_t *ret_dropped, uint32_t *ret_seconds)
{
        int r = admin_begin(kv);

        if (r == 0)
                r = check_remote(kv);
        return r < 0 ? r : purge(kv, 0, WIRE_F_ALL | WIRE_F_REMOTE, ret_dropped, ret_seconds);
}

int kvcache_remote_sweep(struct kvcache *kv, struct kvcache_sweep *sweep)
{
        struct wire_sweep_result result = { 0 };
        struct control c = { .payload = &result, .payload_bytes = sizeof(result) };
        struct kvcache_sweep s;
        struct message *m;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!sweep || !abi_size_is_valid(sweep->size, ABI_SWEEP_MIN))
                return handle_fail(kv, -EINVAL, "the sweep is NULL, or its size is not set");
        if (abi_copy_in(&s, sizeof(s), sweep, sweep->size) < 0)
                return handle_is_newer(kv, "structure");
        if (s.flags & ~(uint32_t)KVCACHE_DRY_RUN)
                return handle_fail(kv, -EINVAL, "unknown flags 0x%x", s.flags);
        r = admin_begin(kv);
        if (r == 0)
                r = check_remote(kv);
        if (r < 0)
                return r;
        m = message_new(WIRE_SWEEP, sizeof(struct wire_sweep));
        if (m) {
                ((struct wire_sweep *)m->data)->limit = s.limit_bytes;
                ((struct wire_sweep *)m->data)->options =
                        s.flags & KVCACHE_DRY_RUN ? WIRE_SWEEP_DRY_RUN : 0;
        }
        r = admin_call(kv, m, &c);
        if (r < 0)
                return r;
        s.seen = result.seen;
        s.seen_bytes = result.seen_bytes;
        s.deleted = result.deleted;
        s.deleted_bytes = result.deleted_bytes;
        abi_copy_out(sweep, sweep->size, &s, sizeof(s));
        return 0;
}

int kvcache_verify(struct kvcache *kv, struct kvcache_verify *verify)
{
        struct wire_verify_result result = { 0 };
        struct control c = { .payload = &result, .payload_bytes = sizeof(result) };
        struct kvcache_verify v;
        struct message *m;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!verify || !abi_size_is_valid(verify->size, ABI_VERIFY_MIN))
                return handle_fail(kv, -EINVAL, "the verification is NULL, or its size is not set");
        if (abi_copy_in(&v, sizeof(v), verify, verify->size) < 0)
                return handle_is_newer(kv, "structure");
        if (v.max_chunks > WIRE_MAX_VERIFY_CHUNKS)
                return handle_fail(kv, -EINVAL, "max_chunks is more than %d",
                                   WIRE_MAX_VERIFY_CHUNKS);
        r = admin_begin(kv);
        if (r < 0)
                return r;
        m = message_new(WIRE_VERIFY, sizeof(struct wire_verify));
        if (m) {
                struct wire_verify *w = (struct wire_verify *)m->data;

                w->volume = v.volume;
                w->segment = v.segment;
                w->slot = v.slot;
                w->max_chunks = v.max_chunks ? v.max_chunks : VERIFY_CHUNKS;
                w->max_bytes = v.max_bytes ? v.max_bytes : VERIFY_BYTES;
        }
        r = admin_call(kv, m, &c);
        if (r < 0)
                return r;
        v.segment = result.next_segment;
        v.slot = result.next_slot;
        v.volumes = result.volumes;
        v.segments = result.segments;
        v.chunks = result.chunks;
        v.bytes = result.bytes;
        v.mismatched = result.mismatched;
        v.unreadable = result.unreadable;
        v.skipped = result.skipped;
        v.gave_up = result.gave_up;
        abi_copy_out(verify, verify->size, &v, sizeof(v));
        return 0;
}

static int set_device(struct kvcache *kv, uint32_t volume, enum wire_device_action action)
{
        struct control c = { 0 };
        struct message *m;
        int r = admin_begin(kv);

        if (r < 0)
                return r;
        m = message_new(WIRE_DEVICE, sizeof(struct wire_device));
        if (m) {
                ((struct wire_device *)m->data)->volume = volume;
                ((struct wire_device *)m->data)->action = action;
        }
        r = admin_call(kv, m, &c);
        return r < 0 ? r : c.value64 == 1;
}

int kvcache_device_suspend(struct kvcache *kv, uint32_t volume)
{
        return set_device(kv, volume, WIRE_DEVICE_SUSPEND);
}

int kvcache_device_resume(struct kvcache *kv, uint32_t volume)
{
        return set_device(kv, volume, WIRE_DEVICE_RESUME);
}

int kvcache_ping(struct kvcache *kv, uint64_t *ret_ns)
{
        struct control c = { 0 };
        int64_t began;
        int r = admin_begin(kv);

        if (r < 0)
                return r;
        began = handle_now_ns();
        r = admin_call(kv, message_new(WIRE_PING, sizeof(struct wire_hdr)), &c);
        if (r == 0 && ret_ns)
                *ret_ns = (uint64_t)(handle_now_ns() - began);
        return r;
}

/* Reads the first `bytes` bytes of a file as a string, which the caller frees. The file is read
 * rather than mapped, because it may shrink meanwhile. Returns 0; -EBADMSG if the file is shorter
 * or no regular file, or if `bytes` exceeds REPORT_MAX; another -errno. */
static int read_text(int fd, uint64_t bytes, char **ret)
{
        _cleanup_(freep) char *text = NULL;
        struct stat st;
        size_t got = 0;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || st.st_size < 0 || bytes > REPORT_MAX ||
            bytes > (uint64_t)st.st_size)
                return -EBADMSG;
        text = malloc(bytes + 1);
        if (!text)
                return -ENOMEM;
        while (got < bytes) {
                ssize_t n = pread(fd, text + got, bytes - got, (off_t)got);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return -EBADMSG;
                got += (size_t)n;
        }
        text[got] = '\0';
        *ret = TAKE_PTR(text);
        return 0;
}

/* Reads the text from a reply's descriptor, and closes the descriptor. Returns 0 or -errno. */
static int take_text(struct kvcache *kv, struct control *c, char **ret_text)
{
        int r = read_text(c->fd, c->value64, ret_text);

        closep(&c->fd);
        if (r == -EBADMSG)
                return handle_fail(kv, r, "the daemon states a wrong size of its report");
        return r < 0 ? handle_fail_errno(kv, r, "the daemon's report cannot be read") : 0;
}

int kvcache_report(struct kvcache *kv, enum kvcache_report what, char **ret_text)
{
        struct control c = { .fd = -1 };
        struct message *m;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!ret_text)
                return handle_fail(kv, -EINVAL, "the pointer to the report is NULL");
        if ((unsigned)what >= WIRE_REPORT_END)
                return handle_fail(kv, -EINVAL, "report %d is unknown to this library", (int)what);
        r = admin_begin(kv);
        if (r < 0)
                return r;
        if (what == KVCACHE_REPORT_STAGES && !(kv->conn->features & WIRE_FEATURE_STAGES)) {
                handle_leave(kv);
                return handle_fail(kv, -EOPNOTSUPP,
                                   "this daemon is too old to report the times of stages");
        }
        if (what == KVCACHE_REPORT_NAMESPACES &&
            !(kv->conn->features & WIRE_FEATURE_NAMESPACE_REPORT)) {
                handle_leave(kv);
                return handle_fail(kv, -EOPNOTSUPP,
                                   "this daemon is too old to report the samples of namespaces");
        }
        m = message_new(WIRE_REPORT, sizeof(struct wire_report_request));
        if (m)
                ((struct wire_report_request *)m->data)->what = (uint32_t)what;
        r = admin_call(kv, m, &c);
        if (r < 0)
                return r;
        return take_text(kv, &c, ret_text);
}

static int bench_check(struct kvcache *kv, enum kvcache_bench_action action, const char *name,
                       uint32_t flags)
{
        size_t length = name ? strlen(name) : 0;

        if (action < KVCACHE_BENCH_INIT || action > KVCACHE_BENCH_DELETE)
                return handle_fail(kv, -EINVAL, "unknown action %d", (int)action);
        if (length > WIRE_BENCH_NAME || (name && length == 0) ||
            (action == KVCACHE_BENCH_INIT && !name))
                return handle_fail(kv, -EINVAL, "a benchmark session's name has 1 to %d characters",
                                   WIRE_BENCH_NAME);
        if (name && action == KVCACHE_BENCH_LIST)
                return handle_fail(
                        kv, -EINVAL,
                        "KVCACHE_BENCH_LIST takes no name, because it lists all sessions");
        if (flags > KVCACHE_BENCH_FORCE || (flags && action != KVCACHE_BENCH_INIT))
                return handle_fail(kv, -EINVAL, "flags 0x%x are not valid for this action", flags);
        return 0;
}

int kvcache_bench_session(struct kvcache *kv, enum kvcache_bench_action action, const char *name,
                          uint32_t flags, char **ret_json)
{
        size_t length = name ? strlen(name) : 0;
        struct control c = { .fd = -1 };
        struct wire_bench *w;
        struct message *m;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        r = bench_check(kv, action, name, flags);
        if (r == 0)
                r = admin_begin(kv);
        if (r < 0)
                return r;
        if (!(kv->conn->features & WIRE_FEATURE_BENCH)) {
                handle_leave(kv);
                return handle_fail(kv, -EOPNOTSUPP, "the daemon is too old for benchmark sessions");
        }
        m = message_new(WIRE_BENCH, sizeof(*w) + length);
        if (m) {
                w = (struct wire_bench *)m->data;
                w->action = (uint8_t)action;
                w->name_length = (uint8_t)length;
                w->options = (uint16_t)flags;
                if (length > 0)
                        memcpy(w + 1, name, length);
        }
        r = admin_call(kv, m, &c);
        if (r < 0)
                return r == -ESTALE ? -ESRCH : r;
        if (ret_json)
                return take_text(kv, &c, ret_json);
        closep(&c.fd);
        return 0;
}

int kvcache_record(struct kvcache *kv, uint32_t duration_s, int *ret_fd)
{
        struct control c = { .fd = -1 };
        struct message *m;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!ret_fd)
                return handle_fail(kv, -EINVAL, "the pointer to the recording is NULL");
        if (duration_s == 0 || duration_s > WIRE_MAX_RECORD_S)
                return handle_fail(kv, -EINVAL, "a recording lasts 1 to %d seconds",
                                   WIRE_MAX_RECORD_S);
        r = admin_begin(kv);
        if (r < 0)
                return r;
        if (!(kv->conn->features & WIRE_FEATURE_RECORD)) {
                handle_leave(kv);
                return handle_fail(kv, -EOPNOTSUPP, "the daemon is too old for recordings");
        }
        m = message_new(WIRE_RECORD, sizeof(struct wire_record));
        if (m)
                ((struct wire_record *)m->data)->duration_s = duration_s;
        r = admin_call(kv, m, &c);
        if (r < 0)
                return r;
        *ret_fd = c.fd;
        return 0;
}

int kvcache_reload(struct kvcache *kv, char **ret_json)
{
        struct control c = { .fd = -1 };
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        r = admin_begin(kv);
        if (r < 0)
                return r;
        if (!(kv->conn->features & WIRE_FEATURE_RELOAD)) {
                handle_leave(kv);
                return handle_fail(kv, -EOPNOTSUPP,
                                   "this daemon is too old to reload on request; send it SIGHUP");
        }
        r = admin_call(kv, message_new(WIRE_RELOAD, sizeof(struct wire_hdr)), &c);
        if (r < 0)
                return r;
        if (ret_json)
                r = take_text(kv, &c, ret_json);
        closep(&c.fd);
        return r < 0 ? r : c.value != 0;
}
