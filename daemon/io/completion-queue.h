/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of finished requests, which all threads of a kio fill and the loop thread empties.
 * Private to io/. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"

struct completion_queue {
        pthread_mutex_t lock;
        struct list_node done;
        bool notified; /* requests were published since the last completion_queue_end(); the first
                        * such publisher writes the eventfd. Protected by `lock` */
        int fd;        /* an eventfd, readable when the loop thread has requests to take */
};

/* Creates the eventfd. Returns 0 or -errno. At completion_queue_fini() no thread may publish any
 * longer; remaining requests are dropped. */
int completion_queue_init(struct completion_queue *o);
void completion_queue_fini(struct completion_queue *o);

/* Publishes all requests in `done` and notifies the loop unless a notification is pending. Any
 * thread. */
void completion_queue_publish(struct completion_queue *o, struct list_node *done);

/* Take finished requests, on the loop thread: begin() resets the eventfd, take() may run any number
 * of times, and end() takes the remaining requests and turns notifications on again. Both append
 * the requests to `ret`. Between begin() and end(), at most one thread writes the eventfd. */
void completion_queue_begin(struct completion_queue *o);
void completion_queue_take(struct completion_queue *o, struct list_node *ret);
void completion_queue_end(struct completion_queue *o, struct list_node *ret);
/* Notifies the loop, after end(), that it has taken requests which it has not completed yet. */
void completion_queue_wake(struct completion_queue *o);
