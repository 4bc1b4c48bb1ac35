/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that administer namespaces: list, stat, remove, lifetime. Each result of a reply is checked
 * before it is copied to the caller. Runs in the handle's thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/abi.h"
#include "lib/admin.h"

/* Begins a call. Returns 0; -EOPNOTSUPP if the daemon does not support these messages; another
 * -errno. After a failure the call has ended. */
static int begin(struct kvcache *kv)
{
        int r = admin_begin(kv);

        if (r < 0 || (kv->conn->features & WIRE_FEATURE_NAMESPACES))
                return r;
        handle_leave(kv);
        return handle_fail(kv, -EOPNOTSUPP, "this daemon is too old to list or remove namespaces");
}

static int check_names(struct kvcache *kv, const char *name, const char *tenant)
{
        if (name && wire_name_check(name, strlen(name)) < 0)
                return handle_fail(kv, -EINVAL,
                                   "a namespace's name is 1 to %d printable ASCII characters",
                                   WIRE_MAX_NAME);
        if (tenant &&
            (strlen(tenant) > WIRE_MAX_TENANT || wire_name_check(tenant, strlen(tenant)) < 0))
                return handle_fail(kv, -EINVAL,
                                   "a tenant's name is 1 to %d printable ASCII characters",
                                   WIRE_MAX_TENANT);
        return 0;
}

/* Takes one result from the front of the payload. Returns false if it is malformed. */
static bool take_info(const uint8_t **p, size_t *left, struct kvcache_namespace_info *ret,
                      const char **ret_fingerprint, size_t *ret_fingerprint_length)
{
        struct wire_namespace_info info;
        const char *texts;
        size_t used;

        if (*left < sizeof(info))
                return false;
        memcpy(&info, *p, sizeof(info));
        used = sizeof(info) + info.name_length + info.tenant_length + info.fingerprint_length;
        if (info.bytes > *left || used > info.bytes || info.name_length == 0 ||
            info.tenant_length > WIRE_MAX_TENANT || info.fingerprint_length > WIRE_MAX_FINGERPRINT)
                return false;
        texts = (const char *)*p + sizeof(info);
        if (memchr(texts, '\0', used - sizeof(info)))
                return false;
        *ret = (struct kvcache_namespace_info){
                .owner = info.owner,
                .sessions = info.sessions,
                .chunks = info.chunks,
                .stored_bytes = info.stored_bytes,
                .chunk_bytes = info.chunk_bytes,
                .created_ms = info.created_ms,
                .last_used_ms = info.last_used_ms,
                .fingerprint_crc32c = info.fingerprint_crc32c,
                .may_remove = info.flags & WIRE_NAMESPACE_MAY_REMOVE,
                .lifetime_s = info.lifetime_s,
        };
        memcpy(ret->name, texts, info.name_length);
        memcpy(ret->tenant, texts + info.name_length, info.tenant_length);
        *ret_fingerprint = texts + info.name_length + info.tenant_length;
        *ret_fingerprint_length = info.fingerprint_length;
        *p += info.bytes;
        *left -= info.bytes;
        return true;
}

/* Requests up to `max` namespaces, or the one named `name`. Returns their number, or -errno. */
static int ask(struct kvcache *kv, const char *name, const char *tenant, uint64_t *cursor,
               void *ret, size_t size, size_t max, char **ret_fingerprint)
{
        size_t name_length = name ? strlen(name) : 0, tenant_length = tenant ? strlen(tenant) : 0;
        _cleanup_(freep) uint8_t *payload = malloc(WIRE_MAX_MESSAGE);
        struct control c = { .payload = payload, .payload_bytes = WIRE_MAX_MESSAGE };
        struct message *m = message_new(WIRE_NAMESPACES, sizeof(struct wire_namespaces) +
                                                                 name_length + tenant_length);
        const char *fingerprint = "";
        const uint8_t *p = payload;
        size_t fingerprint_length = 0;
        struct wire_namespaces *w;
        int r;

        if (!payload) {
                message_free(m);
                m = NULL;
        }
        if (m) {
                w = (struct wire_namespaces *)m->data;
                w->cursor = *cursor;
                w->max = (uint16_t)MIN(max, (size_t)WIRE_MAX_NAMESPACES);
                w->name_length = (uint8_t)name_length;
                w->tenant_length = (uint8_t)tenant_length;
                memcpy(w + 1, name ? name : "", name_length);
                memcpy((char *)(w + 1) + name_length, tenant ? tenant : "", tenant_length);
                m->count = w->max;
        }
        r = admin_call(kv, m, &c);
        if (r < 0)
                return r;
        for (unsigned i = 0; i < c.count; i++) {
                struct kvcache_namespace_info info;

                if (!take_info(&p, &c.payload_bytes, &info, &fingerprint, &fingerprint_length))
                        return handle_fail(kv, -EBADMSG,
                                           "the daemon's reply to NAMESPACES is malformed");
                abi_copy_out(abi_at(ret, size, i), size, &info, sizeof(info));
        }
        if (c.payload_bytes > 0 || (name && c.count != 1))
                return handle_fail(kv, -EBADMSG, "the daemon's reply to NAMESPACES is malformed");
        if (ret_fingerprint) {
                *ret_fingerprint = strndup(fingerprint, fingerprint_length);
                if (!*ret_fingerprint)
                        return handle_no_memory(kv);
        }
        *cursor = c.value64;
        return c.count;
}

int kvcache_namespace_list_sized(struct kvcache *kv, const char *tenant, uint64_t *cursor,
                                 struct kvcache_namespace_info *ret, size_t info_size, size_t max)
{
        int r = handle_enter(kv);

        if (r < 0)
                return r;
        if (!cursor || !ret || max == 0)
                return handle_fail(kv, -EINVAL,
                                   "the cursor or the array for the listed namespaces is NULL, or "
                                   "the array is empty");
        if (!abi_size_is_valid(info_size, ABI_NAMESPACE_INFO_MIN))
                return handle_fail(kv, -EINVAL,
                                   "%zu bytes are not the size of a struct kvcache_namespace_info",
                                   info_size);
        r = check_names(kv, NULL, tenant);
        if (r < 0)
                return r;
        r = begin(kv);
        return r < 0 ? r : ask(kv, NULL, tenant, cursor, ret, info_size, max, NULL);
}

int kvcache_namespace_stat_sized(struct kvcache *kv, const char *name, const char *tenant,
                                 struct kvcache_namespace_info *ret, size_t info_size,
                                 char **ret_fingerprint)
{
        uint64_t cursor = 0;
        int r = handle_enter(kv);

        if (r < 0)
                return r;
        if (!name || !ret)
                return handle_fail(kv, -EINVAL, "the name or the result is NULL");
        if (!abi_size_is_valid(info_size, ABI_NAMESPACE_INFO_MIN))
                return handle_fail(kv, -EINVAL,
                                   "%zu bytes are not the size of a struct kvcache_namespace_info",
                                   info_size);
        r = check_names(kv, name, tenant);
        if (r < 0)
                return r;
        r = begin(kv);
        if (r == 0)
                r = ask(kv, name, tenant, &cursor, ret, info_size, 1, ret_fingerprint);
        return r < 0 ? r : 0;
}

static int remove_one(struct kvcache *kv, const char *name, const char *tenant, uint32_t flags,
                      uint64_t *ret_dropped)
{
        size_t name_length = strlen(name), tenant_length = tenant ? strlen(tenant) : 0;
        struct message *m =
                message_new(WIRE_NAMESPACE_REMOVE,
                            sizeof(struct wire_namespace_remove) + name_length + tenant_length);
        struct wire_namespace_remove *w;
        struct control c = { 0 };
        int r;

        if (m) {
                w = (struct wire_namespace_remove *)m->data;
                w->hdr.flags = flags & KVCACHE_PURGE ? WIRE_F_PURGE : 0;
                w->name_length = (uint8_t)name_length;
                w->tenant_length = (uint8_t)tenant_length;
                memcpy(w + 1, name, name_length);
                memcpy((char *)(w + 1) + name_length, tenant ? tenant : "", tenant_length);
        }
        r = admin_call(kv, m, &c);
        if (r == 0 && ret_dropped)
                *ret_dropped = c.value64;
        return r;
}

int kvcache_namespace_remove(struct kvcache *kv, const char *name, const char *tenant,
                             uint32_t flags, uint64_t *ret_dropped)
{
        int r = handle_enter(kv);

        if (r < 0)
                return r;
        if (!name)
                return handle_fail(kv, -EINVAL, "the namespace's name is NULL");
        if (flags & ~(uint32_t)KVCACHE_PURGE)
                return handle_fail(kv, -EINVAL, "unknown flags 0x%x", flags);
        r = check_names(kv, name, tenant);
        if (r < 0)
                return r;
        r = begin(kv);
        if (r == 0)
                r = remove_one(kv, name, tenant, flags, ret_dropped);
        /* Forget the daemon's number of the namespace, also if the removal failed: opening the
         * namespace again returns its present number. */
        for (uint32_t i = 0; i < kv->n_namespaces; i++)
                if (strcmp(kv->namespaces[i].name, name) == 0)
                        kv->namespaces[i].session = 0;
        return r;
}

static int set_lifetime(struct kvcache *kv, const char *name, const char *tenant,
                        uint32_t lifetime_s)
{
        size_t name_length = strlen(name), tenant_length = tenant ? strlen(tenant) : 0;
        struct message *m = message_new(WIRE_NAMESPACE, sizeof(struct wire_namespace) +
                                                                name_length + tenant_length);
        struct wire_namespace *w;
        struct control c = { 0 };

        if (m) {
                w = (struct wire_namespace *)m->data;
                w->hdr.flags = WIRE_F_SET;
                w->name_length = (uint16_t)name_length;
                w->tenant_length = (uint16_t)tenant_length;
                w->lifetime_s = lifetime_s;
                memcpy(w + 1, name, name_length);
                memcpy((char *)(w + 1) + name_length, tenant ? tenant : "", tenant_length);
        }
        return admin_call(kv, m, &c);
}

int kvcache_namespace_set_lifetime(struct kvcache *kv, const char *name, const char *tenant,
                                   uint32_t lifetime_s)
{
        int r = handle_enter(kv);

        if (r < 0)
                return r;
        if (!name)
                return handle_fail(kv, -EINVAL, "the namespace's name is NULL");
        r = check_names(kv, name, tenant);
        if (r < 0)
                return r;
        r = admin_begin(kv);
        if (r < 0)
                return r;
        if (!(kv->conn->features & WIRE_FEATURE_LIFETIME)) {
                handle_leave(kv);
                return handle_fail(kv, -EOPNOTSUPP, "this daemon is too old for lifetimes");
        }
        return set_lifetime(kv, name, tenant, lifetime_s);
}
