/* SPDX-License-Identifier: Apache-2.0 */
/* Implements page.h. The page reads everything from the JSON of /status, so that both agree, and
 * validates it: a missing member, or one of the wrong type, is shown as "–" or omitted. The length
 * is bounded, whatever the status contains. */
#include "report/page.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "checked.h"
#include "report/details.h"
#include "report/history.h"
#include "report/html.h"
#include "report/page-frame.h"
#include "report/page-namespace.h"
#include "report/plot.h"
#include "report/plots.h"

enum {
        REASONS_MAX = 24,
        VOLUMES_MAX = 16,
        TENANTS_MAX = 16,
        NAME_SHOWN = PAGE_NAME_SHOWN,
        REASON_SHOWN = 500
};
#define SLOW_S 1.0 /* operations at a device for longer than this are mentioned */
#define GAP    " · "

/* --- the status --- */

static const cJSON *member(const cJSON *o, const char *name)
{
        return cJSON_IsObject(o) ? cJSON_GetObjectItemCaseSensitive(o, name) : NULL;
}

/* Returns an array, or NULL if it does not exist, which cJSON treats as empty. */
static const cJSON *array(const cJSON *o, const char *name)
{
        const cJSON *item = member(o, name);

        return cJSON_IsArray(item) ? item : NULL;
}

/* Returns a number, or the "used" member of an object such as {"used": 1, "limit": 2}; NAN if there
 * is none. */
static double number(const cJSON *o, const char *name)
{
        const cJSON *item = member(o, name);

        if (cJSON_IsObject(item))
                item = member(item, "used");
        return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : NAN;
}

static double limit_of(const cJSON *o, const char *name)
{
        return number(member(o, name), "limit");
}

static const char *text(const cJSON *o, const char *name)
{
        const cJSON *item = member(o, name);

        return cJSON_IsString(item) ? item->valuestring : "";
}

static double ratio(const cJSON *o, const char *of, const char *all)
{
        return number(o, all) > 0 ? number(o, of) / number(o, all) : NAN;
}

/* Returns the hit ratio of lookups, or of gets if there were no lookups. */
static double hit_ratio(const cJSON *o)
{
        double lookups = ratio(o, "lookup_found_keys", "lookup_keys");

        return isfinite(lookups) ? lookups : ratio(o, "get_found_keys", "get_keys");
}

/* --- health --- */

const char *page_advice(const char *reason)
{
        static const struct {
                const char *reason, *advice;
        } known[] = {
                { "store_offline",
                  "Chunks are kept in memory only. Repair one of the volumes below, "
                  "and resume it with <code>kvcachectl device resume</code>." },
                { "volume_failed",
                  "Its chunks are misses until then. Find the device's errors with "
                  "<code>dmesg</code> and <code>smartctl -a</code>, replace the device or fix its "
                  "mount, and resume the volume." },
                { "volume_hung",
                  "Its chunks are misses until then. Find the driver's messages with "
                  "<code>dmesg</code>, reset or replace the device, and resume the volume when the "
                  "device answers." },
                { "volume_suspended",
                  "An admin took it out of use. Resume it when the work on it is done." },
                { "volume_resuming",
                  "Wait: the daemon reads the volume's tables, which takes about a second for a "
                  "million chunks." },
                { "volume_full",
                  "It serves its chunks, and evicts to make room. Remove other files from that "
                  "file system (<code>df</code>), or lower <code>store.limit</code> to the space "
                  "that it has." },
                { "volume_checksums",
                  "The chunks were dropped, and no client saw the bytes. Find all others with "
                  "<code>kvcachectl verify</code>, and the device's errors with <code>smartctl "
                  "-a</code> and <code>dmesg</code>. If more chunks fail, suspend the volume and "
                  "replace the disk." },
                { "volume_losses",
                  "The chunks are misses, and engines compute them again. The log names the files. "
                  "Find out who removed or cut them (a cleanup job, a restored backup, a file "
                  "system check), and keep others out of the directory." },
                { "io_fallback",
                  "Everything works, but costs more CPU. Permit io_uring (<code>sysctl "
                  "kernel.io_uring_disabled=0</code>; in a container, its seccomp profile), or set "
                  "<code>io.backend: posix</code> if that is intended, and restart." },
                { "io_buffered",
                  "Reads and writes cost more memory and CPU. Place the store on a file system "
                  "with "
                  "O_DIRECT, such as XFS or ext4, or set <code>io.direct: off</code> if that is "
                  "meant." },
                { "io_unregistered",
                  "Everything works, but costs more CPU. Set <code>LimitMEMLOCK=infinity</code> in "
                  "the "
                  "unit (<code>--ulimit memlock=-1</code> in a container), and restart." },
                { "pool_short", "The pool grows as memory becomes available. Free memory, or lower "
                                "<code>memory.pool</code>." },
                { "http_off",
                  "Set <code>listen.http</code> to an address that is free, and restart." },
                { "remote_offline",
                  "Local traffic continues; chunks that this host lacks are misses. "
                  "<code>kvcachectl "
                  "remote status</code> prints the time and the reason: check the storage engine, "
                  "the network, the mount and the credentials. The daemon retries automatically." },
                { "remote_full",
                  "Chunks there are still read. Make room (<code>kvcachectl remote sweep</code>, "
                  "or lifecycle rules), or enlarge the storage engine; the daemon retries "
                  "automatically." },
        };

        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (strcmp(known[i].reason, reason) == 0)
                        return known[i].advice;
        return NULL;
}

static void print_reason(FILE *out, const char *why, const char *advice)
{
        fputs("<li><b>", out);
        html_text_short(out, why, REASON_SHOWN);
        fprintf(out, "</b>%s</li>\n", advice ? advice : "");
}

/* Prints the first line of /readyz. */
static void print_state(FILE *out, const struct page *page)
{
        const char *said = page->readiness ? page->readiness : page->ready ? "ready" : "not ready";
        char line[256];

        snprintf(line, sizeof(line), "%.*s", (int)strcspn(said, "\n"), said);
        html_text(out, line);
}

static void print_pending(FILE *out, const cJSON *list)
{
        char keys[512] = "";
        const cJSON *one;
        size_t n = 0;

        cJSON_ArrayForEach(one, list)
        {
                if (cJSON_IsString(one) && n < sizeof(keys))
                        n += (size_t)snprintf(keys + n, sizeof(keys) - n, "%s%s",
                                              n > 0 ? ", " : "a restart is pending for ",
                                              one->valuestring);
        }
        if (n > 0)
                print_reason(out, keys,
                             "The configuration was reloaded, and these keys take effect only with "
                             "a restart. <code>kvcachectl status</code> shows their values.");
}

static void print_health(FILE *out, const struct page *page, const cJSON *status)
{
        const cJSON *list = array(status, "degraded"), *one;
        int n = cJSON_GetArraySize(list), shown = 0;
        bool fine = page->ready && page->healthy && n == 0;

        fprintf(out, "<section class=\"health %s\" aria-label=\"Health\"><h2>%s <span>",
                fine          ? "ok"
                : page->ready ? "warn"
                              : "bad",
                fine          ? "✓"
                : page->ready ? "⚠"
                              : "✕");
        print_state(out, page);
        fprintf(out, "%s</span></h2>\n<ul>\n", n > 0 ? ", degraded" : "");
        if (!page->healthy)
                print_reason(out, page->health ? page->health : "not healthy",
                             "Requests that need that thread wait. <code>dmesg</code> says whether "
                             "the kernel or a device is stuck; a supervisor that asks "
                             "<code>/healthz</code> restarts the daemon.");
        cJSON_ArrayForEach(one, list)
        {
                if (shown++ == REASONS_MAX)
                        break;
                print_reason(out, text(one, "text"), page_advice(text(one, "reason")));
        }
        print_pending(out, array(status, "reload_pending"));
        if (!status)
                print_reason(out, "the status cannot be shown",
                             "There was no memory for it: is the host short of memory?");
        fputs("</ul></section>\n", out);
}

/* --- key figures --- */

/* Prints how many of the announced returns came true. */
static void print_announced(FILE *out, const cJSON *announced)
{
        double came_true = number(announced, "true");
        double judged = came_true + number(announced, "early") + number(announced, "late");

        if (!(judged > 0))
                return;
        fputs(GAP "announced, came true: ", out);
        html_ratio(out, came_true / judged);
}

/* Prints how many of the chains that were expected back came in time, and what prefetches brought.
 */
static void print_returns(FILE *out, const cJSON *eviction)
{
        const cJSON *returns = member(eviction, "returns");
        double in_time = number(returns, "in_time"), judged = in_time + number(returns, "missed");

        fputs("<div><dt>Returns in time</dt><dd>", out);
        html_ratio(out, judged > 0 ? in_time / judged : NAN);
        fputs("<small class=\"soft\">chains expected now: ", out);
        html_number(out, number(returns, "expected"));
        if (number(returns, "prefetched") > 0) {
                fputs(GAP "prefetched, used: ", out);
                html_ratio(out, ratio(returns, "prefetch_hits", "prefetched"));
                fputs(GAP "evicted unused: ", out);
                html_ratio(out, ratio(returns, "prefetch_wasted", "prefetched"));
        }
        print_announced(out, member(eviction, "announced_returns"));
        fputs("</small></dd></div>\n", out);
}

static void print_tiles(FILE *out, const struct page *page, const cJSON *status)
{
        const cJSON *totals = member(status, "totals"), *store = member(status, "store"),
                    *pool = member(status, "pool"), *sessions = member(status, "sessions"),
                    *writes = member(status, "writes");
        uint64_t counted[HISTORY_COUNTERS] = { 0 };
        double recent = -1;

        if (page->history) {
                for (unsigned i = 0; i < HISTORY_COUNTERS; i++)
                        counted[i] = history_sum(page->history, page->now_ns, i);
                recent = history_hit_ratio(counted);
        }
        fputs("<dl class=\"tiles\">\n<div><dt>Hit ratio, 15 min</dt><dd>", out);
        html_ratio(out, recent >= 0 ? recent : NAN);
        fputs("<small class=\"soft\">since startup ", out);
        html_ratio(out, number(totals, "hit_ratio"));
        if (text(totals, "hit_ratio_of")[0]) {
                fputs(" of ", out);
                html_text_short(out, text(totals, "hit_ratio_of"), NAME_SHOWN);
        }
        fputs("</small></dd></div>\n<div><dt>Chunks on disk</dt><dd>", out);
        html_number(out, number(store, "chunks"));
        fputs("<small class=\"soft\">", out);
        html_bytes(out, number(store, "live_bytes"));
        fputs("</small></dd></div>\n<div><dt>Chunks in memory</dt><dd>", out);
        html_number(out, number(pool, "chunks"));
        fputs("<small class=\"soft\">", out);
        html_bytes(out, number(pool, "live_bytes"));
        fputs("</small></dd></div>\n<div><dt>Clients</dt><dd>", out);
        html_number(out, number(sessions, "connections"));
        fputs("<small class=\"soft\">leases: ", out);
        html_number(out, number(sessions, "leases"));
        fputs("</small></dd></div>\n<div><dt>Not on disk yet</dt><dd>", out);
        html_bytes(out, number(pool, "unwritten_bytes"));
        fputs("<small class=\"soft\">accepted puts</small></dd></div>\n"
              "<div><dt>Written, 24 h</dt><dd>",
              out);
        html_bytes(out, number(writes, "day_bytes"));
        fputs("<small class=\"soft\">", out);
        if (number(writes, "budget_bytes") > 0) {
                fputs("of a budget of ", out);
                html_bytes(out, number(writes, "budget_bytes"));
        } else {
                fputs("no budget set", out);
        }
        fputs("</small></dd></div>\n", out);
        print_returns(out, member(status, "eviction"));
        fputs("</dl>\n", out);
}

/* --- memory and volumes --- */

static void print_part(FILE *out, const char *class, const char *name, double bytes)
{
        fprintf(out,
                "<li><svg aria-hidden=\"true\"><rect class=\"%s\" width=\"12\" height=\"12\"/>%s"
                "</svg> %s ",
                class,
                strcmp(class, "reserved") == 0
                        ? "<rect fill=\"url(#hatch)\" width=\"12\" height=\"12\"/>"
                        : "",
                name);
        html_bytes(out, bytes);
        fputs("</li>", out);
}

/* Prints a bar, and its values in words. */
static void print_space(FILE *out, double live, double reserved, double limit)
{
        plot_bar(out, live, reserved, limit);
        fputs("<ul class=\"parts\">", out);
        print_part(out, "live", "live", live);
        print_part(out, "reserved", "reserved", reserved);
        print_part(out, "track", "limit", limit);
        fputs("</ul>\n", out);
}

static void print_pool(FILE *out, const cJSON *pool)
{
        double populated = number(pool, "populated_bytes"), bytes = number(pool, "bytes");

        fputs("<section class=\"card\"><div class=\"head\"><h3>Memory pool</h3></div>\n", out);
        print_space(out, number(pool, "live_bytes"), number(pool, "used_bytes"), bytes);
        fputs("<p class=\"soft\">chunks: ", out);
        html_number(out, number(pool, "chunks"));
        fputs(GAP "leased: ", out);
        html_bytes(out, number(pool, "leased_bytes"));
        if (populated < bytes) {
                fputs(GAP "backed by memory so far: ", out);
                html_bytes(out, populated);
        }
        fputs("</p></section>\n", out);
}

static void print_errors(FILE *out, const cJSON *errors)
{
        static const char *const kinds[] = { "read", "write", "sync", "checksum" };
        bool any = false;
        double all = 0;

        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
                all += fmax(number(errors, kinds[i]), 0);
        if (!(all > 0)) {
                fputs("no errors", out);
                return;
        }
        fputs("<b class=\"warn\">⚠ errors:", out);
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
                if (!(number(errors, kinds[i]) > 0))
                        continue;
                fputs(any ? ", " : " ", out);
                any = true;
                html_number(out, number(errors, kinds[i]));
                fprintf(out, " %s", kinds[i]);
        }
        fputs("</b>", out);
}

static void print_volume(FILE *out, const cJSON *volume)
{
        const char *path = text(volume, "volume"), *state = text(volume, "state"),
                   *reason = text(volume, "reason");
        bool up = strcmp(state, "up") == 0, by_hand = strcmp(state, "suspended") == 0,
             resuming = strcmp(state, "resuming") == 0;
        double oldest = number(volume, "oldest_operation_seconds");

        fputs("<section class=\"card\"><div class=\"head\"><h3>", out);
        html_text_short(out, path, 2 * NAME_SHOWN);
        fprintf(out, "</h3><b class=\"%s\">%s ",
                up                    ? "ok"
                : by_hand || resuming ? "warn"
                                      : "bad",
                up                    ? "✓"
                : by_hand || resuming ? "⚠"
                                      : "✕");
        html_text_short(out, state, NAME_SHOWN);
        fputs("</b></div>\n", out);
        print_space(out, number(volume, "live_bytes"), number(volume, "reserved_bytes"),
                    number(volume, "limit_bytes"));
        fputs("<p class=\"soft\">chunks: ", out);
        html_number(out, number(volume, "chunks"));
        fputs(GAP "under way: ", out);
        html_number(out, number(volume, "pending"));
        fputs(GAP, out);
        print_errors(out, member(volume, "errors"));
        if (cJSON_IsTrue(member(volume, "full")))
                fputs(GAP "<b class=\"warn\">⚠ its file system is full</b>", out);
        if (up && oldest >= SLOW_S) {
                fputs(GAP "<b class=\"warn\">⚠ slow: an operation has been at the device for ",
                      out);
                html_seconds(out, oldest);
                fputs("</b>", out);
        }
        fputs("</p>\n", out);
        if (!up) {
                fputs("<p class=\"soft\">", out);
                html_text_short(out, reason, REASON_SHOWN);
                fprintf(out, "%ssince ", reason[0] ? "; " : "");
                html_time(out, number(volume, "since_unix_ms"));
                fputs("</p>\n", out);
        }
        if (!up && !resuming) {
                fputs("<p><code>kvcachectl device resume ", out);
                html_text_short(out, path, 2 * NAME_SHOWN);
                fputs("</code></p>\n", out);
        }
        fputs("</section>\n", out);
}

/* Prints a number of events that should be 0, as a warning if it is not. */
static void print_bad(FILE *out, const char *what, double n)
{
        if (!(n > 0))
                return;
        fputs(GAP "<b class=\"warn\">⚠ ", out);
        fputs(what, out);
        html_number(out, n);
        fputs("</b>", out);
}

static void print_shared_state(FILE *out, const cJSON *remote)
{
        const char *breaker = text(remote, "breaker");
        bool used = strcmp(breaker, "closed") == 0, full = cJSON_IsTrue(member(remote, "full"));

        fprintf(out, "<b class=\"%s\">%s ", used && !full ? "ok" : "warn",
                used && !full ? "✓" : "⚠");
        if (used)
                fputs(full ? "full" : "in use", out);
        else
                fputs(strcmp(breaker, "half open") == 0 ? "being tried again" : "not used", out);
        fputs("</b></div>\n", out);
        if (used)
                return;
        fputs("<p class=\"soft\">", out);
        html_text_short(out, text(remote, "reason"), REASON_SHOWN);
        fprintf(out, "%sfor ", text(remote, "reason")[0] ? "; " : "");
        html_seconds(out, floor(number(remote, "since_seconds")));
        fputs("</p>\n", out);
}

/* Prints the card of the shared tier, if there is one. */
static void print_shared(FILE *out, const cJSON *remote)
{
        const char *backend = text(remote, "backend");

        if (!text(remote, "breaker")[0])
                return;
        fputs("<section class=\"card\"><div class=\"head\"><h3>Shared tier: ", out);
        html_text_short(out, backend, NAME_SHOWN);
        fputs("</h3>", out);
        print_shared_state(out, remote);
        fputs("<p class=\"soft\">found: ", out);
        html_number(out, number(remote, "hits"));
        fputs(GAP "not found: ", out);
        html_number(out, number(remote, "misses"));
        fputs(GAP "too late: ", out);
        html_number(out, number(remote, "late"));
        fputs("</p>\n<p class=\"soft\">written: ", out);
        html_number(out, number(remote, "puts"));
        fputs(GAP "not written: ", out);
        html_number(out, number(remote, "puts_dropped"));
        print_bad(out, "rejected: ", number(remote, "rejected"));
        print_bad(out, "errors: ", number(remote, "errors"));
        fputs("</p>\n<p class=\"soft\">in flight: reading ", out);
        html_bytes(out, number(remote, "reading_bytes"));
        fputs(", writing ", out);
        html_bytes(out, number(remote, "writing_bytes"));
        fputs("</p></section>\n", out);
}

static void print_more(FILE *out, double n)
{
        if (n > 0) {
                fputs("<p class=\"soft\">and ", out);
                html_number(out, n);
                fputs(" more", out);
        }
}

static void print_space_section(FILE *out, const cJSON *status)
{
        const cJSON *store = member(status, "store"), *volumes = array(store, "volumes"), *volume;
        int n = cJSON_GetArraySize(volumes), shown = 0;

        fputs("<section><h2>Memory and volumes</h2>\n<div class=\"grid\">\n", out);
        print_pool(out, member(status, "pool"));
        if (n > 1) {
                fputs("<section class=\"card\"><div class=\"head\"><h3>All volumes</h3></div>\n",
                      out);
                print_space(out, number(store, "live_bytes"), number(store, "reserved_bytes"),
                            number(store, "limit_bytes"));
                fputs("<p class=\"soft\">chunks: ", out);
                html_number(out, number(store, "chunks"));
                fputs("</p></section>\n", out);
        }
        cJSON_ArrayForEach(volume, volumes)
        {
                if (shown++ == VOLUMES_MAX)
                        break;
                print_volume(out, volume);
        }
        print_shared(out, member(status, "remote"));
        fputs("</div>\n", out);
        if (n > VOLUMES_MAX) {
                print_more(out, n - VOLUMES_MAX);
                fputs("</p>\n", out);
        }
        fputs("</section>\n", out);
}

/* --- tenants and namespaces --- */

static void print_of(FILE *out, const cJSON *o, const char *name,
                     void (*print)(FILE *out, double value))
{
        double limit = limit_of(o, name);

        fputs("<td class=\"num\">", out);
        print(out, number(o, name));
        if (isfinite(limit)) {
                fputs(" of ", out);
                print(out, limit);
        }
        fputs("</td>", out);
}

static void print_tenants(FILE *out, const cJSON *status)
{
        const cJSON *list = array(status, "tenants"), *tenant;
        int n = cJSON_GetArraySize(list), shown = 0;

        if (n < 2)
                return; /* everything shown belongs to the only tenant */
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
                html_text_short(out, text(tenant, "name"), NAME_SHOWN);
                fputs("</bdi></th>", out);
                print_of(out, tenant, "pool_bytes", html_bytes);
                print_of(out, tenant, "stored_bytes", html_bytes);
                fputs("<td class=\"num\">", out);
                html_ratio(out, hit_ratio(tenant));
                fputs("</td><td class=\"num extra\">", out);
                html_bytes(out, number(tenant, "get_bytes"));
                fputs("</td><td class=\"num extra\">", out);
                html_bytes(out, number(tenant, "put_bytes"));
                fputs("</td><td class=\"num extra\">", out);
                html_number(out, number(tenant, "connections"));
                fputs("</td><td class=\"num extra\">", out);
                html_number(out, number(tenant, "refused"));
                fputs("</td></tr>\n", out);
        }
        fputs("</tbody></table></div></section>\n", out);
}

/* Prints a row. With `linked`, the name leads to the page of the namespace. */
static void print_namespace(FILE *out, const cJSON *ns, bool linked)
{
        fputs("<tr><th scope=\"row\"><bdi>", out);
        if (linked)
                page_namespace_print_link(out, text(ns, "name"), NAME_SHOWN);
        else
                html_text_short(out, text(ns, "name"), NAME_SHOWN);
        fputs("</bdi></th><td class=\"num\">", out);
        html_bytes(out, number(ns, "bytes"));
        fputs("</td><td class=\"num\">", out);
        html_number(out, number(ns, "chunks"));
        fputs("</td><td class=\"num\">", out);
        html_ratio(out, hit_ratio(ns));
        fputs("</td><td class=\"num extra\">", out);
        html_bytes(out, number(ns, "chunk_bytes") > 0 ? number(ns, "chunk_bytes") : NAN);
        fputs("</td><td class=\"num extra\">", out);
        html_number(out, number(ns, "sessions"));
        fputs("</td></tr>\n", out);
}

static void print_namespaces(FILE *out, const cJSON *status)
{
        const cJSON *list = array(status, "namespaces"), *usage = member(status, "namespace_usage"),
                    *ns;
        /* The tenant whose namespaces have pages. */
        const char *only = text(cJSON_GetArrayItem(array(status, "tenants"), 0), "name");
        int n = cJSON_GetArraySize(list), shown = 0;
        double count = fmax(number(usage, "count"), n);

        fputs("<section><div class=\"head\"><h2>Namespaces</h2><span class=\"note\">", out);
        html_number(out, count);
        if (number(usage, "limit") > 0) {
                fputs(" of at most ", out);
                html_number(out, number(usage, "limit"));
        }
        fputs("</span></div>\n", out);
        if (text(usage, "warning")[0]) {
                fputs("<p><b class=\"warn\">⚠ ", out);
                html_text_short(out, text(usage, "warning"), REASON_SHOWN);
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
                print_namespace(out, ns, strcmp(text(ns, "tenant"), only) == 0);
                shown++;
        }
        if (n > 0)
                fputs("</tbody></table></div>\n", out);
        if (n > 0 && count > shown) {
                print_more(out, count - shown);
                fputs(": <code>kvcachectl namespace ls</code> lists all</p>\n", out);
        } else if (n == 0 && count > 0) {
                fputs("<p class=\"soft\">Their names are not shown over HTTP, since there are "
                      "several tenants: <code>kvcachectl namespace ls</code> lists them</p>\n",
                      out);
        }
        fputs("</section>\n", out);
}

/* --- the whole page --- */

/* Prints the name of the host between two texts, or nothing if the status has none. */
static void print_host(FILE *out, const cJSON *status, const char *before, const char *after)
{
        const char *host = text(status, "host");

        if (host[0] == '\0')
                return;
        fputs(before, out);
        html_text_short(out, host, NAME_SHOWN);
        fputs(after, out);
}

static void print_header(FILE *out, const struct page *page, const cJSON *status)
{
        fputs("<header><h1>kvcache-daemon ", out);
        html_text_short(out, text(status, "version"), NAME_SHOWN);
        print_host(out, status, " on ", "");
        fputs("</h1><span class=\"soft\">up ", out);
        html_seconds(out, floor(number(status, "uptime_seconds")));
        fputs(GAP, out);
        html_time(out, (double)page->unix_ms);
        fprintf(out, GAP "%s</span></header>\n",
                page->paused ? "does not reload · <a href=\"./\">reload</a>"
                             : "reloads every 10 s · <a href=\"?paused\">pause</a>");
}

static_assert(PAGE_RELOAD_S == 10, "print_header() says so");

void page_print(FILE *out, const struct page *page)
{
        cJSON *status = page->status ? cJSON_Parse(page->status) : NULL;

        page_frame_begin(out, NULL, text(status, "host"), page->paused);
        print_header(out, page, status);
        fputs("<main>\n", out);
        print_health(out, page, status);
        if (status) {
                print_tiles(out, page, status);
                print_space_section(out, status);
        }
        if (page->history)
                plots_print(out, page->history, page->now_ns);
        if (status) {
                print_tenants(out, status);
                print_namespaces(out, status);
        }
        fprintf(out,
                "</main>\n<nav aria-label=\"Other pages\"><a href=\"status\">status (JSON)</a>"
                "%s<a href=\"metrics\">metrics</a><a href=\"healthz\">health</a>"
                "<a href=\"readyz\">readiness</a></nav>\n",
                page->history ? "<a href=\"history\">history (JSON)</a>" : "");
        if (status) {
                fprintf(out, "<details%s><summary>The whole status</summary>\n",
                        page->paused ? " open" : "");
                if (!page->paused)
                        fputs("<p class=\"soft\">It closes as the page reloads: <a "
                              "href=\"?paused\">pause</a> to read it.</p>\n",
                              out);
                fputs("<div class=\"all\">\n", out);
                details_print(out, status);
                fputs("</div></details>\n", out);
        }
        fputs("</body></html>\n", out);
        cJSON_Delete(status);
}
