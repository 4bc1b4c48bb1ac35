/* SPDX-License-Identifier: Apache-2.0 */
#include "timeout.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "../../daemon/base/sanitizers.h"

/* Reads the variable at each call, because a test changes it. */
static double slow_factor(void)
{
        const char *text = getenv("KVCACHE_TEST_SLOW");
        char *end;
        double factor;

        if (!text || strspn(text, "0123456789.") != strlen(text))
                return 1;
        factor = strtod(text, &end);
        if (*end || factor < 1)
                return 1;
        return factor > 10 ? 10 : factor;
}

int test_timeout_ms(int ms)
{
        double scaled = ms * slow_factor() * (SANITIZES_ADDRESSES || SANITIZES_THREADS ? 5 : 1);

        return scaled < INT_MAX ? (int)scaled : INT_MAX;
}
