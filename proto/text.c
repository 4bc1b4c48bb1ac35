/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <string.h>

size_t text_control(const char *text)
{
        const unsigned char *p = (const unsigned char *)text;

        if (p[0] < 0x20 || p[0] == 0x7f)
                return p[0] != '\0';
        if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f)
                return 2;
        if (p[0] == 0xe2 && ((p[1] == 0x80 && p[2] >= 0xa8 && p[2] <= 0xae) ||
                             (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9)))
                return 3;
        return 0;
}

char *text_clean(char *text)
{
        for (char *p = text; *p;) {
                size_t n = text_control(p);

                memset(p, '?', n);
                p += n > 0 ? n : 1;
        }
        return text;
}

bool text_is_ascii(const char *text, size_t bytes)
{
        for (size_t i = 0; i < bytes; i++)
                if (text[i] < 0x20 || text[i] > 0x7e)
                        return false;
        return true;
}
