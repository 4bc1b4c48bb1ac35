/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for large arrays that are filled bit by bit and read in random order. */
#pragma once

#include <stdint.h>

/* Zeros, of which none costs anything before it is touched; in huge pages where the system gives
 * them, which misses the TLB less. NULL: no address space. munmap() it. */
void *pages_map(uint64_t bytes);
/* munmap() of large memory, mapped in any way: a piece at a time, since other threads cannot map or
 * unmap anything during a piece. Any thread. */
void pages_unmap(void *p, uint64_t bytes);
/* The same wish for memory that is there: for the huge pages that lie wholly within. */
void pages_wish_huge(void *p, uint64_t bytes);
/* Populates the memory, preserving its content; a piece at a time, so that a thread that touches
 * some of it meanwhile does not wait for all. Any thread. Before Linux 5.14, and where memory runs
 * out, the pages are populated on first touch. */
void pages_populate(void *p, uint64_t bytes);
/* Gives the machine's memory back, of the pages that lie wholly within; they are zeros again. */
void pages_unpopulate(void *p, uint64_t bytes);
