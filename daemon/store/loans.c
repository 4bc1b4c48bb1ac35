/* SPDX-License-Identifier: Apache-2.0 */
/* Loans of chunks that clients read directly from data files. A loan belongs to one borrower, and
 * is named by a number and a generation, so that the number of an ended loan is recognised. During
 * a loan, no other chunk gets the chunk's slot.
 *
 * Loop thread. Owns the table of loans, which is allocated with the first loan, and the pins of the
 * lent chunks. If a volume is replaced after a resume, its loans become void: store_give_back()
 * then answers STORE_MISS. */
#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "store/internal.h"

struct loan {
        uint32_t generation;
        uint32_t next, previous; /* numbers of the neighbours in the borrower's list; `next` also
                                    links the free list */
        uint32_t pages;          /* length of the chunk, in whole pages */
        struct store_ref ref;    /* the lent chunk; its index is UINT32_MAX if the loan is void */
        struct store_borrower *borrower; /* owner of the loan; NULL if this element is free */
};

enum { LOAN_PAGE = 4096 };

/* Returns a free element of the table with a new generation, or NULL if memory is short. */
static struct loan *take(struct store *s)
{
        struct loan *l;

        if (!s->loans) {
                s->loans = calloc(STORE_LOANS_MAX, sizeof(*s->loans));
                s->loans_free = STORE_LOAN_NONE;
                if (!s->loans)
                        return NULL;
        }
        if (s->loans_free != STORE_LOAN_NONE) {
                l = &s->loans[s->loans_free];
                s->loans_free = l->next;
        } else {
                l = &s->loans[s->loans_high++];
        }
        if (++l->generation == 0)
                l->generation = 1;
        return l;
}

/* Adds a loan to the front of the borrower's list. */
static void link_loan(struct store *s, struct loan *l, struct store_borrower *b)
{
        uint32_t id = (uint32_t)(l - s->loans);

        l->borrower = b;
        l->previous = STORE_LOAN_NONE;
        l->next = b->first;
        if (b->first != STORE_LOAN_NONE)
                s->loans[b->first].previous = id;
        b->first = id;
        b->count++;
        b->bytes += (uint64_t)l->pages * LOAN_PAGE;
        s->lent.loans++;
        s->lent.bytes += (uint64_t)l->pages * LOAN_PAGE;
}

static void free_loan(struct store *s, struct loan *l)
{
        struct store_borrower *b = l->borrower;

        if (l->previous != STORE_LOAN_NONE)
                s->loans[l->previous].next = l->next;
        else
                b->first = l->next;
        if (l->next != STORE_LOAN_NONE)
                s->loans[l->next].previous = l->previous;
        b->count--;
        b->bytes -= (uint64_t)l->pages * LOAN_PAGE;
        s->lent.loans--;
        s->lent.bytes -= (uint64_t)l->pages * LOAN_PAGE;
        l->borrower = NULL;
        l->next = s->loans_free;
        s->loans_free = (uint32_t)(l - s->loans);
}

/* Unpins the lent chunk. Returns whether the chunk was in its slot all the time. */
static bool unpin(struct store *s, struct loan *l)
{
        unsigned volume = store_volume_of(l->ref);
        struct store_ref ref = l->ref;

        if (ref.index == UINT32_MAX)
                return false;
        l->ref = STORE_REF_NONE;
        return volume_give_back(s->volumes[volume].volume, ref) && member_is_up(s, volume);
}

int store_lend(struct store *s, struct store_borrower *borrower, struct store_ref ref,
               struct store_loan *ret_loan, struct store_extent *ret_extent)
{
        unsigned volume = store_volume_of(ref);
        struct store_extent extent;
        struct loan *l;
        int r;

        if (ref.index == UINT32_MAX || !store_volume_is_up(s, volume))
                return STORE_MISS;
        if (s->lent.loans == STORE_LOANS_MAX)
                return STORE_FULL;
        r = volume_lend(s->volumes[volume].volume, ref, &s->lent_files, &extent);
        if (r != 0)
                return r;
        l = take(s);
        if (!l) {
                (void)volume_give_back(s->volumes[volume].volume, ref);
                return -ENOMEM;
        }
        l->ref = ref;
        l->pages = (uint32_t)(round_up(extent.length, LOAN_PAGE) / LOAN_PAGE);
        link_loan(s, l, borrower);
        s->lent.lent++;
        s->lent.lent_bytes += extent.length;
        *ret_loan =
                (struct store_loan){ .id = (uint32_t)(l - s->loans), .generation = l->generation };
        *ret_extent = extent;
        return 0;
}

int store_give_back(struct store *s, struct store_borrower *borrower, struct store_loan loan)
{
        struct loan *l;
        bool was_right;

        if (loan.id >= s->loans_high)
                return STORE_STALE;
        l = &s->loans[loan.id];
        if (l->borrower != borrower || l->generation != loan.generation)
                return STORE_STALE;
        was_right = unpin(s, l);
        free_loan(s, l);
        s->lent.returned += was_right;
        s->lent.returned_void += !was_right;
        return was_right ? 0 : STORE_MISS;
}

uint32_t store_give_back_some(struct store *s, struct store_borrower *borrower, uint32_t most)
{
        uint32_t n = 0;

        for (; n < most && borrower->first != STORE_LOAN_NONE; n++) {
                struct loan *l = &s->loans[borrower->first];

                (void)unpin(s, l);
                free_loan(s, l);
        }
        s->lent.abandoned += n;
        return n;
}

void loans_forget_volume(struct store *s, unsigned volume)
{
        for (uint32_t i = 0; i < s->loans_high; i++) {
                struct loan *l = &s->loans[i];

                if (l->borrower && l->ref.index != UINT32_MAX && store_volume_of(l->ref) == volume)
                        (void)unpin(s, l);
        }
}

int store_open_lent(struct store *s, struct store_lent_file *req)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i) && volume_open_lent(s->volumes[i].volume, req) == 0)
                        return 0;
        return STORE_STALE;
}

void store_get_loans(const struct store *s, struct store_loan_stats *ret)
{
        *ret = s->lent;
}
