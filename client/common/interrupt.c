/* SPDX-License-Identifier: Apache-2.0 */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

atomic_int interrupted;

static void on_signal(int signal)
{
        interrupted = 1;
}

void interrupt_catch(void)
{
        struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };

        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
}

void interrupt_catch_always(void)
{
        struct sigaction action = { .sa_handler = on_signal };

        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        sigaction(SIGHUP, &action, NULL);
        signal(SIGPIPE, SIG_IGN);
}
