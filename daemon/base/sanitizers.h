/* SPDX-License-Identifier: Apache-2.0 */
/* What this is built with, 1 or 0: gcc and clang say it in different ways. */
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

#if defined(__SANITIZE_THREAD__) || SANITIZERS_CLANG(thread_sanitizer)
#define SANITIZES_THREADS 1
#else
#define SANITIZES_THREADS 0
#endif
