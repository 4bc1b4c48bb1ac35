/* SPDX-License-Identifier: Apache-2.0 */
/* Names the classes of chunks in the eviction policies. */
#pragma once

/* Returns the words for a class: a KVCACHE_CLASS_* or the equal enum evict_class. A class that this
 * version does not know is "of a later version". */
const char *reuse_class_text(unsigned reuse_class);
