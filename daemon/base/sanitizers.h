/* SPDX-License-Identifier: Apache-2.0 */
/* Detects sanitizers: SANITIZES_... is 1 or 0. gcc and clang define different macros. */
#pragma once

#ifdef __has_feature
#define SANITIZERS_CLANG(name) __has_feature(name)
#else
#define SANITIZERS_CLANG(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || SANITIZERS_CLANG(address_sanitizer)
#define SANITIZES_ADDRESSES 1
#else
#define SANITIZES_ADDRESSES 0
#endif

/* Forbid and allow access to memory that is kept for reuse, so that AddressSanitizer reports an
 * access to unused memory. */
#if SANITIZES_ADDRESSES
#include <sanitizer/asan_interface.h>
#define SANITIZERS_FORBID(p, bytes) ASAN_POISON_MEMORY_REGION(p, bytes)
#define SANITIZERS_ALLOW(p, bytes)  ASAN_UNPOISON_MEMORY_REGION(p, bytes)
#else
#define SANITIZERS_FORBID(p, bytes) ((void)(p), (void)(bytes))
#define SANITIZERS_ALLOW(p, bytes)  ((void)(p), (void)(bytes))
#endif

#if defined(__SANITIZE_THREAD__) || SANITIZERS_CLANG(thread_sanitizer)
#define SANITIZES_THREADS 1
#else
#define SANITIZES_THREADS 0
#endif
