/* SPDX-License-Identifier: Apache-2.0 */
/* Implements page-frame.h. Stateless, cannot fail. */
#include "report/page-frame.h"

#include "report/html.h"
#include "report/style.h"

const char page_policy[] = "default-src 'none'; style-src '" STYLE_HASH "'; base-uri 'none'; "
                           "form-action 'none'; frame-ancestors 'none'";

static void print_part_of_title(FILE *out, const char *text)
{
        if (!text || text[0] == '\0')
                return;
        html_text_short(out, text, PAGE_NAME_SHOWN);
        fputs(" · ", out);
}

void page_frame_begin(FILE *out, const char *subject, const char *host, bool paused)
{
        fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>", out);
        print_part_of_title(out, subject);
        print_part_of_title(out, host);
        fputs("kvcache-daemon</title>\n"
              "<meta name=\"viewport\" content=\"width=device-width\">\n",
              out);
        if (!paused)
                fprintf(out, "<meta http-equiv=\"refresh\" content=\"%d\">\n", PAGE_RELOAD_S);
        fputs("<style>" STYLE "</style></head><body>\n"
              "<svg width=\"0\" height=\"0\" aria-hidden=\"true\" class=\"defs\"><defs><pattern "
              "id=\"hatch\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
              "patternTransform=\"rotate(45)\"><path class=\"hatch\" "
              "d=\"M0 0V5\"/></pattern></defs></svg>\n",
              out);
}
