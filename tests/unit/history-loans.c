/* SPDX-License-Identifier: Apache-2.0 */
#include "history-loans.h"

#include <stdlib.h>
#include <unistd.h>

#include "checked.h"
#include "history-actions.h"
#include "history-model.h"

enum { LOANS = 4, PAGE = 4096 };

/* A chunk that a client reads in its data file. */
struct held {
        struct store_lent_file file;
        struct store_loan loan;
        struct store_extent extent;
        struct model_get get;
        uint32_t n;
        bool is_open;
};

static struct held *loans[LOANS];
static unsigned n_loans;
static struct store_borrower borrower = { .first = STORE_LOAN_NONE };

static void on_opened(struct store_lent_file *file)
{
        container_of(file, struct held, file)->is_open = true;
}

void lend_one(uint32_t n)
{
        struct key key = key_of(n);
        struct store_ref ref;
        struct held *h;
        int r;

        if (n_loans == LOANS ||
            store_find(t.store, t.ns, &key, cache_hash(t.cache, t.ns, &key), &ref, NULL) != 0)
                return;
        h = calloc(1, sizeof(*h));
        assert_non_null(h);
        h->n = n;
        r = store_lend(t.store, &borrower, ref, &h->loan, &h->extent);
        if (r != 0) {
                free(h);
                if (r == STORE_UNVERIFIED) { /* a later loan finds the chunk read back */
                        (void)evict(n, true);
                        get_one(n);
                }
                return;
        }
        model_get_begins(n, &h->get);
        h->file = (struct store_lent_file){ .file = h->extent.file, .complete = on_opened };
        if (store_open_lent(t.store, &h->file) != 0) {
                (void)store_give_back(t.store, &borrower, h->loan);
                free(h);
                return;
        }
        kio_flush(t.io);
        loans[n_loans++] = h;
}

/* The bytes count only if the store says afterwards that the chunk was in its place. */
static void read_and_give_back(struct held *h)
{
        uint32_t room = round_up(h->extent.length, (uint32_t)PAGE);
        char *bytes = aligned_alloc(PAGE, room);
        bool is_read = false;

        assert_non_null(bytes);
        if (h->file.result == 0) {
                ssize_t r = pread(h->file.fd, bytes, room, (off_t)h->extent.offset);

                is_read = r >= (ssize_t)h->extent.length;
                close(h->file.fd);
        }
        if (store_give_back(t.store, &borrower, h->loan) == 0 && is_read)
                model_get_ended(h->n, &h->get, version_of(bytes, h->n, h->extent.length));
        free(bytes);
        free(h);
}

void give_back_one(void)
{
        unsigned i = n_loans > 0 ? draw(n_loans) : 0;

        if (n_loans == 0 || !loans[i]->is_open)
                return;
        read_and_give_back(loans[i]);
        loans[i] = loans[--n_loans];
}

void give_back_all(void)
{
        while (n_loans > 0) {
                struct held *h = loans[--n_loans];

                tiers_wait(&t, &h->is_open);
                read_and_give_back(h);
        }
}
