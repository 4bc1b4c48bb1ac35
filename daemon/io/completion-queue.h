/* SPDX-License-Identifier: Apache-2.0 */
/* Finished requests on their way to the loop: one list that all threads of a kio fill and the loop
 * empties. Private to io/. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"

struct completion_queue {
        pthread_mutex_t lock;
        struct list_node done;
        bool notified; /* the loop takes more by itself, or the eventfd is written; under `lock` */
        int fd;        /* an eventfd: readable when the loop has something to take */
};

int completion_queue_init(struct completion_queue *o);
void completion_queue_fini(struct completion_queue *o);

/* Any thread: publishes all of `done`, and notifies the loop unless that is pending already. */
void completion_queue_publish(struct completion_queue *o, struct list_node *done);

/* The loop, in this order: begin(); take() any number of times, while no thread notifies it; end(),
 * which takes the rest, and after which threads notify it again. Both append to `ret`. */
void completion_queue_begin(struct completion_queue *o);
void completion_queue_take(struct completion_queue *o, struct list_node *ret);
void completion_queue_end(struct completion_queue *o, struct list_node *ret);
