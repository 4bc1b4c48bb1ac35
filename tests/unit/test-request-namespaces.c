/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces as a client sees them: opening, limits, lists, lifetimes, removal, and the rights of
 * users and admins. Also the log of a removal by the daemon that fails. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "checked.h"
#include "request-fixture.h"
#include "server-internal.h"

static bool no_memory_to_remove;

void __real_store_namespace_remove(struct store *s, struct store_namespace_remove *req);
void __wrap_store_namespace_remove(struct store *s, struct store_namespace_remove *req);
void __wrap_store_namespace_remove(struct store *s, struct store_namespace_remove *req)
{
        if (!no_memory_to_remove) {
                __real_store_namespace_remove(s, req);
                return;
        }
        req->result = -ENOMEM;
        req->complete(req);
}

static const struct wire_reply *remove_of(struct peer_end *c, const char *name, const char *tenant,
                                          unsigned flags)
{
        struct {
                struct wire_namespace_remove head;
                char text[WIRE_MAX_NAME + WIRE_MAX_TENANT];
        } msg = { .head = { .hdr = { .op = WIRE_NAMESPACE_REMOVE, .flags = (uint16_t)flags },
                            .name_length = (uint8_t)strlen(name),
                            .tenant_length = (uint8_t)strlen(tenant) } };

        memcpy(msg.text, name, strlen(name));
        memcpy(msg.text + strlen(name), tenant, strlen(tenant));
        return call(c, &msg, sizeof(msg.head) + strlen(name) + strlen(tenant));
}

static const struct wire_reply *set_lifetime(struct peer_end *c, const char *name,
                                             const char *tenant, uint32_t lifetime_s)
{
        struct {
                struct wire_namespace head;
                char text[WIRE_MAX_NAME + WIRE_MAX_TENANT];
        } msg = { .head = { .hdr = { .op = WIRE_NAMESPACE, .flags = WIRE_F_SET },
                            .name_length = (uint16_t)strlen(name),
                            .tenant_length = (uint16_t)strlen(tenant),
                            .lifetime_s = lifetime_s } };

        memcpy(msg.text, name, strlen(name));
        memcpy(msg.text + strlen(name), tenant, strlen(tenant));
        return call(c, &msg, sizeof(msg.head) + strlen(name) + strlen(tenant));
}

/* `name` and `tenant` may be "". */
static const struct wire_reply *list(struct peer_end *c, const char *name, const char *tenant,
                                     uint16_t max, uint64_t cursor)
{
        struct {
                struct wire_namespaces head;
                char text[WIRE_MAX_NAME + WIRE_MAX_TENANT];
        } msg = { .head = { .hdr.op = WIRE_NAMESPACES,
                            .cursor = cursor,
                            .max = max,
                            .name_length = (uint8_t)strlen(name),
                            .tenant_length = (uint8_t)strlen(tenant) } };

        memcpy(msg.text, name, strlen(name));
        memcpy(msg.text + strlen(name), tenant, strlen(tenant));
        return call(c, &msg, sizeof(msg.head) + strlen(name) + strlen(tenant));
}

struct shown {
        struct wire_namespace_info info;
        char name[WIRE_MAX_NAME + 1], tenant[WIRE_MAX_TENANT + 1],
                fingerprint[WIRE_MAX_FINGERPRINT + 1];
};

/* Reads entry `i` of a list. */
static struct shown entry_of(const struct wire_reply *reply, unsigned i)
{
        const uint8_t *p = (const uint8_t *)(reply + 1),
                      *end = (const uint8_t *)reply + reply->hdr.len;
        struct shown s = { 0 };

        assert_int_equal(reply->status, WIRE_OK);
        assert_in_range(i, 0, (unsigned)(reply->count - 1));
        for (;; i--) {
                memcpy(&s.info, p, sizeof(s.info));
                assert_true(p + s.info.bytes <= end);
                if (i == 0)
                        break;
                p += s.info.bytes;
        }
        p += sizeof(s.info);
        memcpy(s.name, p, s.info.name_length);
        memcpy(s.tenant, p + s.info.name_length, s.info.tenant_length);
        memcpy(s.fingerprint, p + s.info.name_length + s.info.tenant_length,
               s.info.fingerprint_length);
        return s;
}

static bool exists(struct peer_end *c, const char *name)
{
        return list(c, name, "", 1, 0)->status == WIRE_OK;
}

/* --- opening --- */

static void another_fingerprint_is_a_mismatch_that_names_the_field(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        assert_int_equal(open_namespace(&c, "b", "dtype=bf16\nmodel=x\n", 0, 0)->status, WIRE_OK);
        assert_says(open_namespace(&c, "b", "dtype=fp8\nmodel=x\n", 0, 0), WIRE_MISMATCH, "dtype");
        assert_int_equal(open_namespace(&c, "b", "", WIRE_F_ATTACH, 0)->status, WIRE_OK);
        assert_says(open_namespace(&c, "c", "", WIRE_F_ATTACH, 0), WIRE_NO_NAMESPACE,
                    "no such namespace");
        assert_false(exists(&c, "c"));
        hang_up(&c);
}

static void fingerprints_that_are_not_canonical_are_refused(void **state)
{
        static const char *const wrong[] = { "model=x\ndtype=fp8\n", "model", "model=x", "=x\n" };
        struct peer_end c;

        connect_as(&c, ALICE);
        for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++)
                assert_says(open_namespace(&c, "b", wrong[i], 0, 0), WIRE_INVALID, "not canonical");
        assert_false(exists(&c, "b"));
        hang_up(&c);
}

static void a_name_that_is_not_printable_ends_the_session(void **state)
{
        struct {
                struct wire_namespace head;
                char name[8];
        } msg = { .head = { .hdr.op = WIRE_NAMESPACE, .name_length = 2 }, .name = "b" };
        struct peer_end c;

        connect_as(&c, ALICE);
        send_message(&c, &msg, sizeof(msg.head) + 2);
        assert_ended(&c);
        hang_up(&c);
}

static void a_session_opens_a_bounded_number_of_namespaces(void **state)
{
        struct peer_end c;
        char name[16];

        connect_as(&c, ALICE);
        for (unsigned i = 0; i < WIRE_TALLY_NAMESPACES; i++) {
                snprintf(name, sizeof(name), "n%u", i);
                assert_int_equal(open_namespace(&c, name, "", 0, 0)->value, i + 1);
        }
        assert_says(open_namespace(&c, "more", "", 0, 0), WIRE_QUOTA,
                    "this session has 256 namespaces open");
        assert_false(exists(&c, "more"));
        assert_int_equal(open_namespace(&c, "n7", "", 0, 0)->value, 8); /* is open already */
        assert_int_equal(remove_of(&c, "n7", "", 0)->status, WIRE_OK);
        assert_int_equal(open_namespace(&c, "more", "", 0, 0)->value, 8);
        hang_up(&c);
}

/* Sets the limits of a user and of the tenant "default". */
static void limit_namespaces(unsigned user, unsigned tenant)
{
        struct namespace_limits limits = { .user = user, .n_tenants = ARRAY_SIZE(rig.tenants) };

        for (unsigned i = 0; i < limits.n_tenants; i++)
                limits.tenants[i] =
                        (struct namespace_tenant){ rig.tenants[i].store_tenant,
                                                   tenant_name(&rig.tenants[i]), tenant };
        namespace_counts_set_limits(rig.service.namespace_counts, &limits);
}

static void users_and_tenants_make_a_bounded_number_of_namespaces(void **state)
{
        struct peer_end alice, bob;

        limit_namespaces(2, 4); /* "a" is there, and is of no user */
        connect_as(&alice, ALICE);
        connect_as(&bob, BOB);
        assert_int_equal(open_namespace(&alice, "b", "", 0, 0)->status, WIRE_OK);
        assert_int_equal(open_namespace(&alice, "c", "", 0, 0)->status, WIRE_OK);
        assert_says(open_namespace(&alice, "d", "", 0, 0), WIRE_QUOTA, "limits.uid_namespaces");
        assert_int_equal(open_namespace(&bob, "d", "", 0, 0)->status, WIRE_OK);
        assert_says(open_namespace(&bob, "e", "", 0, 0), WIRE_QUOTA, "tenants.namespaces");
        assert_false(exists(&bob, "e"));
        assert_int_equal(open_namespace(&alice, "d", "", 0, 0)->status, WIRE_OK); /* it exists */
        hang_up(&alice);
        hang_up(&bob);
}

/* Opens it in a session that ends at once. */
static void make_as(uid_t uid, const char *name)
{
        struct peer_end c;

        connect_as(&c, uid);
        assert_int_equal(open_namespace(&c, name, "", 0, 0)->status, WIRE_OK);
        hang_up(&c);
        rig_turns();
}

static void a_new_namespace_replaces_the_one_unused_for_longest_at_a_limit(void **state)
{
        struct namespace_counts_stats stats;
        struct peer_end c;

        limit_namespaces(3, 5); /* "a" is there, and is of no user */
        make_as(BOB, "bobs");
        make_as(ALICE, "b");
        make_as(ALICE, "c");
        make_as(ALICE, "b");
        connect_as(&c, ALICE);
        assert_int_equal(open_namespace(&c, "open", "", 0, 0)->status, WIRE_OK);
        assert_int_equal(open_namespace(&c, "d", "model=x\n", 0, 60)->status, WIRE_OK);
        assert_false(exists(&c, "c"));
        assert_true(exists(&c, "b"));
        assert_int_equal(entry_of(list(&c, "d", "", 1, 0), 0).info.lifetime_s, 60);
        assert_string_equal(entry_of(list(&c, "d", "", 1, 0), 0).fingerprint, "model=x\n");
        assert_int_equal(open_namespace(&c, "e", "", 0, 0)->status, WIRE_OK);
        assert_false(exists(&c, "b"));
        assert_true(exists(&c, "open"));
        assert_says(open_namespace(&c, "f", "", 0, 0), WIRE_QUOTA, "is known to be unused");
        assert_true(exists(&c, "bobs")); /* another user's stays */
        assert_false(exists(&c, "f"));
        namespace_counts_get_stats(rig.service.namespace_counts, &stats);
        assert_int_equal(stats.expired, 2);
        assert_int_equal(stats.removed, 2);
        assert_int_equal(stats.refused[NAMESPACES_OF_USER], 1);

        limit_namespaces(4, 6); /* the tenant's limit */
        make_as(ALICE, "g");
        assert_int_equal(open_namespace(&c, "h", "", 0, 0)->status, WIRE_OK);
        assert_false(exists(&c, "g"));
        hang_up(&c);
}

/* Puts a chunk whose write fails with this kind of fault, in a session that ends. */
static void fill_memory_only(const char *name, uint32_t n, enum fault_kind kind, uint64_t count)
{
        struct cache_stats stats;
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, name);
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = kind, .error = EIO, .first = 1, .count = count });
        assert_int_equal(put(&c, n, WIRE_ACCEPTED), WIRE_OK);
        do {
                rig_turns();
                cache_get_stats(rig.tenants[0].cache, &stats);
        } while (kind == FAULT_ERROR && stats.unwritten_chunks > 0);
        hang_up(&c);
        rig_turns();
}

static void a_namespace_with_chunks_is_not_replaced(void **state)
{
        struct peer_end c;

        limit_namespaces(3, 0);
        connect_as(&c, ALICE);
        enter(&c, "disk");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        hang_up(&c);
        fill_memory_only("failed", 2, FAULT_ERROR, 1);
        fill_memory_only("writing", 3, FAULT_NEVER, FAULT_FOR_EVER);
        connect_as(&c, ALICE);
        assert_says(open_namespace(&c, "new", "", 0, 0), WIRE_QUOTA, "limits.uid_namespaces");
        assert_true(exists(&c, "disk"));
        assert_true(exists(&c, "failed"));
        assert_true(exists(&c, "writing"));
        fault_set(NULL);
        fault_release();
        hang_up(&c);
}

/* --- lists --- */

static void a_list_shows_each_namespace_once_and_whose_it_is(void **state)
{
        struct peer_end alice, bob;
        const struct wire_reply *r;
        struct shown s;

        connect_as(&alice, ALICE);
        connect_as(&bob, BOB);
        assert_int_equal(open_namespace(&alice, "b", "model=x\n", 0, 60)->status, WIRE_OK);
        assert_int_equal(open_namespace(&bob, "c", "", 0, 0)->status, WIRE_OK);
        r = list(&alice, "", "", 2, 0);
        assert_int_equal(r->count, 2);
        assert_int_equal(r->value, 3);
        assert_string_equal(entry_of(r, 0).name, "a");
        s = entry_of(r, 1);
        assert_string_equal(s.name, "b");
        assert_string_equal(s.tenant, "default");
        assert_int_equal(s.info.owner, ALICE);
        assert_int_equal(s.info.sessions, 1);
        assert_int_equal(s.info.lifetime_s, 60);
        assert_int_equal(s.info.flags, WIRE_NAMESPACE_MAY_REMOVE);
        assert_int_equal(s.info.fingerprint_length, 0);
        r = list(&alice, "", "", 2, r->value64);
        assert_int_equal(r->count, 1);
        assert_int_equal(r->value64, 0);
        s = entry_of(r, 0);
        assert_string_equal(s.name, "c");
        assert_int_equal(s.info.owner, BOB);
        assert_int_equal(s.info.flags, 0);
        s = entry_of(list(&alice, "b", "default", 1, 0), 0);
        assert_string_equal(s.fingerprint, "model=x\n");
        hang_up(&alice);
        hang_up(&bob);
}

static void a_list_shows_no_namespace_of_another_tenant_but_to_an_admin(void **state)
{
        struct peer_end alice, guest, root;
        const struct wire_reply *r;

        connect_as(&alice, ALICE);
        connect_as(&guest, GUEST);
        connect_as(&root, ROOT);
        assert_int_equal(open_namespace(&guest, "g", "", 0, 0)->status, WIRE_OK);
        r = list(&alice, "", "", WIRE_MAX_NAMESPACES, 0);
        assert_int_equal(r->count, 1);
        assert_int_equal(r->value, 1);
        assert_string_equal(entry_of(r, 0).name, "a");
        assert_int_equal(list(&alice, "", "guests", WIRE_MAX_NAMESPACES, 0)->count, 0);
        assert_says(list(&alice, "g", "guests", 1, 0), WIRE_NO_NAMESPACE, "no such namespace");
        assert_says(list(&alice, "g", "", 1, 0), WIRE_NO_NAMESPACE, "no such namespace");
        r = list(&guest, "", "", WIRE_MAX_NAMESPACES, 0);
        assert_int_equal(r->count, 1);
        assert_string_equal(entry_of(r, 0).name, "g");
        r = list(&root, "", "", WIRE_MAX_NAMESPACES, 0);
        assert_int_equal(r->count, 2);
        r = list(&root, "g", "guests", 1, 0);
        assert_string_equal(entry_of(r, 0).tenant, "guests");
        assert_int_equal(entry_of(r, 0).info.flags, WIRE_NAMESPACE_MAY_REMOVE);
        assert_string_equal(entry_of(list(&root, "a", "default", 1, 0), 0).name, "a");
        assert_int_equal(list(&root, "", "nobody", WIRE_MAX_NAMESPACES, 0)->count, 0);
        hang_up(&alice);
        hang_up(&guest);
        hang_up(&root);
}

/* --- lifetimes --- */

static void a_lifetime_is_set_by_the_owner_or_an_admin(void **state)
{
        struct peer_end alice, bob, root;

        connect_as(&alice, ALICE);
        connect_as(&bob, BOB);
        connect_as(&root, ROOT);
        assert_int_equal(open_namespace(&alice, "b", "", 0, 0)->status, WIRE_OK);
        assert_int_equal(set_lifetime(&alice, "b", "", 100)->value, 100);
        assert_int_equal(entry_of(list(&bob, "b", "", 1, 0), 0).info.lifetime_s, 100);
        assert_says(set_lifetime(&bob, "b", "", 5), WIRE_DENIED, "the user who made");
        assert_says(set_lifetime(&alice, "c", "", 5), WIRE_NO_NAMESPACE, "no such namespace");
        assert_says(set_lifetime(&alice, "b", "guests", 5), WIRE_NO_NAMESPACE, "no such namespace");
        assert_int_equal(set_lifetime(&root, "b", "default", 7)->value, 7);
        assert_int_equal(entry_of(list(&alice, "b", "", 1, 0), 0).info.lifetime_s, 7);
        hang_up(&alice);
        hang_up(&bob);
        hang_up(&root);
}

static void a_lifetime_that_no_volume_keeps_is_refused(void **state)
{
        struct wire_device suspend = { .hdr.op = WIRE_DEVICE, .action = WIRE_DEVICE_SUSPEND };
        struct peer_end root;

        connect_as(&root, ROOT);
        assert_int_equal(call(&root, &suspend, sizeof(suspend))->status, WIRE_OK);
        assert_says(set_lifetime(&root, "a", "", 5), WIRE_FAILED,
                    "no volume of the store is in use");
        assert_says(remove_of(&root, "a", "", 0), WIRE_BUSY, "suspended or bypassed");
        hang_up(&root);
}

/* --- removal --- */

static void a_namespace_is_removed_by_its_owner_or_an_admin_only(void **state)
{
        struct peer_end alice, bob, guest, root;

        connect_as(&alice, ALICE);
        connect_as(&bob, BOB);
        connect_as(&guest, GUEST);
        connect_as(&root, ROOT);
        assert_int_equal(open_namespace(&alice, "b", "", 0, 0)->status, WIRE_OK);
        assert_says(remove_of(&bob, "b", "", 0), WIRE_DENIED, "the user who made");
        assert_says(remove_of(&bob, "a", "", WIRE_F_PURGE), WIRE_DENIED, "the user who made");
        assert_says(remove_of(&guest, "b", "default", 0), WIRE_NO_NAMESPACE, "no such namespace");
        assert_says(remove_of(&alice, "c", "", 0), WIRE_NO_NAMESPACE, "no such namespace");
        assert_true(exists(&alice, "b"));
        assert_int_equal(remove_of(&alice, "b", "", 0)->status, WIRE_OK);
        assert_false(exists(&alice, "b"));
        assert_int_equal(open_namespace(&guest, "g", "", 0, 0)->status, WIRE_OK);
        hang_up(&guest);
        rig_turns();
        assert_int_equal(remove_of(&root, "g", "guests", 0)->status, WIRE_OK);
        assert_int_equal(list(&root, "", "", WIRE_MAX_NAMESPACES, 0)->count, 1);
        hang_up(&alice);
        hang_up(&bob);
        hang_up(&root);
}

static void a_namespace_that_is_open_elsewhere_is_not_removed(void **state)
{
        const struct wire_reply *r;
        struct peer_end c, others[2];

        connect_as(&c, ALICE);
        assert_int_equal(open_namespace(&c, "b", "", 0, 0)->status, WIRE_OK);
        for (unsigned i = 0; i < ARRAY_SIZE(others); i++) {
                connect_as(&others[i], BOB);
                assert_int_equal(open_namespace(&others[i], "b", "", 0, 0)->status, WIRE_OK);
        }
        r = remove_of(&c, "b", "", 0);
        assert_says(r, WIRE_BUSY, "2 other sessions have the namespace open");
        assert_int_equal(r->value, 2);
        hang_up(&others[0]);
        rig_turns();
        assert_says(remove_of(&c, "b", "", WIRE_F_PURGE), WIRE_BUSY,
                    "1 other session has the namespace open");
        hang_up(&others[1]);
        rig_turns();
        assert_int_equal(remove_of(&c, "b", "", 0)->status, WIRE_OK);
        hang_up(&c);
}

static void a_namespace_with_chunks_is_removed_with_a_purge_only(void **state)
{
        const struct wire_reply *r;
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "b");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(put(&c, 2, WIRE_WRITTEN), WIRE_OK);
        r = remove_of(&c, "b", "", 0);
        assert_says(r, WIRE_NOT_EMPTY, "the namespace holds 2 chunks");
        assert_int_equal(r->value64, 2);
        assert_int_equal(get(&c, 1).status, WIRE_OK);
        assert_int_equal(remove_of(&c, "b", "", WIRE_F_PURGE)->value64, 2);
        assert_false(exists(&c, "b"));
        batch_of_keys(&c, WIRE_EXISTS, 0, 1, 1);
        assert_says(call_batch(&c), WIRE_NO_NAMESPACE, "has not opened");
        enter(&c, "b"); /* a new namespace */
        assert_int_equal(get(&c, 1).status, WIRE_MISS);
        hang_up(&c);
}

static void a_chunk_that_is_in_memory_only_keeps_its_namespace(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "b");
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        assert_int_equal(put(&c, 1, WIRE_ACCEPTED), WIRE_OK);
        assert_says(remove_of(&c, "b", "", 0), WIRE_NOT_EMPTY, "the namespace holds 1 chunk");
        fault_set(NULL);
        fault_release();
        assert_int_equal(remove_of(&c, "b", "", WIRE_F_PURGE)->status, WIRE_OK);
        hang_up(&c);
}

static void a_removal_waits_for_the_requests_of_its_own_session(void **state)
{
        struct wire_namespace_remove head = { .hdr.op = WIRE_NAMESPACE_REMOVE, .name_length = 1 };
        struct {
                struct wire_namespace_remove head;
                char name;
        } msg = { head, 'b' };
        struct wire_batch *b;
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "b");
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_WRITE, .kind = FAULT_NEVER, .first = 1, .count = FAULT_FOR_EVER });
        b = batch(&c, WIRE_PUT, 0, 1);
        b->ack = WIRE_WRITTEN;
        *(struct wire_put *)(b + 1) = (struct wire_put){ .key = key_of(1), .length = LENGTH };
        send_message(&c, b, b->hdr.len);
        send_message(&c, &msg, sizeof(msg.head) + 1);
        assert_says(receive_reply(&c, WIRE_NAMESPACE_REMOVE, NULL, NULL), WIRE_BUSY,
                    "of this session are in flight");
        fault_set(NULL);
        fault_release();
        assert_int_equal(receive_reply(&c, WIRE_PUT, NULL, NULL)->status, WIRE_OK);
        hang_up(&c);
}

static void a_removal_that_is_not_written_is_no_success(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "b");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_says(remove_of(&c, "b", "", WIRE_F_PURGE), WIRE_FAILED, "the purge before it");
        fault_set(NULL);
        hang_up(&c);
}

/* Lets the unused namespaces expire, and expects these words in the log. */
static void expire_and_expect(const char *words)
{
        int stderr_before = dup(STDERR_FILENO), fd = memfd_create("log", MFD_CLOEXEC);
        struct server *server = calloc(1, sizeof(*server));
        char text[4096] = "";

        assert_non_null(server);
        assert_true(stderr_before >= 0 && fd >= 0);
        server->service = rig.service;
        server->config = &rig.config;
        rig.config.namespaces.expire_ms = 1;
        fflush(stderr);
        dup2(fd, STDERR_FILENO);
        log_set_level(LOG_LEVEL_WARNING);
        while (pread(fd, text, sizeof(text) - 1, 0) == 0) {
                server_expire_namespaces(server, clock_mono_ns());
                rig_turn(false);
        }
        log_set_level(LOG_LEVEL_ERROR);
        fflush(stderr);
        dup2(stderr_before, STDERR_FILENO);
        close(stderr_before);
        close(fd);
        free(server);
        if (!strstr(text, words))
                fail_msg("not in the log: %s\n%s", words, text);
}

static void log_of_a_failed_removal_states_whether_the_namespace_stays(void **state)
{
        no_memory_to_remove = true;
        expire_and_expect("namespace \"a\": it is unused, but its removal failed: Cannot allocate "
                          "memory; it stays, and its removal is tried again");
        no_memory_to_remove = false;
        assert_non_null(store_namespace_find(rig.t.store, rig.tenants[0].store_tenant, "a", 1));
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        expire_and_expect("namespace \"a\": it is unused, but its removal failed: Input/output "
                          "error; it may be back after a restart, and is then removed again");
        fault_set(NULL);
        assert_null(store_namespace_find(rig.t.store, rig.tenants[0].store_tenant, "a", 1));
}

static void operations_on_namespaces_are_within_their_users_limit(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        assert_int_equal(open_namespace(&c, "b", "", 0, 0)->status, WIRE_OK);
        rig_limit(QUOTA_REQUEST_BYTES, 64, QUOTA_NO_LIMIT);
        assert_says(open_namespace(&c, "c", "", 0, 0), WIRE_QUOTA,
                    "this user has too many requests in flight");
        assert_says(list(&c, "", "", 1, 0), WIRE_QUOTA,
                    "this user has too many requests in flight");
        assert_says(set_lifetime(&c, "b", "", 5), WIRE_QUOTA,
                    "this user has too many requests in flight");
        assert_says(remove_of(&c, "b", "", 0), WIRE_QUOTA,
                    "this user has too many requests in flight");
        rig_limit(QUOTA_REQUEST_BYTES, QUOTA_NO_LIMIT, QUOTA_NO_LIMIT);
        assert_false(exists(&c, "c"));
        assert_int_equal(entry_of(list(&c, "b", "", 1, 0), 0).info.lifetime_s, 0);
        hang_up(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(another_fingerprint_is_a_mismatch_that_names_the_field),
                TEST(fingerprints_that_are_not_canonical_are_refused),
                TEST(a_name_that_is_not_printable_ends_the_session),
                TEST(a_session_opens_a_bounded_number_of_namespaces),
                TEST(users_and_tenants_make_a_bounded_number_of_namespaces),
                TEST(a_new_namespace_replaces_the_one_unused_for_longest_at_a_limit),
                TEST(a_namespace_with_chunks_is_not_replaced),
                TEST(a_list_shows_each_namespace_once_and_whose_it_is),
                TEST(a_list_shows_no_namespace_of_another_tenant_but_to_an_admin),
                TEST(a_lifetime_is_set_by_the_owner_or_an_admin),
                TEST(a_lifetime_that_no_volume_keeps_is_refused),
                TEST(a_namespace_is_removed_by_its_owner_or_an_admin_only),
                TEST(a_namespace_that_is_open_elsewhere_is_not_removed),
                TEST(a_namespace_with_chunks_is_removed_with_a_purge_only),
                TEST(a_chunk_that_is_in_memory_only_keeps_its_namespace),
                TEST(a_removal_waits_for_the_requests_of_its_own_session),
                TEST(a_removal_that_is_not_written_is_no_success),
                TEST(log_of_a_failed_removal_states_whether_the_namespace_stays),
                TEST(operations_on_namespaces_are_within_their_users_limit),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
