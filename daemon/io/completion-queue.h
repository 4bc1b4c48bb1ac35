/* SPDX-License-Identifier: Apache-2.0 */
/* What is done, on its way to the loop: one list that all threads of a kio fill and the loop
 * empties. Only io/ includes this. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"

struct completion_queue {
        pthread_mutex_t lock;
        struct list_node done;
        bool notified; /* the loop comes by itself, or has been told to; under `lock`, too */
        int fd;        /* an eventfd: readable when the loop has something to take */
};

int completion_queue_init(struct completion_queue *o);
void completion_queue_fini(struct completion_queue *o);

/* Any thread: hands over all of `done` and tells the loop, unless it has been told already. */
void completion_queue_publish(struct completion_queue *o, struct list_node *done);

/* The loop, in this order: begin(); take() as often as it likes, while nobody notifies it; end(),
 * which takes what is left, and from which on it will be notified again. Both append to `ret`. */
void completion_queue_begin(struct completion_queue *o);
void completion_queue_take(struct completion_queue *o, struct list_node *ret);
void completion_queue_end(struct completion_queue *o, struct list_node *ret);
