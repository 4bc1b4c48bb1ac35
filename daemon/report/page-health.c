/* SPDX-License-Identifier: Apache-2.0 */
/* The health section of the page at "/": readiness, reasons of degradation with advice, keys that
 * wait for a restart. Loop thread. Owns only the texts of the advice, and cannot fail. */
#include <string.h>

#include "checked.h"
#include "report/html.h"
#include "report/page-parts.h"
#include "report/page.h"

enum { REASONS_MAX = 24 };

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
                  "file system (<code>df</code>), lower <code>store.limit</code> to the space "
                  "that it has, or lower <code>store.reserve</code>, and restart." },
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
                  "Everything works, but costs more CPU. If the limit of locked memory is too low, "
                  "set <code>LimitMEMLOCK=infinity</code> in the unit (<code>--ulimit "
                  "memlock=-1</code> in a container), or "
                  "<code>io.registration: off</code> if that is intended, and restart." },
                { "pool_short", "The pool grows as memory becomes available. Free memory, or lower "
                                "<code>memory.pool</code> and restart." },
                { "http_off",
                  "Set <code>listen.http</code> to an address that is free, and restart." },
                { "remote_offline",
                  "Local traffic continues; chunks that this host lacks are misses. "
                  "<code>kvcachectl "
                  "remote status</code> prints the time and the reason: check the back end, "
                  "the network, the mount and the credentials. The daemon retries automatically." },
                { "remote_full",
                  "Chunks there are still read. Make room (<code>kvcachectl remote sweep "
                  "--limit SIZE</code>, or lifecycle rules for S3), or enlarge the back end; the "
                  "daemon retries automatically." },
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

void page_print_health(FILE *out, const struct page *page, const cJSON *status)
{
        const cJSON *list = json_array(status, "degraded"), *one;
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
                print_reason(out, json_text(one, "text"), page_advice(json_text(one, "reason")));
        }
        print_pending(out, json_array(status, "reload_pending"));
        if (!status)
                print_reason(out, "the status cannot be shown",
                             "There was no memory for it: is the host short of memory?");
        fputs("</ul></section>\n", out);
}
