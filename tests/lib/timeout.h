/* SPDX-License-Identifier: Apache-2.0 */
/* The time after which a test that waits for a condition gives up. Such a limit ends a test that
 * hangs; a test that makes progress must not depend on it. */
#pragma once

/* Returns `ms`, multiplied by KVCACHE_TEST_SLOW, and by 5 in a build with a sanitizer. The variable
 * is a decimal number, clamped to 1 to 10; any other text counts as 1. A product above INT_MAX
 * becomes INT_MAX. */
int test_timeout_ms(int ms);
