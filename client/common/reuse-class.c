/* SPDX-License-Identifier: Apache-2.0 */
#include "reuse-class.h"

#include "checked.h"
#include "kvcache.h"

const char *reuse_class_text(unsigned reuse_class)
{
        static const char *const texts[] = {
                [KVCACHE_CLASS_ONCE] = "used once",
                [KVCACHE_CLASS_ONCE_CONTINUED] = "used once, in a later turn",
                [KVCACHE_CLASS_ONCE_END] = "used once, end of a chain",
                [KVCACHE_CLASS_TWICE] = "used twice",
                [KVCACHE_CLASS_THRICE] = "used 3 times",
                [KVCACHE_CLASS_4_TO_5] = "used 4 or 5 times",
                [KVCACHE_CLASS_6_TO_11] = "used 6 to 11 times",
                [KVCACHE_CLASS_12] = "used 12 times or more",
                [KVCACHE_CLASS_RETURN_60] = "hint: returns within 60 s",
                [KVCACHE_CLASS_RETURN_600] = "hint: returns within 600 s",
                [KVCACHE_CLASS_RETURN] = "hint: returns after 600 s",
                [KVCACHE_CLASS_FINAL] = "hint: final",
                [KVCACHE_CLASS_RECENCY] = "by recency",
                [KVCACHE_CLASS_GAP_10] = "used every 10 s or faster",
                [KVCACHE_CLASS_GAP_20] = "used every 10 to 20 s",
                [KVCACHE_CLASS_GAP_40] = "used every 20 to 40 s",
                [KVCACHE_CLASS_GAP_80] = "used every 40 to 80 s",
        };

        return reuse_class < ARRAY_SIZE(texts) && texts[reuse_class] ? texts[reuse_class]
                                                                     : "of a later version";
}
