/* SPDX-License-Identifier: Apache-2.0 */
/* Resolves the keys of a request; see resolve.h.
 *
 * Runs in the handle's thread, within the user's calls. Owns only what it allocates for its caller.
 *
 * One pass over the entries of a PUT or a GET_INTO brings each to this library's form, checks it,
 * and locates its bytes: in the staging area, in a registered buffer, or in other memory. The
 * result is valid for one session, because the next has another staging area and other numbers for
 * the buffers. */
#include "lib/resolve.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "lib/buffers.h"
#include "lib/memory.h"

static_assert(sizeof(struct kvcache_key) == sizeof(struct key), "keys are the same bytes");

static bool op_moves(enum kvcache_op op)
{
        return op == KVCACHE_OP_PUT || op == KVCACHE_OP_GET_INTO;
}

/* Returns entry `i`, copied to `scratch` if the program's structure is shorter than ours. */
static const struct kvcache_entry *entry_at(const struct kvcache_request *user, size_t i,
                                            struct kvcache_entry *scratch)
{
        const struct kvcache_entry *e = abi_at(user->entries, user->entry_size, i);

        if (user->entry_size >= sizeof(*e))
                return e;
        (void)abi_copy_in(scratch, sizeof(*scratch), e, user->entry_size);
        return scratch;
}

/* Counts the pieces of all entries; an entry without an array counts as one. Returns false if the
 * sum overflows. */
static bool count_pieces(const struct kvcache_request *user, size_t *ret)
{
        struct kvcache_entry scratch;
        size_t n = 0;

        for (size_t i = 0; i < user->count; i++) {
                const struct kvcache_entry *e = entry_at(user, i, &scratch);

                if (!checked_add(n, e->pieces && e->n_pieces > 0 ? e->n_pieces : 1u, &n))
                        return false;
        }
        *ret = n;
        return true;
}

static int allocate(const struct kvcache_request *user, struct resolved *r)
{
        size_t keys, pieces = 0, bytes;

        if (!count_pieces(user, &pieces) || !checked_mul(user->count, sizeof(*r->keys), &keys) ||
            !checked_mul(pieces, sizeof(*r->pieces), &bytes) || !checked_add(bytes, keys, &bytes))
                return -ENOMEM;
        r->keys = malloc(MAX(bytes, (size_t)1));
        if (!r->keys)
                return -ENOMEM;
        r->pieces = (struct resolved_piece *)(r->keys + user->count);
        r->count = user->count;
        return 0;
}
static_assert(_Alignof(struct resolved_piece) <= _Alignof(struct resolved_key),
              "the pieces lie behind the keys");

/* State of one pass over the entries of a request. */
struct pass {
        struct kvcache *kv;
        const struct kvcache_request *user;
        struct resolved *r;
        size_t n_pieces; /* number of pieces of the entries resolved so far */
        uint64_t tried;  /* buffers whose registration this pass has tried, one bit each */
};

/* Location of a piece, from best to worst; the location of a key is that of its worst piece. */
enum home {
        HOME_SHARED,    /* in memory that the daemon maps, too */
        HOME_ELSEWHERE, /* at least partly in other memory */
        HOME_REFUSED,   /* in a buffer that the daemon refused to register again */
        HOME_NOWHERE,   /* invalid: no address, no bytes, partly at the addresses of a file on disk,
                           or in such a file although the request must not name it */
};

/* Locates a piece. Returns an enum home, or -errno if the request cannot be sent. */
static int locate(struct pass *pass, struct resolved_piece *p, bool may_be_on_disk)
{
        struct kvcache *kv = pass->kv;
        const struct staging *l = &kv->conn->staging;
        const struct buffer *d;
        int error;

        if (!p->data || p->bytes == 0)
                return HOME_NOWHERE;
        if (staging_contains(l, p->data, p->bytes)) {
                p->place =
                        (struct place){ WIRE_REGION_STAGING,
                                        (uint64_t)((const uint8_t *)p->data - l->base), p->bytes };
                return HOME_SHARED;
        }
        d = buffer_find(kv, p->data, p->bytes);
        if (!d)
                return buffer_is_near_file(kv, p->data, p->bytes) ? HOME_NOWHERE : HOME_ELSEWHERE;
        if (d->on_disk && !may_be_on_disk)
                return HOME_NOWHERE;
        error = memory_buffer_ready(kv, d, &pass->tried, &pass->r->refused);
        if (error < 0)
                return error;
        if (d->session != kv->sessions)
                return HOME_REFUSED;
        pass->r->all_firm &= d->firm;
        p->place =
                (struct place){ d->id, (uint64_t)((const uint8_t *)p->data - d->base), p->bytes };
        return HOME_SHARED;
}

/* Locates the key's n_pieces pieces. Returns the worst enum home, or -errno. */
static int resolve_pieces(struct pass *pass, const struct iovec *pieces, struct resolved_key *k)
{
        int worst = HOME_SHARED;

        for (uint32_t i = 0; i < k->n_pieces; i++) {
                struct resolved_piece *p = &pass->r->pieces[k->first_piece + i];
                int home;

                *p = (struct resolved_piece){ .data = pieces[i].iov_base,
                                              .bytes = pieces[i].iov_len };
                if (!checked_add(k->bytes, p->bytes, &k->bytes))
                        k->bytes = UINT64_MAX;
                home = locate(pass, p, pass->user->op == KVCACHE_OP_PUT && k->n_pieces == 1);
                if (home < 0)
                        return home;
                worst = MAX(worst, home);
        }
        return worst;
}

/* Resolves the bytes of entry `e`, or the room for them. Returns 0 or -errno. */
static int resolve_bytes(struct pass *pass, const struct kvcache_entry *e, struct resolved_key *k)
{
        const struct iovec one = { e->data, e->length }, none = { 0 };
        const struct iovec *pieces = e->n_pieces == 0 ? &one : e->pieces ? e->pieces : &none;
        int home;

        k->n_pieces = e->pieces && e->n_pieces > 0 ? e->n_pieces : 1;
        home = resolve_pieces(pass, pieces, k);
        if (home < 0)
                return home;
        k->shared = home == HOME_SHARED;
        if (home == HOME_NOWHERE)
                k->status = KVCACHE_INVALID;
        else if (pass->user->op == KVCACHE_OP_PUT && k->bytes > pass->kv->conn->max_chunk)
                k->status = KVCACHE_TOO_LARGE;
        else if (home == HOME_REFUSED)
                k->status = KVCACHE_INVALID;
        else if (k->n_pieces > 1 && k->bytes > UINT32_MAX)
                k->status =
                        KVCACHE_INVALID; /* no chunk is that long, and wire lengths have 32 bits */
        return 0;
}

/* Returns whether the key can name a chunk, and a get's range can lie in one. */
static bool may_name_a_chunk(enum kvcache_op op, const struct kvcache_entry *e)
{
        struct key key;

        memcpy(&key, &e->key, sizeof(key));
        if (key_is_root(&key))
                return false;
        return op != KVCACHE_OP_GET_INTO ||
               (e->range_offset <= UINT32_MAX && e->range_length <= UINT32_MAX);
}

static int resolve_key(struct pass *pass, size_t i)
{
        struct resolved *r = pass->r;
        struct resolved_key *k = &r->keys[i];
        struct kvcache_entry scratch;
        const struct kvcache_entry *e = entry_at(pass->user, i, &scratch);
        int error;

        *k = (struct resolved_key){ .first_piece = pass->n_pieces };
        error = resolve_bytes(pass, e, k);
        if (error < 0)
                return error;
        pass->n_pieces += k->n_pieces;
        if (!may_name_a_chunk(pass->user->op, e))
                k->status = KVCACHE_INVALID;
        if (k->status == KVCACHE_OK && !k->shared) {
                r->all_shared = false;
                r->needs_staging = pass->user->op == KVCACHE_OP_PUT;
        }
        return 0;
}

int resolve(struct kvcache *kv, const struct kvcache_request *user, struct resolved *r)
{
        struct pass pass = { .kv = kv, .user = user, .r = r };
        int error;

        if (kv->conn && r->session == kv->sessions)
                return 0;
        resolved_fini(r);
        r->all_shared = r->all_firm = true;
        r->session = kv->sessions;
        if (!op_moves(user->op))
                return 0;
        error = allocate(user, r);
        for (size_t i = 0; error == 0 && i < user->count; i++) {
                error = resolve_key(&pass, i);
                /* Registering a buffer again may have revealed that the session has ended. */
                if (error == 0 && !kv->conn)
                        error = -ECONNRESET;
        }
        if (error < 0)
                resolved_fini(r);
        return error;
}
