/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: the daemon's report as text, section by section. */
#include <errno.h>

#include "ctl-fixture.h"

/* Prints these members of a report as one section, or as the summary for NULL. */
static void section(const char *name, const char *members, const char *expected)
{
        char head[64 * 1024];

        fake.status = ctl_json(members);
        snprintf(head, sizeof(head), "kvcache-daemon \n%s%s", expected,
                 name ? ""
                      : "\nMore: kvcachectl status --all, or one section, such as status store\n");
        ctl_expect(EXIT_OK, head, "", "status", name);
}

/* --- the first lines --- */

static void summary_begins_with_state_and_what_is_degraded(void **state)
{
        fake.status = ctl_json(
                "{'version':'1.2','state':'recovering','ready':false,'health':'degraded',"
                "'uptime_seconds':3661,'pid':42,"
                "'degraded':[{'text':'/b is full'},7,{'text':'\\u001b[2Jx'}],"
                "'socket':'/run/s','http':'127.0.0.1:9','http_token':true,'instance':'ab'}");
        ctl_expect(EXIT_OK,
                   "kvcache-daemon 1.2, not ready: recovering, degraded, up 1 h 1 min, pid 42\n"
                   "  DEGRADED          /b is full\n"
                   "  DEGRADED          ?[2Jx\n"
                   "  socket            /run/s\n"
                   "  http              127.0.0.1:9, with a token\n"
                   "\n"
                   "More: kvcachectl status --all, or one section, such as status store\n",
                   "", "status");
        assert_int_equal(ctl("status", "--all"), EXIT_OK);
        has(ctl_out, "\n  instance          ab\n");
        lacks(ctl_out, "More:");
        assert_int_equal(ctl("status", "--color=always"), EXIT_OK);
        has(ctl_out, "1.2\033[1;31m, not ready: recovering, degraded\033[0m, up");
        has(ctl_out, "\033[33mDEGRADED        \033[0m  /b is full");
        fake.status = ctl_json("{'version':'2','ready':true,'health':'ok'}");
        assert_int_equal(ctl("status"), EXIT_OK);
        assert_ptr_equal(strstr(ctl_out, "kvcache-daemon 2, ready\n"), ctl_out);
        fake.status = ctl_json("{'ready':false}");
        assert_int_equal(ctl("status"), EXIT_OK);
        assert_ptr_equal(strstr(ctl_out, "kvcache-daemon , not ready\n"), ctl_out);
}

static void json_is_printed_as_it_came(void **state)
{
        fake.status = "{ \"a\": 9007199254740993,\n \"b\": [1, 2] }\n";
        ctl_expect(EXIT_OK, "{\"a\":9007199254740993,\"b\":[1,2]}\n", "", "status", "--json");
        ctl_expect(EXIT_OK, "{\"a\":9007199254740993,\"b\":[1,2]}\n", "", "-j", "status", "--all");
}

static void report_that_cannot_be_had_or_read_is_refused(void **state)
{
        static const char *const bad[] = { "", "<html>", "{\"a\":", "{\"a\"}" };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                fake.status = bad[i];
                ctl_expect(EXIT_REFUSED, "",
                           "kvcachectl: status: the daemon's answer is not JSON\n", "status");
        }
        fake.scripts[FAKE_REPORT_STATUS] = (struct fake_script){ -ECONNRESET, "cut" };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: status: the daemon went away: cut\n",
                   "status");
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -EACCES, "/run/s: Permission denied" };
        assert_int_equal(ctl("status"), EXIT_REFUSED);
        has(ctl_err, "kvcachectl: /run/s: Permission denied\nA member of the socket's group");
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ENOMEM, NULL };
        ctl_expect(EXIT_LOCAL, "", "kvcachectl: out of memory\n", "status");
        fake.scripts[FAKE_CONNECT] = (struct fake_script){ -ETIMEDOUT, NULL };
        ctl_expect(EXIT_UNREACHABLE, "", "kvcachectl: /run/x: Connection timed out\n", "-s",
                   "/run/x", "status");
}

static void sections_of_other_types_are_left_out(void **state)
{
        fake.status =
                ctl_json("{'io':7,'sessions':[],'remote':'x','pool':null,'store':[1],'writes':true,"
                         "'eviction':1,'tenants':{},'resources':'x','namespaces':7,'totals':[]}");
        ctl_expect(EXIT_OK,
                   "kvcache-daemon \n\nMore: kvcachectl status --all, or one section, such as "
                   "status store\n",
                   "", "status");
        fake.status = "[]";
        assert_int_equal(ctl("status", "--all"), EXIT_OK);
        fake.status =
                ctl_json("{'store':{'volumes':[1,null,[]]},'namespaces':[7,{}],'tenants':[1,2,3],"
                         "'resources':[{},7],'pool':{}}");
        assert_int_equal(ctl("status", "--all"), EXIT_OK);
}

/* --- sections --- */

static void io_section_says_why_it_is_not_faster(void **state)
{
        static const char io[] =
                "{'io':{'backend':'io_uring','reason':'a','direct':true,'direct_reason':'b',"
                "'registered':false,'registered_reason':'c','workers':2,'depth':64,"
                "'ring_flags':'SQPOLL','later_bytes':1024}}";

        section("io", io,
                "\nI/O\n"
                "  backend           io_uring: a\n"
                "  ring flags        SQPOLL\n"
                "  O_DIRECT          yes: b\n"
                "  registered        no: c\n"
                "  workers           2, 64 operations in flight each at most\n"
                "  later bytes       1 KiB\n");
        section(NULL, io,
                "  I/O               backend io_uring, O_DIRECT yes, registered no, 2 workers\n"
                "                    io_uring: a\n"
                "                    O_DIRECT: b\n"
                "                    registered: c\n");
        section("io", "{'io':{'backend':'posix','direct_reason':'tmpfs','workers':1}}",
                "\nI/O\n  backend           posix\n  O_DIRECT          tmpfs\n  workers           "
                "1\n");
        section(NULL, "{'io':{'backend':'posix','workers':1}}",
                "  I/O               backend posix, 1 worker\n");
}

static void sessions_section_counts_connections_and_registered_memory(void **state)
{
        static const char sessions[] =
                "{'sessions':{'connections':3,'leases':1,'staging_bytes':1048576,"
                "'stagings':2,'stagings_closing':1,'registered_buffers':2,"
                "'registered_bytes':4096,'registered_in_rings_bytes':2048,"
                "'registered_huge_bytes':1024,'later':1}}";

        section("sessions", sessions,
                "\nSessions\n"
                "  now               3 connected, with 1 lease and 1 MiB of staging areas\n"
                "  closing           staging of ended sessions, 1 area\n"
                "  registered        4 KiB in 2 regions, 2 KiB of it registered with the rings, "
                "1 KiB in huge pages\n"
                "  later             1\n");
        section(NULL, sessions,
                "  sessions          3 connected, with 1 lease and 1 MiB of staging areas\n"
                "  registered        4 KiB in 2 regions, 2 KiB of it registered with the rings, "
                "1 KiB in huge pages\n");
        section(NULL, "{'sessions':{}}",
                "  sessions          0 connected, with 0 leases and 0 B of staging areas\n");
}

static void remote_section_shows_the_breaker_and_the_queue(void **state)
{
        static const char open[] =
                "{'remote':{'backend':'s3','breaker':'open','since_seconds':90,'reason':'timeout',"
                "'read_rate_bytes':1048576,'read_latency_seconds':0.01,'hits':10,'misses':2,'late':"
                "1,"
                "'reading_bytes':512,'write':'evicted','puts':5,'puts_dropped':1,'write_rate_bytes'"
                ":2048,"
                "'full':true,'offered_used_again':3,'offered_evicted':4,'queued':1,'queued_bytes':"
                "1024,"
                "'writing_bytes':2048,'namespaces':4,'unknown_namespaces':1,'errors':9,'rejected':"
                "2,"
                "'sweeping':true,'later_bytes':1024}}";

        section("remote", open,
                "\nShared tier\n  backend           s3, NOT IN USE for 1 min 30 s: timeout\n  "
                "reads             10 found, 2 not there, 1 late\n                    1 MiB/s, 10 "
                "ms each, lately\n                    512 B being read\n  writes            "
                "evicted; 5 written, 1 dropped; at most 2 KiB/s\n                    queued: 3 as "
                "they were used again, 4 as they were about to be evicted\n  FULL              the "
                "storage has no room: nothing is written\n  queue             1 chunk, 1 KiB\n     "
                "               2 KiB being written\n  namespaces        4, 1 of which are not "
                "asked for yet, as it is not known whether they were purged\n  errors            "
                "9\n  REJECTED          the shared tier returned wrong bytes for 2 objects; the "
                "daemon deletes such objects, and their gets are misses\n  sweeping          yes\n "
                " later bytes       1 KiB\n");
        section(NULL, open, "  shared tier       s3, NOT IN USE for 1 min 30 s: timeout\n");
        section(NULL,
                "{'remote':{'backend':'rados','breaker':'closed','since_seconds':5,'reason':'e'}}",
                "  shared tier       rados, in use for 5.0 s; last error: e\n");
        section("remote", "{'remote':{'backend':'rados','breaker':'closed','write':'all'}}",
                "\nShared tier\n"
                "  backend           rados, in use for 0.0 s\n"
                "  reads             0 found, 0 not there, 0 late\n"
                "  writes            all; 0 written, 0 dropped; at most as fast as it goes\n"
                "                    queued: 0 as they were used again, 0 as they were about to be "
                "evicted\n"
                "  queue             0 chunks, 0 B\n"
                "                    0 B being written\n"
                "  namespaces        0\n"
                "  errors            0\n");
        section(NULL, "{'remote':{'backend':'rados','breaker':'half'}}",
                "  shared tier       rados, being tried again for 0.0 s\n");
        section(NULL, "{'remote':{'backend':'off','breaker':'open'}}", "");
        fake.status = ctl_json(open);
        assert_int_equal(ctl("remote", "status"), EXIT_OK);
        assert_ptr_equal(strstr(ctl_out, "\nShared tier\n  backend           s3, NOT IN USE"),
                         ctl_out);
}

static void memory_section_shows_pool_kept_memory_and_index(void **state)
{
        static const char memory[] =
                "{'pool':{'bytes':1073741824,'used_bytes':536870912,'live_bytes':1048576,"
                "'populated_bytes':805306368,'chunks':1234,'leased_bytes':1024,'unwritten_bytes':"
                "2048,"
                "'huge_pages':'some','huge_bytes':2097152,'slab_bytes':134217728,'index':true,"
                "'index_entries':10,'index_hits':7,'index_clients':1,'index_holds':2,'index_bytes':"
                "4096,"
                "'index_unplaced':1,'index_held_chunks':2,'index_untold':3,'index_revoked':4},"
                "'kept_memory':{'ready':false,'reason':'not "
                "sealed','chunks':100,'verified':60,'pending':40,"
                "'damaged':2,'clients':1,'leases':5,'verified_bytes':7,'verify_seconds':1},"
                "'lookup_index':{'enabled':true,'tables':1,'building':1,'bytes':4096,'entries':99,"
                "'unplaced':2,'buckets':1,'overflowed':1,'builds':1,'failed_builds':0},"
                "'entries':{'chunks':1000,'records_bytes':64000,'hash_table_bytes':4000,"
                "'slots_bytes':4096,'table_bytes':4400,'eviction_bytes':32000,'forks_bytes':0,"
                "'ghosts_bytes':16384,'lookup_index_bytes':4096}}";

        section("memory", memory,
                "\nMemory\n"
                "  used              512 MiB of 1 GiB  [############............] 50 %\n"
                "  live              1 MiB: the bytes of the chunks, which occupy whole slots\n"
                "  populated         768 MiB so far\n"
                "  chunks            1,234; 1 KiB leased, 2 KiB not yet on disk\n"
                "  huge pages        2 MiB\n"
                "  slabs             128 MiB each\n"
                "  pool index        10 entries; 1 client, 2 chunks held, 7 keys got\n"
                "  memory kept       60 of 100 chunks verified so far; 5 chunks are leased to "
                "clients of before\n"
                "  damaged           2 chunks did not match their checksum\n"
                "  at restart        the memory is lost: not sealed\n"
                "  lookup index      4 KiB, 99 entries, 2 without a place; 1 being built\n"
                "  entries           110 KiB for 1,000 chunks on disk, and 16 KiB for evicted "
                "ones\n"
                "  bytes a chunk     112.6: records 64.0, hash table 4.0, slots 4.1, table 4.4, "
                "eviction 32.0, lookup index 4.1\n");
        section(NULL, memory,
                "\nMemory\n"
                "  used              512 MiB of 1 GiB  [############............] 50 %\n"
                "  populated         768 MiB so far\n"
                "  chunks            1,234; 1 KiB leased, 2 KiB not yet on disk\n"
                "  memory kept       60 of 100 chunks verified so far; 5 chunks are leased to "
                "clients of before\n"
                "  damaged           2 chunks did not match their checksum\n");
        section("memory",
                "{'pool':{'bytes':1024,'used_bytes':0,'populated_bytes':1024,'huge_pages':'none','"
                "index':false},"
                "'kept_memory':{'ready':true},'lookup_index':{'enabled':false}}",
                "\nMemory\n"
                "  used              0 B of 1 KiB  [........................] 0 %\n"
                "  chunks            0; 0 B leased, 0 B not yet on disk\n"
                "  huge pages        none: the system has none left\n"
                "  slabs             0 B each\n"
                "  pool index        off (memory.pool_index): clients ask the daemon\n"
                "  at restart        the memory is kept\n"
                "  lookup index      off (memory.lookup_index): clients ask the daemon\n");
        fake.status =
                ctl_json("{'pool':{'index':true,'huge_pages':'off'},'kept_memory':{'ready':false},"
                         "'lookup_index':{'tables':0}}");
        assert_int_equal(ctl("status", "memory"), EXIT_OK);
        has(ctl_out, "\n  huge pages        off\n");
        has(ctl_out, "\n  pool index        none: no client has asked for it\n");
        has(ctl_out, "\n"
                     "  at restart        the memory is lost: the pool cannot be handed over\n");
        has(ctl_out, "\n  lookup index      none: no client has asked for it\n");
        lacks(ctl_out, "bytes a chunk");
}

static const char store[] =
        "{'store':{'volumes':["
        "{'volume':'/a','state':'up','payload_bytes':1024,'used_bytes':2048,'limit_bytes':4096},"
        "{'volume':'/b','state':'bypassed','reason':'write "
        "failed','chunks':3,'since_unix_ms':1700000000000},"
        "{'volume':'/c','state':'suspended','reason':'suspended by admin','chunks':4,"
        "'since_unix_ms':1700000000000}],"
        "'paths':[1],'limit_bytes':4096,'payload_bytes':1024,'used_bytes':2048,'reserved_bytes':"
        "2048,"
        "'live_bytes':1024,'chunks':7,'entries_max':1000,'segments':1,'segments_max':4,'segment_"
        "bytes':1024,"
        "'slots':1,'recovered_chunks':7,'clean_start':false,'bypassed':true,"
        "'scrub':{'rate_bytes':1048576,'interval_seconds':604800,'running':true,'segments_done':1,"
        "'segments':4,'last_pass_ms':1700000000000,'failures':1,'chunks':10,'passes':1,'bytes':1},"
        "'later':'x'}}";

static void store_section_shows_volumes_that_are_not_in_use(void **state)
{
        section("store", store,
                "\nStore\n"
                "  volume            /a: 1 KiB live, 2 KiB reserved of 4 KiB\n"
                "  volume            /b: bypassed since 2023-11-14 22:13:20: write failed\n"
                "  volume            /c: suspended by admin, since 2023-11-14 22:13:20\n"
                "  live              1 KiB of 4 KiB  [######..................] 25 %\n"
                "  reserved          2 KiB of 4 KiB: chunks, preformatted space, tables\n"
                "  chunks            7 of at most 1,000; 7 of them on volumes that are not in use\n"
                "  segments          1 of at most 4, 1 KiB each or less, with 1 slot\n"
                "  recovered         7 chunks at startup, from a store that was not closed "
                "cleanly\n"
                "  OFFLINE           no volume is in use: every lookup on disk is a miss, and no "
                "put reaches the "
                "disk\n"
                "  scrub             1 MiB/s, every 7 d; now at 25.0 %; last pass ended: "
                "2023-11-14 22:13:20\n"
                "  scrubbed          10 chunks, 1 dropped\n"
                "  later             x\n");
        fake.status = ctl_json(store);
        assert_int_equal(ctl("status", "store", "--color", "always"), EXIT_OK);
        has(ctl_out, "\033[1;31mvolume          \033[0m  /b: bypassed");
        has(ctl_out, "\033[33mvolume          \033[0m  /c: suspended");
}

static void store_section_counts_the_volumes_beyond_the_first_few(void **state)
{
        static const char many[] =
                "{'store':{'volumes':[{'volume':'/0','state':'up'},{'volume':'/1','state':'up'},"
                "{'volume':'/2','state':'up'},{'volume':'/3','state':'up'},"
                "{'volume':'/4','state':'up'},{'volume':'/5','state':'up'}],"
                "'scrub':{'rate_bytes':0}}}";

        section(NULL, many,
                "\nStore\n"
                "  volume            /0: 0 B live, 0 B reserved of 0 B\n"
                "  volume            /1: 0 B live, 0 B reserved of 0 B\n"
                "  volume            /2: 0 B live, 0 B reserved of 0 B\n"
                "  volume            /3: 0 B live, 0 B reserved of 0 B\n"
                "                    and 2 more in use: kvcachectl device ls\n"
                "  live              0 B of 0 B  [........................] 0 %\n"
                "  reserved          0 B of 0 B: chunks, preformatted space, tables\n"
                "  chunks            0 of at most 0\n");
        fake.status = ctl_json(many);
        assert_int_equal(ctl("status", "store"), EXIT_OK);
        has(ctl_out, "\n  volume            /5: 0 B live");
        has(ctl_out, "\n  scrub             off\n");
        fake.status =
                ctl_json("{'store':{'volumes':[{'volume':'/a','state':'up'}],'clean_start':true,"
                         "'scrub':{'rate_bytes':1}}}");
        assert_int_equal(ctl("status", "store"), EXIT_OK);
        has(ctl_out, "\n  volume            /a\n");
        has(ctl_out, "\n  recovered         0 chunks at startup, from a store that is new or was "
                     "closed cleanly\n");
        has(ctl_out, "\n  scrub             1 B/s, every 0.0 s; idle; last pass ended: not yet\n");
}

static void writes_section_shows_budget_and_drive_life(void **state)
{
        section("writes",
                "{'writes':{'budget_bytes':1048576,'day_bytes':1000000,'day_seconds':7200,"
                "'available_bytes':-1024,'admitted_first':10,'admitted_again':5,'probability':0.25,"
                "'refused_first':3,'refused_dry':1,'refused_bytes':4096,'rated_endurance_bytes':"
                "1099511627776,"
                "'life_days':800,'life_at_budget_days':100}}",
                "\nWrites to disk\n"
                "  written           977 KiB in the last 2 h\n"
                "  budget            1 MiB a day (95.4 % of it used)\n"
                "  available         1 KiB overdrawn\n"
                "  admitted          10 new chunks, now 25.0 % of them; 5 seen before\n"
                "  refused           3 new chunks, 1 with the budget used up; 4 KiB\n"
                "  drive life        2.2 years at the rate of the last day, 100 days at the whole "
                "budget, of 1 TiB "
                "rated\n");
        section("writes",
                "{'writes':{'available_bytes':2048,'rated_endurance_bytes':1024,'life_days':1e300}"
                "}",
                "\nWrites to disk\n"
                "  written           0 B in the first second\n"
                "  budget            none (store.write_budget)\n"
                "  available         2 KiB\n"
                "  drive life        999.0 years at the rate of the last day, of 1 KiB rated\n");
        section(NULL, "{'writes':{'budget_bytes':1024,'day_bytes':1024}}",
                "  written           1 KiB in the first second\n"
                "  budget            1 KiB a day (100.0 % of it used)\n");
}

static void eviction_section_is_shown_in_full_only(void **state)
{
        static const char eviction[] =
                "{'eviction':{'policy':'learned','chunk_bytes':40,'ghost_bytes':16,"
                "'memory':{'ghosts':1,'ghosts_max':10,'ghost_hits':3,"
                "'evicted_age_seconds':{'p10':1,'p50':41.7,'p90':4123}},'disk':{'ghosts_max':0,'"
                "later':1},'announced_returns':{'open':2,'true':1000,'early':3,'late':4,"
                "'unmeasured':5,'disbelieved':6,'least_belief':0.25}}}";

        section("eviction", eviction,
                "\nEviction\n"
                "  policy            learned\n"
                "  takes             40 bytes for each chunk, 16 for each evicted one\n"
                "  memory            1 evicted chunks remembered, of at most 10; 3 came back\n"
                "  memory ages       a tenth of what was evicted had been unused for at most 1.0 "
                "s, "
                "half for at most 42 s, nine tenths for at most 1 h 10 min\n"
                "  later             1\n"
                "  announced         2 returns open; 1,000 came true, 7 did not, 11 were not "
                "believed; the least belief in a user is 25 %\n");
        section(NULL, eviction, "");
}

static void eviction_section_has_the_outcomes_of_predicted_returns(void **state)
{
        section("eviction",
                "{'eviction':{'policy':'cq','chunk_bytes':40,'ghost_bytes':16,'returns':{"
                "'expected':34,'in_time':87,'missed':13,'late':2,'evicted':5,'prefetched':200,"
                "'prefetch_hits':150,'prefetch_wasted':20,'prefetch_unused_bytes':1048576},"
                "'prefetched_returns':{'scheduled':9,'read':8,'in_memory':7,'ended':6,"
                "'disbelieved':1,'worth_less':2,'late':3,'refused':4,'dropped':5,'chunks':180,"
                "'bytes':2097152}}}",
                "\nEviction\n"
                "  policy            cq\n"
                "  takes             40 bytes for each chunk, 16 for each evicted one\n"
                "  returns           34 chains expected back; 87.0 % of those before came in time, "
                "2 came late\n"
                "                    5 came back when their end had been evicted\n"
                "  prefetched        200 chunks; 75.0 % used, 10.0 % evicted unused, 1 MiB unused "
                "in memory\n"
                "  ahead             9 returns scheduled; read from disk for 8, nothing to read "
                "for "
                "7, 6 came before, 15 skipped\n"
                "                    180 chunks read ahead, 2 MiB\n");
        section("eviction", "{'eviction':{'policy':'cq','returns':{'expected':-1,'in_time':'x'}}}",
                "\nEviction\n"
                "  policy            cq\n"
                "  takes             0 bytes for each chunk, 0 for each evicted one\n"
                "  returns           0 chains expected back; - of those before came in time, 0 "
                "came "
                "late\n"
                "                    0 came back when their end had been evicted\n"
                "  in time           x\n");
}

static void tenants_section_has_the_largest_first(void **state)
{
        static const char tenants[] = "{'tenants':[{'name':'small','stored_bytes':{'used':1024},'"
                                      "pool_bytes':{'used':1,'limit':2048},"
                                      "'connections':{'used':1,'limit':64}},"
                                      "{'name':'large\\u001b[2J','stored_bytes':{'used':4096,'"
                                      "limit':8192},'connections':{'used':3},"
                                      "'keys':{'used':9},'refused':7}]}";

        section(NULL, tenants,
                "\nTenants\n"
                "  name               pool          stored  connections  refused\n"
                "  large?[2J           0 B  4 KiB of 8 KiB            3        7\n"
                "  small      1 B of 2 KiB           1 KiB      1 of 64        0\n");
        section("tenants", tenants,
                "\nTenants\n"
                "  name               pool          stored  connections  leased  stagings  "
                "registered  keys in flight"
                "  refused\n"
                "  large?[2J           0 B  4 KiB of 8 KiB            3     0 B       0 B         "
                "0 B               9"
                "        7\n"
                "  small      1 B of 2 KiB           1 KiB      1 of 64     0 B       0 B         "
                "0 B               0"
                "        0\n");
        section(NULL, "{'tenants':[{'name':'alone'}]}", "");
        section("tenants", "{'tenants':[{'name':'alone'}]}",
                "\nTenants\n"
                "  name   pool  stored  connections  leased  stagings  registered  keys in flight"
                "  refused\n"
                "  alone   0 B     0 B            0     0 B       0 B         0 B               0"
                "        0\n");
        fake.status = ctl_json(
                "{'tenants':[{'name':'a'},{'name':'b'},{'name':'c'},{'name':'d'},{'name':'e'},"
                "{'name':'f'},{'name':'g'}]}");
        assert_int_equal(ctl("status"), EXIT_OK);
        has(ctl_out, "\n  ... and 2 more: kvcachectl status tenants\n");
        assert_int_equal(ctl("status", "tenants"), EXIT_OK);
        has(ctl_out, "\n  g ");
        lacks(ctl_out, "more");
}

static void limits_section_shows_what_was_refused_or_is_nearly_used_up(void **state)
{
        static const char resources[] =
                "{'resources':{'connections':{'used':10,'limit':100,'largest_user':8,'user_limit':"
                "10,'refused':0},"
                "'leased_bytes':{'used':1024,'limit':4096,'largest_user':1,'user_limit':2048,'"
                "refused':3},"
                "'keys':{'used':1,'limit':10,'largest_user':7,'user_limit':10,'refused':0},"
                "'leases':{'used':1,'largest_user':10,'user_limit':10,'refused':0}}}";

        section(NULL, resources,
                "\nLimits that were reached, or nearly\n"
                "  resource       used  limit  largest user  user limit  refused\n"
                "  connections      10    100             8          10        0\n"
                "  leased_bytes  1 KiB  4 KiB           1 B       2 KiB        3\n"
                "  leases            1      -            10          10        0\n");
        fake.status = ctl_json(resources);
        assert_int_equal(ctl("status", "limits", "--color=always"), EXIT_OK);
        has(ctl_out, "\n  \033[33mleases  ");
        lacks(ctl_out, "\033[33mconnections");
        section("limits", "{'resources':{}}", "");
        section(NULL, "{'resources':{'keys':{'largest_user':1,'user_limit':10,'refused':0}}}", "");
        section("limits", "{'resources':{'keys':{'largest_user':1,'user_limit':10,'refused':0}}}",
                "\nLimits that were reached, or nearly\n  none\n");
}

static void namespaces_section_joins_fingerprints_and_counts_hits(void **state)
{
        static const char namespaces[] =
                "{'namespaces':[{'name':'n','tenant':'default','chunks':10,'bytes':4096,'chunk_"
                "bytes':1024,"
                "'lookup_keys':10,'lookup_found_keys':5,'get_keys':2,'get_found_keys':2,"
                "'fingerprint':'dtype=fp8\\nmodel=m\\n'},"
                "{'name':'o','tenant':'other','chunks':1,'bytes':1,'get_keys':3,'get_found_keys':3}"
                "],"
                "'namespace_usage':{'count':9,'limit':10,'warning':'nearly all are used'}}";

        section("namespaces", namespaces,
                "\nNamespaces: 9 of at most 10\n"
                "  name     chunks  bytes  chunk size     hits  fingerprint\n"
                "  n            10  4 KiB       1 KiB   50.0 %  dtype=fp8,model=m\n"
                "  other:o       1    1 B           -  100.0 %\n"
                "  ... and 7 more: kvcachectl namespace ls\n"
                "  WARNING: nearly all are used\n");
        section("namespaces", "{'namespaces':[]}",
                "\nNamespaces\n  none yet: a client makes the first\n");
        fake.status = ctl_json(
                "{'namespaces':[{'name':'a'},{'name':'b'},{'name':'c'},{'name':'d'},{'name':'e'},"
                "{'name':'f'}],'namespace_usage':{'count':6}}");
        assert_int_equal(ctl("status"), EXIT_OK);
        has(ctl_out, "\n  e ");
        lacks(ctl_out, "\n  f ");
        has(ctl_out, "\n  ... and 1 more: kvcachectl namespace ls\n");
}

static void totals_section_shows_hits_and_reasons_of_misses(void **state)
{
        section("totals",
                "{'totals':{'puts':1,'puts_postponed':1,'puts_caught_up':0,'bytes_put':1024,'hits_"
                "memory':10,'hits_disk':5,'hits_remote':"
                "2,'misses':1,"
                "'gets':18,'bytes_got':2048,'misses_by_reason':{'never_stored':1,'expired':2,'"
                "refused':0},"
                "'lookup_keys':100,'lookup_found_keys':50,'hit_ratio':0.5,'hit_ratio_of':'lookups',"
                "'loads_declined':3,'evictions':4,'expired_memory':1,'expired_disk':2,'crc_"
                "failures':1,"
                "'later_total':5}}",
                "\nSince it started\n  put               1 chunk, 1 KiB\n  postponed         1 "
                "chunk: the disk was behind; 0 were written once it had caught up, others at their "
                "next use\n  got               17 chunks, 2 KiB\n  gets              10 from "
                "memory, 5 from disk, 2 from the shared tier; 1 miss\n  misses            1 never "
                "stored, or forgotten, 2 expired\n  hit ratio         50.0 % of the keys of "
                "lookups (50 of 100)\n  declined          3 chunks stored, but faster to compute "
                "than to load\n  evictions         4\n  expired           1 chunks in memory, 2 on "
                "disk: their namespaces have a lifetime\n  BAD CHECKSUM      the disk returned "
                "wrong bytes for 1 chunk; the daemon drops such chunks, and their gets are "
                "misses\n  later total       5\n");
        section("totals",
                "{'totals':{'hits_memory':1,'hits_disk':2,'misses':1,'lookup_keys':7,'hit_ratio':0."
                "75,"
                "'hit_ratio_of':'gets'}}",
                "\nSince it started\n"
                "  put               0 chunks, 0 B\n"
                "  got               3 chunks, 0 B\n"
                "  gets              1 from memory, 2 from disk; 1 miss\n"
                "  hit ratio         75.0 % of the keys of gets (3 of 4)\n"
                "  evictions         0\n");
}

static void members_of_a_newer_daemon_are_shown_by_their_own_names(void **state)
{
        fake.status =
                ctl_json("{'newer':{'a_bytes':1024,'b_seconds':2,'c':'x\\u001b','d':true,'e':null,"
                         "'f':[1,2],'g':''},'plain_total':7}");
        ctl_expect(EXIT_OK,
                   "kvcache-daemon \n"
                   "\nNewer\n"
                   "  a bytes           1 KiB\n"
                   "  b seconds         2 s\n"
                   "  c                 x?\n"
                   "  d                 yes\n"
                   "  e                 -\n"
                   "  f                 [1,2]\n"
                   "\nOther\n"
                   "  plain total       7\n",
                   "", "status", "--all");
}

static void names_of_members_cannot_steer_the_terminal(void **state)
{
        fake.status = ctl_json("{'a\\u001b[2J\\u009bx':{'b_\\u001b\\u007f\\u009bm':1}}");
        ctl_expect(EXIT_OK,
                   "kvcache-daemon \n"
                   "\nA?[2J??x\n"
                   "  b ????m           1\n",
                   "", "status", "--all");
}

static void absurd_numbers_are_bounded(void **state)
{
        fake.status = ctl_json(
                "{'uptime_seconds':-1,'writes':{'available_bytes':-1e300,'day_bytes':1e300,"
                "'budget_bytes':-5},'remote':{'backend':'s3','read_rate_bytes':1,"
                "'read_latency_seconds':1e300},'pool':{'bytes':1,'used_bytes':1e300}}");
        assert_int_equal(ctl("status", "writes", "remote", "memory"), EXIT_OK);
        has(ctl_out, ", up 0.0 s\n");
        has(ctl_out, "\n  written           16 EiB in the first second\n");
        has(ctl_out, "\n  budget            none (store.write_budget)\n");
        has(ctl_out, "\n  available         16 EiB overdrawn\n");
        has(ctl_out, "\n                    1 B/s, 18446744074 s each, lately\n");
        has(ctl_out, "\n  used              16 EiB of 1 B  [########################] ");
}

static void several_sections_come_in_the_order_of_the_display(void **state)
{
        fake.status = ctl_json("{'io':{'backend':'posix'},'sessions':{},'eviction':{}}");
        assert_int_equal(ctl("status", "eviction", "io"), EXIT_OK);
        has(ctl_out, "\nI/O\n");
        has(ctl_out, "\nEviction\n");
        assert_true(strstr(ctl_out, "\nI/O\n") < strstr(ctl_out, "\nEviction\n"));
        lacks(ctl_out, "Sessions");
        ctl_expect(EXIT_WRONG_USAGE, "",
                   "kvcachectl: unknown section 'stroe'; did you mean \"store\"?\nSee: kvcachectl "
                   "status --help\n",
                   "status", "stroe");
        assert_int_equal(ctl("status", "xyzzy"), EXIT_WRONG_USAGE);
        has(ctl_err, "unknown section 'xyzzy'; use io, sessions, remote, memory, store, "
                     "writes, eviction, tenants, "
                     "limits, namespaces, totals\n");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(summary_begins_with_state_and_what_is_degraded),
                CTL_TEST(json_is_printed_as_it_came),
                CTL_TEST(report_that_cannot_be_had_or_read_is_refused),
                CTL_TEST(sections_of_other_types_are_left_out),
                CTL_TEST(io_section_says_why_it_is_not_faster),
                CTL_TEST(sessions_section_counts_connections_and_registered_memory),
                CTL_TEST(remote_section_shows_the_breaker_and_the_queue),
                CTL_TEST(memory_section_shows_pool_kept_memory_and_index),
                CTL_TEST(store_section_shows_volumes_that_are_not_in_use),
                CTL_TEST(store_section_counts_the_volumes_beyond_the_first_few),
                CTL_TEST(writes_section_shows_budget_and_drive_life),
                CTL_TEST(eviction_section_is_shown_in_full_only),
                CTL_TEST(eviction_section_has_the_outcomes_of_predicted_returns),
                CTL_TEST(tenants_section_has_the_largest_first),
                CTL_TEST(limits_section_shows_what_was_refused_or_is_nearly_used_up),
                CTL_TEST(namespaces_section_joins_fingerprints_and_counts_hits),
                CTL_TEST(totals_section_shows_hits_and_reasons_of_misses),
                CTL_TEST(members_of_a_newer_daemon_are_shown_by_their_own_names),
                CTL_TEST(names_of_members_cannot_steer_the_terminal),
                CTL_TEST(absurd_numbers_are_bounded),
                CTL_TEST(several_sections_come_in_the_order_of_the_display),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
