/* SPDX-License-Identifier: Apache-2.0 */
/* The copy kernel: scattered pieces between device memory and mapped host memory.
 *
 * The host writes the list of copies; each warp takes every n-th of them. A thread has eight 16-byte
 * loads in flight before the first store, 4 KiB a warp: that hides the latency of the bus. The
 * number of thread blocks, which the host chooses, bounds the multiprocessors that are busy with it.
 *
 * copy.ptx is made from this file by make-ptx.sh. */
#include <stdint.h>

struct copy {
        uint64_t to, from, bytes;
};

enum { WARP = 32, DEPTH = 8 };

template <typename T>
static __device__ __forceinline__ void copy_as(uint64_t to, uint64_t from, uint64_t bytes,
                                               uint32_t rank)
{
        const T *source = (const T *)from;
        T *target = (T *)to;
        uint64_t n = bytes / sizeof(T), i = 0;
        T held[DEPTH];

        for (; i + DEPTH * WARP <= n; i += DEPTH * WARP) {
#pragma unroll
                for (int k = 0; k < DEPTH; k++)
                        held[k] = __ldcs(source + i + k * WARP + rank);
#pragma unroll
                for (int k = 0; k < DEPTH; k++)
                        __stcs(target + i + k * WARP + rank, held[k]);
        }
        for (i += rank; i < n; i += WARP)
                __stcs(target + i, __ldcs(source + i));
}

extern "C" __global__ void __launch_bounds__(1024) kvcache_copy(const struct copy *copies, uint32_t n)
{
        uint32_t rank = threadIdx.x % WARP;
        uint32_t warps = gridDim.x * (blockDim.x / WARP);

        for (uint32_t i = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; i < n; i += warps) {
                struct copy c = copies[i];
                uint64_t all = c.to | c.from | c.bytes;

                if (all % 16 == 0)
                        copy_as<uint4>(c.to, c.from, c.bytes, rank);
                else if (all % 4 == 0)
                        copy_as<uint32_t>(c.to, c.from, c.bytes, rank);
                else
                        copy_as<uint8_t>(c.to, c.from, c.bytes, rank);
        }
}
