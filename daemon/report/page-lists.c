/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of tenants and namespaces of the page at "/". Loop thread. Owns nothing, and cannot
 * fail. */
#include <math.h>
#include <string.h>

#include "report/html.h"
#include "report/page-namespace.h"
#include "report/page-parts.h"
#include "report/page.h"

enum { TENANTS_MAX = 16 };

/* Returns the hit ratio of lookups, or of gets if there were no lookups. */
static double hit_ratio(const cJSON *o)
{
        double lookups = json_ratio(o, "lookup_found_keys", "lookup_keys");

        return isfinite(lookups) ? lookups : json_ratio(o, "get_found_keys", "get_keys");
}

static void print_of(FILE *out, const cJSON *o, const char *name,
                     void (*print)(FILE *out, double value))
{
        double limit = json_limit(o, name);

        fputs("<td class=\"num\">", out);
        print(out, json_number(o, name));
        if (isfinite(limit)) {
                fputs(" of ", out);
                print(out, limit);
        }
        fputs("</td>", out);
}

void page_print_tenants(FILE *out, const cJSON *status)
{
        const cJSON *list = json_array(status, "tenants"), *tenant;
        int n = cJSON_GetArraySize(list), shown = 0;

        if (n < 2)
                return; /* a table of one tenant would only repeat the totals */
        fputs("<section><h2>Tenants</h2>\n<div class=\"wide card\"><table class=\"list\">\n"
              "<thead><tr><th scope=\"col\">tenant</th><th scope=\"col\" class=\"num\">memory</th>"
              "<th scope=\"col\" class=\"num\">disk</th>"
              "<th scope=\"col\" class=\"num\">hit ratio</th>"
              "<th scope=\"col\" class=\"num extra\">got</th>"
              "<th scope=\"col\" class=\"num extra\">put</th>"
              "<th scope=\"col\" class=\"num extra\">clients</th>"
              "<th scope=\"col\" class=\"num extra\">refused</th></tr></thead>\n<tbody>\n",
              out);
        cJSON_ArrayForEach(tenant, list)
        {
                if (shown++ == TENANTS_MAX)
                        break;
                fputs("<tr><th scope=\"row\"><bdi>", out);
                html_text_short(out, json_text(tenant, "name"), NAME_SHOWN);
                fputs("</bdi></th>", out);
                print_of(out, tenant, "pool_bytes", html_bytes);
                print_of(out, tenant, "stored_bytes", html_bytes);
                fputs("<td class=\"num\">", out);
                html_ratio(out, hit_ratio(tenant));
                fputs("</td><td class=\"num extra\">", out);
                html_bytes(out, json_number(tenant, "get_bytes"));
                fputs("</td><td class=\"num extra\">", out);
                html_bytes(out, json_number(tenant, "put_bytes"));
                fputs("</td><td class=\"num extra\">", out);
                html_number(out, json_number(tenant, "connections"));
                fputs("</td><td class=\"num extra\">", out);
                html_number(out, json_number(tenant, "refused"));
                fputs("</td></tr>\n", out);
        }
        fputs("</tbody></table></div></section>\n", out);
}

/* Prints a row. With `linked`, the name leads to the page of the namespace. */
static void print_namespace(FILE *out, const cJSON *ns, bool linked)
{
        fputs("<tr><th scope=\"row\"><bdi>", out);
        if (linked)
                page_namespace_print_link(out, json_text(ns, "name"), NAME_SHOWN);
        else
                html_text_short(out, json_text(ns, "name"), NAME_SHOWN);
        fputs("</bdi></th><td class=\"num\">", out);
        html_bytes(out, json_number(ns, "bytes"));
        fputs("</td><td class=\"num\">", out);
        html_number(out, json_number(ns, "chunks"));
        fputs("</td><td class=\"num\">", out);
        html_ratio(out, hit_ratio(ns));
        fputs("</td><td class=\"num extra\">", out);
        html_bytes(out, json_number(ns, "chunk_bytes") > 0 ? json_number(ns, "chunk_bytes") : NAN);
        fputs("</td><td class=\"num extra\">", out);
        html_number(out, json_number(ns, "sessions"));
        fputs("</td></tr>\n", out);
}

void page_print_namespaces(FILE *out, const cJSON *status)
{
        const cJSON *list = json_array(status, "namespaces"),
                    *usage = json_member(status, "namespace_usage"), *ns;
        /* The tenant whose namespaces have pages. */
        const char *only = json_text(cJSON_GetArrayItem(json_array(status, "tenants"), 0), "name");
        int n = cJSON_GetArraySize(list), shown = 0;
        double count = fmax(json_number(usage, "count"), n);

        fputs("<section><div class=\"head\"><h2>Namespaces</h2><span class=\"note\">", out);
        html_number(out, count);
        if (json_number(usage, "limit") > 0) {
                fputs(" of at most ", out);
                html_number(out, json_number(usage, "limit"));
        }
        fputs("</span></div>\n", out);
        if (json_text(usage, "warning")[0]) {
                fputs("<p><b class=\"warn\">⚠ ", out);
                html_text_short(out, json_text(usage, "warning"), REASON_SHOWN);
                fputs("</b></p>\n", out);
        }
        if (n > 0)
                fputs("<div class=\"wide card\"><table class=\"list\">\n<thead><tr>"
                      "<th scope=\"col\">namespace</th><th scope=\"col\" class=\"num\">bytes</th>"
                      "<th scope=\"col\" class=\"num\">chunks</th>"
                      "<th scope=\"col\" class=\"num\">hit ratio</th>"
                      "<th scope=\"col\" class=\"num extra\">chunk size</th>"
                      "<th scope=\"col\" class=\"num extra\">sessions</th></tr></thead>\n<tbody>\n",
                      out);
        cJSON_ArrayForEach(ns, list)
        {
                if (shown == PAGE_NAMESPACES)
                        break;
                print_namespace(out, ns, strcmp(json_text(ns, "tenant"), only) == 0);
                shown++;
        }
        if (n > 0)
                fputs("</tbody></table></div>\n", out);
        if (n > 0 && count > shown) {
                page_print_more(out, count - shown);
                fputs(": <code>kvcachectl namespace ls</code> lists all</p>\n", out);
        } else if (n == 0 && count > 0) {
                fputs("<p class=\"soft\">Their names are not shown over HTTP, since there are "
                      "several tenants: <code>kvcachectl namespace ls</code> lists them</p>\n",
                      out);
        }
        fputs("</section>\n", out);
}
