/* SPDX-License-Identifier: Apache-2.0 */
/* The classes by which an eviction policy judges chunks, in words. */
#pragma once

/* Returns the words for a KVCACHE_CLASS_*, which are those of enum evict_class. */
const char *reuse_class_text(unsigned reuse_class);
