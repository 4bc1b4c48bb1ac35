/* SPDX-License-Identifier: Apache-2.0 */
/* run, and test --io: run the sweep with a running daemon, or with a private one on a store in a
 * temporary directory. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "human.h"
#include "kvbench/embedded.h"
#include "output.h"
#include "progress.h"
#include "session.h"
#include "export.h"
#include "sweep-report.h"
#include "sweep-tally.h"
#include "text.h"
#include "interrupt.h"

/* --- the options --- */

void session_run_defaults(struct sweep_options *o)
{
        *o = (struct sweep_options){
                .layouts = { true, true, true },
                .ops = { [SWEEP_PUT] = true, [SWEEP_GET] = true },
                .regions = { 4096, 32768, 131072 },
                .n_regions = 3,
                .depths = { 4 },
                .n_depths = 1,
                .clients = { 1 },
                .n_clients = 1,
                .layers = 16,
                .outer = 2,
                .bytes = 64 << 20,
                .iterations = 5,
                .interrupted = &interrupted,
        };
}

static bool wrong_list(struct ctl *ctl, const char *option, const char *text, const char *why)
{
        ctl->exit_status = complain(SESSION_WRONG_USAGE, "--%s: '%s': %s", option, text, why);
        return false;
}

/* Copies the next item of a list with commas to `ret`, at most 63 bytes of it. Returns the rest of
 * the list, or NULL if this item is the last. */
static const char *next_item(const char *text, char ret[static 64])
{
        size_t n = strcspn(text, ",");

        snprintf(ret, 64, "%.*s", (int)MIN(n, (size_t)63), text);
        return text[n] ? text + n + 1 : NULL;
}

bool session_names_option(struct ctl *ctl, const char *option, const char *text,
                          const char *const *names, bool *ret)
{
        char item[64], why[128] = "unknown name; use";

        for (int i = 0; names[i]; i++)
                ret[i] = false;
        for (const char *p = text; p;) {
                int i = 0;

                p = next_item(p, item);
                while (names[i] && strcmp(names[i], item) != 0)
                        i++;
                if (!names[i]) {
                        for (i = 0; names[i]; i++) {
                                size_t used = strlen(why);

                                snprintf(why + used, sizeof(why) - used, "%s %s", i > 0 ? "," : "",
                                         names[i]);
                        }
                        return wrong_list(ctl, option, item, why);
                }
                ret[i] = true;
        }
        return true;
}

bool session_numbers_option(struct ctl *ctl, const char *option, const char *text, uint64_t least,
                            uint64_t most, uint64_t *ret, unsigned *ret_n)
{
        char item[64], why[128];

        *ret_n = 0;
        for (const char *p = text; p;) {
                uint64_t n;

                p = next_item(p, item);
                if (human_parse_bytes(item, &n) < 0 || n < least || n > most) {
                        snprintf(why, sizeof(why), "not a number from %" PRIu64 " to %" PRIu64,
                                 least, most);
                        return wrong_list(ctl, option, item, why);
                }
                if (*ret_n == SWEEP_LIST) {
                        snprintf(why, sizeof(why), "more than %d numbers", SWEEP_LIST);
                        return wrong_list(ctl, option, text, why);
                }
                ret[(*ret_n)++] = n;
        }
        return true;
}

/* --- the daemon --- */

struct host {
        struct embedded embedded;
        bool own;
        char where[CTL_ERROR_BYTES];
};

static int start_own(struct ctl *ctl, const struct sweep_options *o, struct host *h)
{
        uint64_t block = sweep_block_bytes(o), clients = 1, depth = 1, working;

        for (unsigned i = 0; i < o->n_clients; i++)
                clients = MAX(clients, o->clients[i]);
        for (unsigned i = 0; i < o->n_depths; i++)
                depth = MAX(depth, o->depths[i]);
        working = MAX(o->bytes, 2 * block * clients) + depth * clients * block;
        struct embedded_options options = {
                .limit_bytes = 2 * working + (256 << 20) + 96 * block,
                .pool_bytes =
                        round_up(MAX(2 * working, MAX(16 * block, (uint64_t)256 << 20)), 2 << 20),
                .entries = 1 << 20,
                .io_backend = "auto",
                .interrupted = &interrupted,
        };
        int status;

        complain(EXIT_OK, "no daemon answers at %s: a daemon is started, on a temporary store",
                 ctl_socket_name(ctl));
        status = embedded_start(&h->embedded, &options);
        if (status != EXIT_OK)
                return status;
        h->own = true;
        snprintf(h->where, sizeof(h->where), "daemon: embedded, on a temporary store");
        return SESSION_OK;
}

/* Appends the name of the daemon's active benchmark session, if any, which counts the run, to
 * h->where. `wanted`: the name that the session must have; NULL: any session may be active, or
 * none. Returns SESSION_OK, or another status after reporting it. */
static int find_session(struct ctl *ctl, const char *wanted, struct host *h)
{
        char name[SNAPSHOT_TEXT];
        size_t used = strlen(h->where);
        bool active = live_active(ctl, name);

        if (wanted && !active)
                return live_call(ctl, KVCACHE_BENCH_STATUS, NULL, 0, NULL);
        if (wanted && strcmp(wanted, name) != 0)
                return complain(SESSION_NONE_ACTIVE,
                                "session %s is not active, but %s is: \"session init --resume %s\" "
                                "continues it",
                                wanted, name, wanted);
        if (active)
                snprintf(h->where + used, sizeof(h->where) - used, ", in its session %s", name);
        return SESSION_OK;
}

static int find_daemon(struct ctl *ctl, struct sweep_options *o, const char *session,
                       struct host *h)
{
        char error[CTL_ERROR_BYTES];
        int r = ctl_try_connect(ctl, error);

        if (r == -ENOENT || r == -ECONNREFUSED) {
                int status;

                if (session)
                        return complain(SESSION_FAILED, "%s", error);
                status = start_own(ctl, o, h);
                o->socket_path = h->embedded.socket;
                return status;
        }
        if (r < 0)
                return complain(SESSION_FAILED, "%s", error);
        o->socket_path = ctl->socket_path;
        snprintf(h->where, sizeof(h->where), "daemon: at %s", ctl_socket_name(ctl));
        text_clean(h->where);
        return find_session(ctl, session, h);
}

static int sweep_status(int r, const char *error)
{
        if (r == -ECANCELED)
                return complain(EXIT_INTERRUPTED, "session: interrupted; nothing is reported");
        return r < 0 ? complain(SESSION_FAILED, "%s", error) : SESSION_OK;
}

static void show_progress(void *userdata, double part, uint64_t measured)
{
        progress_note(userdata, part, "measuring", measured, "step");
}

/* Runs a sweep with the running daemon, or a private one if none answers and `session` is NULL. The
 * caller frees ret->points, also after an error. `session`: name of the session that must be
 * active; NULL: any session may be active, or none. Returns an exit status after reporting an
 * error. */
static int run_sweep(struct ctl *ctl, struct sweep_options *o, const char *session, struct host *h,
                     struct sweep_result *ret)
{
        char error[SWEEP_ERROR_BYTES];
        int status;

        interrupt_catch_always();
        status = find_daemon(ctl, o, session, h);
        if (status == SESSION_OK) {
                struct progress progress;
                int r;

                progress_init(&progress);
                o->on_progress = show_progress;
                o->progress_userdata = &progress;
                r = sweep_run(o, ret, error);
                progress_end(&progress);
                status = sweep_status(r, error);
        }
        if (h->own) {
                if (status == SESSION_FAILED)
                        (void)embedded_died(&h->embedded, 0);
                embedded_stop(&h->embedded);
        }
        return status;
}

/* --- the actions --- */

/* Writes what `tally` counted to the file of --snapshot. Returns an exit status. */
static int write_snapshot(struct sweep_tally *tally, const struct session_arguments *a)
{
        struct snapshot snapshot;
        struct output out;
        int status = output_open(&out, a->snapshot), r;

        if (status != SESSION_OK)
                return status;
        sweep_tally_snapshot(tally, a->session ? a->session : "run", &snapshot);
        r = session_export(&snapshot, EXPORT_JSON, out.file);
        status = output_close(&out, r >= 0);
        return r < 0 ? complain_memory() : status;
}

int session_run(struct ctl *ctl, struct session_arguments *a)
{
        _cleanup_(freep) struct sweep_tally *tally = NULL;
        struct sweep_observer observer;
        struct sweep_result result = { 0 };
        _cleanup_(freep) void *points = NULL;
        struct host host = { 0 };
        struct output out;
        int status, r;

        if (a->snapshot) {
                tally = malloc(sizeof(*tally));
                if (!tally)
                        return complain_memory();
                sweep_tally_init(tally);
                observer = sweep_tally_observer(tally);
                a->sweep.observer = &observer;
        }
        status = run_sweep(ctl, &a->sweep, a->snapshot ? NULL : a->session, &host, &result);
        points = result.points;
        if (status == SESSION_OK && tally)
                status = write_snapshot(tally, a);
        if (status != SESSION_OK)
                return status;
        status = output_open(&out, a->output);
        if (status != SESSION_OK)
                return status;
        r = sweep_report(&a->sweep, &result, host.where, &a->report, out.file);
        status = output_close(&out, r >= 0);
        return r < 0 ? complain_memory() : status;
}

int session_test_io(struct ctl *ctl)
{
        struct sweep_result result = { 0 };
        struct sweep_options o;
        _cleanup_(freep) void *points = NULL;
        struct host host = { 0 };
        uint64_t verified = 0;
        int status;

        session_run_defaults(&o);
        o.regions[0] = 4096;
        o.n_regions = 1;
        o.bytes = 2 << 20;
        o.iterations = 1;
        o.ack = KVCACHE_WRITTEN;
        o.verify = true;
        o.cold = true;
        status = run_sweep(ctl, &o, NULL, &host, &result);
        points = result.points;
        if (status != SESSION_OK)
                return status;
        for (size_t i = 0; i < result.n; i++)
                verified += result.points[i].verified_bytes;
        if (!ctl->json)
                printf("data: %" PRIu64
                       " bytes put and got in %d layouts, written and read back: right\n",
                       verified, SWEEP_LAYOUTS);
        return SESSION_OK;
}
