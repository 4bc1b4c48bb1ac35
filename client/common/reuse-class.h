/* SPDX-License-Identifier: Apache-2.0 */
/* Names the classes of chunks in the eviction policies. */
#pragma once

/* Returns the words for a class: a KVCACHE_CLASS_* or the equal enum evict_class. */
const char *reuse_class_text(unsigned reuse_class);
