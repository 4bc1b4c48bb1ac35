/* SPDX-License-Identifier: Apache-2.0 */
/* Implements breaker.h. Loop thread. */
#include "remote/breaker.h"

#include <string.h>

#include "checked.h"

static void set_state(struct breaker *b, enum remote_breaker state, uint64_t now_ns)
{
        b->state = state;
        b->since_ns = now_ns;
}

void breaker_init(struct breaker *b, uint64_t slow_ns, uint64_t now_ns)
{
        *b = (struct breaker){ .slow_ns = slow_ns, .slot = now_ns / BREAKER_SLOT_NS };
        set_state(b, REMOTE_CLOSED, now_ns);
}

static void advance(struct breaker *b, uint64_t now_ns)
{
        uint64_t slot = now_ns / BREAKER_SLOT_NS;

        for (unsigned i = 0; b->slot < slot && i < BREAKER_SLOTS; i++) {
                b->slot++;
                memset(&b->slots[b->slot % BREAKER_SLOTS], 0, sizeof(b->slots[0]));
        }
        if (b->slot < slot) { /* more than the whole window has passed */
                memset(b->slots, 0, sizeof(b->slots));
                b->slot = slot;
        }
}

static bool is_bad(const struct breaker *b)
{
        uint64_t all = 0, failed = 0, slow = 0;

        for (unsigned i = 0; i < BREAKER_SLOTS; i++) {
                all += b->slots[i].all;
                failed += b->slots[i].failed;
                slow += b->slots[i].slow;
        }
        return b->failed_in_a_row >= BREAKER_IN_A_ROW ||
               (all >= BREAKER_FEWEST && (2 * failed >= all || 2 * slow >= all));
}

static void open(struct breaker *b, uint64_t backoff_ns, uint64_t now_ns)
{
        b->backoff_ns = backoff_ns;
        b->trial_ns = now_ns + backoff_ns;
        b->succeeded = 0;
}

bool breaker_count(struct breaker *b, bool failed, uint64_t took_ns, uint64_t now_ns)
{
        if (b->state != REMOTE_CLOSED)
                return false;
        advance(b, now_ns);
        b->slots[b->slot % BREAKER_SLOTS].all++;
        b->slots[b->slot % BREAKER_SLOTS].failed += failed;
        b->slots[b->slot % BREAKER_SLOTS].slow += took_ns > b->slow_ns;
        b->failed_in_a_row = failed ? b->failed_in_a_row + 1 : 0;
        if (!is_bad(b))
                return false;
        open(b, BREAKER_BACKOFF_MIN, now_ns);
        set_state(b, REMOTE_OPEN, now_ns);
        b->trips++;
        return true;
}

bool breaker_trial(struct breaker *b, uint64_t now_ns)
{
        if (b->state == REMOTE_CLOSED || b->trying || now_ns < b->trial_ns)
                return false;
        if (b->state == REMOTE_OPEN)
                set_state(b, REMOTE_HALF_OPEN, now_ns);
        b->trying = true;
        return true;
}

void breaker_trial_end(struct breaker *b, bool failed, uint64_t now_ns)
{
        b->trying = false;
        if (b->state == REMOTE_CLOSED)
                return;
        if (failed) {
                open(b, MIN(2 * b->backoff_ns, BREAKER_BACKOFF_MAX), now_ns);
                set_state(b, REMOTE_OPEN, now_ns);
        } else if (++b->succeeded >= BREAKER_TRIALS) {
                memset(b->slots, 0, sizeof(b->slots));
                b->failed_in_a_row = 0;
                set_state(b, REMOTE_CLOSED, now_ns);
        }
}

uint64_t breaker_next(const struct breaker *b)
{
        return b->state == REMOTE_CLOSED || b->trying ? 0 : b->trial_ns;
}
