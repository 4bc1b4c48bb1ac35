/* SPDX-License-Identifier: Apache-2.0 */
/* config/: bad files are refused with the place of the error, and hostile ones are refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "config-fixture.h"

static void errors_name_place_fault_and_remedy(void **state)
{
        static const struct {
                const char *text, *error; /* all of it */
        } bad[] = {
                { "store:\n  limt: 5GiB\n",
                  "t:2:3: unknown key \"store.limt\"; did you mean \"store.limit\"?" },
                { "stor:\n  limit: 5GiB\n",
                  "t:1:1: unknown key \"stor\"; did you mean \"store\"?" },
                { "# c\n\nlimit: 3GiB\n",
                  "t:3:1: unknown key \"limit\"; did you mean \"store.limit\"?" },
                { "http: off\n", "t:1:7: \"http\" is a section: its keys go below it, indented, as "
                                 "\"key: value\"" },
                { "Store: {}\n", "t:1:1: unknown key \"Store\"; did you mean \"store\"?" },
                { "memory:\n  poool: 1GiB\n",
                  "t:2:3: unknown key \"memory.poool\"; did you mean \"memory.pool\"?" },
                { "store: {foo: 1}\n",
                  "t:1:9: unknown key \"store.foo\"; the keys there are path, "
                  "limit, segment, entries, prewrite, error_budget, "
                  "reserve, scrub_rate, scrub_interval, write_budget, rated_endurance" },
                { "xyzzy: 1\n",
                  "t:1:1: unknown key \"xyzzy\"; the sections are listen, http, store, "
                  "memory, events, io, remote, eviction, "
                  "access, namespaces, limits, log, tenants" },
                { "\"\xc3\xa4\xc3\xb6\": 1",
                  "t:1:1: unknown key \"\xc3\xa4\xc3\xb6\"; the sections are listen, http, store, "
                  "memory, events, io, remote, eviction, access, namespaces, limits, log, "
                  "tenants" },
                { "tenants: {acme: {}}\n",
                  "t:1:11: unknown key \"tenants.acme\"; tenants are a list in the file, with one "
                  "entry for each tenant: \"- name: acme\", and its keys below" },
                { "? \"tenants.a\\tb\"\n: 1\n",
                  "t:1:3: unknown key \"tenants.a?b\"; tenants are a list in the file, with one "
                  "entry for each tenant: \"- name: a?b\", and its keys below" },
                { "tenants: [default]\n",
                  "t:1:11: a tenant is a mapping: \"- name: research\", and "
                  "its other keys below" },
                { "tenants: 5\n", "t:1:10: \"tenants\" is a section: its keys go below it, "
                                  "indented, as \"key: value\"" },
                { "tenants:\n- users: [a]\n",
                  "t:2:3: this tenant has no name; add \"name: NAME\"" },
                { "tenants:\n- name: a\n  users: [a]\n- {name: a, groups: b}\n",
                  "t:4:3: there are two tenants \"a\"" },
                { "tenants:\n- name: a\n",
                  "t:2:3: tenant \"a\" has neither users nor groups; list some of either" },
                { "tenants:\n- name: default\n  pool: 1GiB\n",
                  "t:2:3: tenant \"default\" has limits only: set its users and groups by "
                  "access.users and access.groups, and its pool by memory.pool" },
                { "tenants:\n- name: a b\n",
                  "t:2:9: tenants.name: \"a b\" is not a tenant's name: 1 to 63 letters, digits, "
                  "\".\", \"_\" and \"-\"" },
                { "tenants:\n- name: a\n  user: b\n",
                  "t:3:3: unknown key \"user\" of a tenant; did you mean \"users\"?" },
                { "tenants:\n- name: a\n  xyzzy: b\n", "t:3:3: unknown key \"xyzzy\" of a tenant" },
                { "tenants:\n- name: a\n  name: b\n",
                  "t:3:3: \"tenants.name\" is given twice; first at line 2" },
                { "tenants:\n- name: a\n  pool: 1KiB\n",
                  "t:3:9: tenants.pool: \"1KiB\" is out of range: 8MiB to 1TiB, or auto" },
                { "tenants:\n- name: a\n  users: [b, b]\n",
                  "t:3:10: tenants.users: \"b\" is listed twice" },
                { "tenants:\n- name: a\n  users: {b: c}\n",
                  "t:3:10: \"tenants.users\" takes a value, and cannot have keys below it" },
                { "tenants:\n- name: a\n  users:\n",
                  "t:3:3: \"tenants.users\" has no value; give it one, or leave the line out" },
                { "tenants:\n- [a]\n",
                  "t:2:3: a tenant is a mapping: \"- name: research\", and its "
                  "other keys below" },
                { "tenants:\n- name: a\n  users: a\ntenants: []\n",
                  "t:4:1: section \"tenants\" is given twice; first at line 1" },
                { "store: {limit: 1GiB}\nstore.limit: 2GiB\n",
                  "t:2:1: \"store.limit\" is given twice; first at line 1" },
                { "store:\n  limit: 1GiB\n  limit: 1GiB\n",
                  "t:3:3: \"store.limit\" is given twice; first at line 2" },
                { "store: {}\nio: {}\nstore: {}\n",
                  "t:3:1: section \"store\" is given twice; first at line 1" },
                { "access.users: a\ntenants.default.users: b\n",
                  "t:2:1: \"access.users\" is given twice (as tenants.default.users); first at "
                  "line 1" },
                { "store.limit:\n",
                  "t:1:1: \"store.limit\" has no value; give it one, or leave the line out" },
                { "store.path: ~\n",
                  "t:1:1: \"store.path\" has no value; give it one, or leave the line out" },
                { "store: 5\n", "t:1:8: \"store\" is a section: its keys go below it, indented, as "
                                "\"key: value\"" },
                { "store: {limit: {x: 1}}\n",
                  "t:1:16: \"store.limit\" takes a value, and cannot have keys below it" },
                { "store.limit: [1GiB]\n", "t:1:14: store.limit takes one value, not a list" },
                { "store.limit: 64G\n",
                  "t:1:14: store.limit: unknown unit \"G\" in \"64G\"; did you mean \"GiB\"? Units "
                  "are B, KiB, MiB, GiB, TiB, PiB, or decimal kB, MB, GB, TB, PB" },
                { "store.limit: 64gib\n",
                  "t:1:14: store.limit: unknown unit \"gib\" in \"64gib\"; did you mean \"GiB\"? "
                  "Units are B, KiB, MiB, GiB, TiB, PiB, or decimal kB, MB, GB, TB, PB" },
                { "store.limit: -1GiB\n", "t:1:14: store.limit: \"-1GiB\" cannot be negative" },
                { "store.limit: lots\n",
                  "t:1:14: store.limit: \"lots\" is not a size; write a number with a unit, as in "
                  "64GiB or 512MiB, or auto" },
                { "store.limit: 1\n",
                  "t:1:14: store.limit: \"1\" is out of range: 16MiB to 1PiB, or auto" },
                { "store.segment: auto\n",
                  "t:1:16: store.segment: \"auto\" is not a size; write a number with a unit, as "
                  "in 64GiB or 512MiB" },
                { "store.segment: 99999999999999999999GiB\n",
                  "t:1:16: store.segment: \"99999999999999999999GiB\" is out of range: 1MiB to "
                  "64GiB" },
                { "memory.pool: 4MiB",
                  "t:1:14: memory.pool: \"4MiB\" is out of range: 8MiB to 1TiB, or auto" },
                { "limits.wait: 30\n", "t:1:14: limits.wait: \"30\" has no unit; did you mean "
                                       "\"30s\"? Units are ms, s, min, h, d" },
                { "limits:\n  wait: 30 seconds\n",
                  "t:2:9: limits.wait: unknown unit \"seconds\" in \"30 seconds\"; did you mean "
                  "\"s\"? Units are ms, s, "
                  "min, h, d" },
                { "io.depth: many", "t:1:11: io.depth: \"many\" is not a whole number" },
                { "io.depth: 1.5", "t:1:11: io.depth: \"1.5\" is not a whole number" },
                { "io.depth: -3", "t:1:11: io.depth: \"-3\" is not a whole number" },
                { "io.depth: 18446744073709551617",
                  "t:1:11: io.depth: \"18446744073709551617\" is out of range: 1 to 1024" },
                { "io.workers: few",
                  "t:1:13: io.workers: \"few\" is not a whole number, nor auto" },
                { "io:\n  backend: io_urign",
                  "t:2:12: io.backend: \"io_urign\" is not one of auto, io_uring, posix; did "
                  "you mean \"io_uring\"?" },
                { "log.level: warn", "t:1:12: log.level: \"warn\" is not one of error, warning, "
                                     "notice, info, debug; did "
                                     "you mean \"warning\"?" },
                { "eviction.policy: arc",
                  "t:1:18: eviction.policy: \"arc\" is not one of cq, lru" },
                { "store.prewrite: maybe",
                  "t:1:17: store.prewrite: \"maybe\" is not one of on, off" },
                { "listen.mode: 999", "t:1:14: listen.mode: \"999\" is not a mode from 0000 to "
                                      "0777 in octal, as in 0660" },
                { "listen.mode: 432", "t:1:14: listen.mode: \"432\" may be a mode that a tool has "
                                      "rewritten in decimal: "
                                      "write \"0660\" if it is, or \"0432\"" },
                { "listen.mode: '432'", "t:1:14: listen.mode: \"432\" may be a mode that a tool "
                                        "has rewritten in decimal: "
                                        "write \"0660\" if it is, or \"0432\"" },
                { "listen.mode: 438", "t:1:14: listen.mode: \"438\" is not a mode in octal; if a "
                                      "tool has rewritten it in decimal, write \"0666\"" },
                { "listen.mode: 9", "t:1:14: listen.mode: \"9\" is not a mode in octal; if a tool "
                                    "has rewritten it in decimal, write \"0011\"" },
                { "listen.mode: 0x1b0", "t:1:14: listen.mode: \"0x1b0\" is not a mode from 0000 to "
                                        "0777 in octal, as in 0660" },
                { "io.depth: 010", "t:1:11: io.depth: \"010\" begins with a zero, which YAML tools "
                                   "take for octal: write it without the zero" },
                { "store.limit: 01073741824",
                  "t:1:14: store.limit: \"01073741824\" begins with a zero, which YAML tools take "
                  "for octal: write it without the zero" },
                { "memory.floors: [vllm/*=1GiB]",
                  "t:1:16: memory.floors: the prefix of \"vllm/*=1GiB\" ends with \"*\"; write it "
                  "without, because every name that begins with a prefix matches" },
                { "access.users: [a, 01000]",
                  "t:1:15: access.users: \"01000\" begins with a zero, which YAML tools take for "
                  "octal: write the number without the zero" },
                { "listen.mode: 4755", "t:1:14: listen.mode: \"4755\" is not a mode from 0000 to "
                                       "0777 in octal, as in 0660" },
                { "listen.http: 9750", "t:1:14: listen.http: \"9750\" names no address; did you "
                                       "mean \"127.0.0.1:9750\"?" },
                { "listen.http: 127.0.0.1:99999",
                  "t:1:14: listen.http: the port in \"127.0.0.1:99999\" is not a number from 0 to "
                  "65535" },
                { "listen.http: 127.0.0.1:009750",
                  "t:1:14: listen.http: the port in \"127.0.0.1:009750\" is not a number from 0 to "
                  "65535" },
                { "listen.http: ::1:9750",
                  "t:1:14: listen.http: \"::1:9750\": an IPv6 address is written in brackets, as "
                  "in \"[::1]:9750\"" },
                { "listen.http: unix:h",
                  "t:1:14: listen.http: the path in \"unix:h\" must begin with /" },
                { "http.token_file: token", "t:1:18: http.token_file: \"token\" is neither a path "
                                            "that begins with / nor off" },
                { "http.token_file: ~/token",
                  "t:1:18: http.token_file: \"~\" in \"~/token\" is not expanded; write the "
                  "whole path" },
                { "http.hosts: [a.example, '*.example']",
                  "t:1:13: http.hosts: \"*.example\" is not the name of a host, as in "
                  "kvcache.example.com, without a port and without wildcards" },
                { "http.hosts: a.example:9750",
                  "t:1:13: http.hosts: \"a.example:9750\" is not the name of a host, as in "
                  "kvcache.example.com, without a port and without wildcards" },
                { "http.allow_remote: maybe",
                  "t:1:20: http.allow_remote: \"maybe\" is not one of on, off" },
                { "limits.http_rate: -1",
                  "t:1:19: limits.http_rate: \"-1\" is not a whole number" },
                { "listen.http: '[::1%lo]:9750'",
                  "t:1:14: listen.http: \"[::1%lo]:9750\" has no IP address in front of the port, "
                  "and no other name than localhost is looked up; use 127.0.0.1, [::1] or "
                  "localhost" },
                { "listen.http: myhost:9750",
                  "t:1:14: listen.http: \"myhost:9750\" has no IP address in front of the port, "
                  "and no other name than localhost is looked up; use 127.0.0.1, [::1] or "
                  "localhost" },
                { "listen.http: 127.1:9750",
                  "t:1:14: listen.http: \"127.1:9750\" has no IP address in front of the port, "
                  "and no other name than localhost is looked up; use 127.0.0.1, [::1] or "
                  "localhost" },
                { "listen.http: localhost.:9750", "t:1:14: listen.http: \"localhost.:9750\" has no "
                                                  "IP address in front of the port, "
                                                  "and no other name than localhost is looked up; "
                                                  "use 127.0.0.1, [::1] or localhost" },
                { "listen.http: /run/h", "t:1:14: listen.http: a path needs unix: in front; did "
                                         "you mean \"unix:/run/h\"?" },
                { "listen.http: http://x:1",
                  "t:1:14: listen.http: \"http://x:1\" is a URL; write its address and port alone, "
                  "as in 127.0.0.1:9750" },
                { "listen.http: \"[::1]\"",
                  "t:1:14: listen.http: \"[::1]\" has no port; write it behind the bracket, as in "
                  "\"[::1]:9750\"" },
                { "memory.directory: []",
                  "t:1:19: memory.directory: the list is empty; give a path" },
                { "memory.directory: [auto]", "t:1:19: memory.directory: auto is not a value "
                                              "of this key; write \"./auto\" for a "
                                              "directory of that name" },
                { "listen.socket: /run/kvcache/",
                  "t:1:16: listen.socket: \"/run/kvcache/\" is a directory; the socket "
                  "needs a name in it" },
                { "store.path: ~/x", "t:1:13: store.path: \"~\" in \"~/x\" is not expanded; "
                                     "write the whole path" },
                { "store.path: $HOME/x",
                  "t:1:13: store.path: \"$\" in \"$HOME/x\" is not expanded; "
                  "write the whole path" },
                { "store.path: [/a, '/b/${X}']",
                  "t:1:13: store.path: \"$\" in \"/b/${X}\" is not expanded; write the whole "
                  "path" },
                { "store.path: file:///x", "t:1:13: store.path: \"file:///x\" is a URL; write the "
                                           "path alone, as in /srv/x" },
                { "store.path: file:/x",
                  "t:1:13: store.path: \"file:/x\" is a URL; write the path alone, as in /srv/x" },
                { "listen.socket: unix:///run/x",
                  "t:1:16: listen.socket: \"unix:///run/x\" is a URL; write the path alone, as in "
                  "/srv/x" },
                { "store.path: ''", "t:1:13: store.path: a path cannot be empty" },
                { "store.path: []", "t:1:13: store.path: the list is empty; give a path, or auto" },
                { "store.path: [/a, auto]",
                  "t:1:13: store.path: auto cannot be one of several values; write "
                  "\"./auto\" for a directory of that name" },
                { "store.path: [/a, /b, /a]", "t:1:13: store.path: \"/a\" is listed twice" },
                { "store.path:\n  - /a\n  - [/b]\n",
                  "t:3:5: store.path: expected a list of plain values; this entry is a list" },
                { "store.path:\n  - /a\n  -\n", "t:3:4: store.path: an entry has no value" },
                { "access.users: alice, bob", "t:1:15: access.users: \"alice, bob\" is not a name, "
                                              "which has no space and none of \",:/\"; several are "
                                              "written as a list: [alice, bob]" },
                { "access.users: [{a: b}]", "t:1:16: access.users: expected a list of plain "
                                            "values; this entry is a mapping" },
                { "store:\n limit: 2GiB\n  path: /x\n",
                  "t:2:9: the value of \"store.limit\" continues on the next line; check the "
                  "indentation there" },
                { "store.path: \"a\\nb\"",
                  "t:1:13: store.path: \"a?b\" is not one line of UTF-8 text" },
                { "store.path: \"a\\0b\"", "t:1:13: the text contains a NUL character" },
                { "\"store\\0x\": 1", "t:1:1: the text contains a NUL character" },
                { "\"\": 1", "t:1:1: a key is empty" },
                { "? [a]\n: b\n", "t:1:3: a key must be plain text, not a list" },
                { "? {a: b}\n: b\n", "t:1:3: a key must be plain text, not a mapping" },
                { "<<: {}",
                  "t:1:1: unknown key \"<<\"; the sections are listen, http, store, memory, "
                  "events, io, remote, eviction, access, "
                  "namespaces, limits, log, tenants" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(load(bad[i].text), -EINVAL);
                assert_string_equal(fault.text, bad[i].error);
        }
}

static void what_yaml_has_beyond_keys_and_values_is_refused(void **state)
{
        static const struct {
                const char *text, *error; /* its beginning */
        } bad[] = {
                { "store.path: *x\n", "t:1:13: aliases (\"*\") are not supported" },
                { "store: &a {}\n", "t:1:8: anchors (\"a\" after \"&\") are not supported" },
                { "&k store: {}\n", "t:1:1: anchors" },
                { "store.limit: !!str 64GiB\n",
                  "t:1:14: tags (\"tag:yaml.org,2002:str\") are not supported" },
                { "store.path: !x [/a]\n", "t:1:13: tags (\"!x\") are not supported" },
                { "!!binary aGVsbG8=\n", "t:1:1: tags" },
                { "--- {}\n--- {}\n", "t:2:1: a second document begins here" },
                { "log.level: info\n---\nlog.level: debug\n",
                  "t:2:1: a second document begins here" },
                { "- store\n", "t:1:1: expected \"key: value\" lines, not a list" },
                { "store", "t:1:1: expected \"key: value\" lines, not a single value" },
                { "store:\n\tlimit: 1GiB\n",
                  "t:2:1: not valid YAML: found character that cannot start any token" },
                { "store.path: [\n", "t:2:1: not valid YAML: " },
                { "store.path: \"abc\n",
                  "t:2:1: not valid YAML: found unexpected end of stream (while scanning a quoted "
                  "scalar that begins at line 1)" },
                { "store.limit: 1GiB: 2\n",
                  "t:1:18: not valid YAML: mapping values are not allowed in this context" },
                { "%FOO\n---\n", "t:1:" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(load(bad[i].text), -EINVAL);
                if (strncmp(fault.text, bad[i].error, strlen(bad[i].error)) != 0)
                        fail_msg("\"%s\" begins otherwise than \"%s\"", fault.text, bad[i].error);
        }
        assert_int_equal(load("store:\n\tlimit: 1GiB\n"), -EINVAL);
        assert_non_null(strstr(fault.text, "indent with spaces, not with tabs"));
}

static void assert_one_line(void)
{
        assert_true(strncmp(fault.text, "t:", 2) == 0);
        assert_null(strchr(fault.text, '\n'));
        for (const char *p = fault.text; *p; p++)
                assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void bytes_that_are_not_text_are_refused(void **state)
{
        static const struct {
                const char *bytes;
                size_t length;
                const char *error;
        } bad[] = {
                { "\0\0\1", 3, "t:1:1: not text in UTF-8 (control characters are not allowed)" },
                { "\x7f"
                  "ELF\2\1",
                  6, "t:1:1: not text" },
                { "store:\n  \xff\xfe", 11,
                  "t:2:3: not text in UTF-8 (invalid leading UTF-8 octet)" },
                { "\xff\xfe"
                  "a\0:\0",
                  6, "t:1:1: not text" },
                { "store: \xc3", 8, "t:1:8: not text in UTF-8 (incomplete UTF-8 octet sequence)" },
                { "a\xed\xa0\x80", 4, "t:1:2: not text" },
                { "a\x1b[31m: 1", 9, "t:1:2: not text" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(load_bytes(bad[i].bytes, bad[i].length), -EINVAL);
                if (strncmp(fault.text, bad[i].error, strlen(bad[i].error)) != 0)
                        fail_msg("\"%s\" begins otherwise than \"%s\"", fault.text, bad[i].error);
                assert_one_line();
        }
}

static void deep_long_and_large_ones_are_refused_with_one_line(void **state)
{
        static const struct {
                const char *once, *prefix;
                size_t times;
        } bad[] = {
                { "[", "", 500000 },
                { "{", "", 500000 },
                { "{a: ", "", 100000 },
                { "- ", "", 200000 },
                { "? ", "", 200000 },
                { "[", "store.path: ", 500000 },
                { "{", "store.path: ", 500000 },
                { "{a: ", "store: ", 100000 },
                { "a, ", "access.users: [", 300000 },
                { "- a\n", "access.users:\n", 200000 },
                { "x", "", 1000000 },
                { "x", "store.path: ", 1000000 },
                { "store.", "", 100000 },
                { "\xc3\xa4", "store.", 400000 },
                { "store: {}\n", "", 100000 },
                { "9", "store.limit: ", 900000 },
                { "0", "store.limit: 1.", 900000 },
                { "!", "", 900000 },
                { "&a ", "", 300000 },
                { "%A\n", "", 300000 },
                { "%TAG !x! y\n", "", 90000 },
                { "---\n", "", 250000 },
                { "\"", "", 900001 },
                { "|\n", "store: ", 400000 },
        };

        for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
                size_t n = strlen(bad[i].once), prefix = strlen(bad[i].prefix);
                _cleanup_(freep) char *text = malloc(prefix + n * bad[i].times);

                assert_non_null(text);
                memcpy(text, bad[i].prefix, prefix);
                for (size_t j = 0; j < bad[i].times; j++)
                        memcpy(text + prefix + j * n, bad[i].once, n);
                if (load_bytes(text, prefix + n * bad[i].times) != -EINVAL)
                        fail_msg("%s%s... was not refused", bad[i].prefix, bad[i].once);
                assert_one_line();
                assert_true(strlen(fault.text) < sizeof(fault.text) - 1);
        }
}

static char first_noted[sizeof(fault.text)];

static void laughs_are_not_counted(void **state)
{
        assert_int_equal(load("a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n"), -EINVAL);
        assert_int_equal(load("store:\n  path: &a [x,x,x]\n  limit: *a\n"), -EINVAL);
        assert_one_line();
}

static const char sample[] =
        "# sample\nlisten:\n  socket: '/run/x'\n  http: 127.0.0.1:1\nstore: {path: [\"/a\\u00e4\", "
        "/b], limit: 1.5GiB}\n"
        "limits.wait: 10s\naccess:\n  users:\n    - alice\n    - 1000\nlog.level: debug\n";

static void every_cut_of_a_good_file_is_good_or_one_error(void **state)
{
        assert_int_equal(load(sample), 0);
        for (size_t n = 0; n < sizeof(sample) - 1; n++) {
                /* A separate allocation, so that a sanitizer detects reads beyond its end. */
                _cleanup_(freep) char *text = malloc(n + 1);

                assert_non_null(text);
                memcpy(text, sample, n);
                if (load_bytes(text, n) < 0)
                        assert_one_line();
        }
}

static void changed_bytes_are_good_or_one_error(void **state)
{
        uint64_t random = 1;

        for (int round = 0; round < 20000; round++) {
                char text[sizeof(sample) - 1];
                unsigned changes;

                memcpy(text, sample, sizeof(text));
                random = random * 6364136223846793005u + 1442695040888963407u;
                changes = 1 + (random >> 60);
                for (unsigned i = 0; i < changes; i++) {
                        random = random * 6364136223846793005u + 1442695040888963407u;
                        text[(random >> 33) % sizeof(text)] =
                                random & 1 ? "\n\t :-[]{}\"'#&*!|>%@~?,"[(random >> 8) % 23]
                                           : (char)(random >> 16);
                }
                if (load_bytes(text, sizeof(text)) < 0)
                        assert_one_line();
        }
}

static void files_that_are_none_get_one_clear_error(void **state)
{
        char path[256], expected[640];
        _cleanup_(freep) char *large = malloc(CONFIG_MAX_FILE + 1);
        struct config_error e = {};

        assert_int_equal(config_load_file(&config, folder, &e), -EISDIR);
        snprintf(expected, sizeof(expected), "%s: is a directory, not a file", folder);
        assert_string_equal(e.text, expected);

        assert_int_equal(config_load_file(&config, in_folder("none", path), &e), -ENOENT);
        snprintf(expected, sizeof(expected),
                 "%s: No such file or directory; write one, or start without --config", path);
        assert_string_equal(e.text, expected);

        assert_int_equal(config_load_file(&config, "", &e), -ENOENT);
        assert_int_equal(config_load_file(&config, "/dev/zero", &e), -EINVAL);
        assert_string_equal(e.text,
                            "/dev/zero: larger than 1024 KiB: this is not a configuration file");
        assert_int_equal(config_load_file(&config, "/dev/null", &e), 0);

        assert_non_null(large);
        memset(large, '#', CONFIG_MAX_FILE + 1);
        write_file(in_folder("large", path), large, CONFIG_MAX_FILE + 1);
        assert_int_equal(config_load_file(&config, path, &e), -EINVAL);
        write_file(path, large, CONFIG_MAX_FILE);
        assert_int_equal(config_load_file(&config, path, &e), 0);

        write_file(path, "store.limit: 1GiB\n", 18);
        assert_int_equal(chmod(path, 0), 0);
        if (geteuid() != 0)
                assert_int_equal(config_load_file(&config, path, &e), -EACCES);
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(config_load_file(&config, path, &e), 0);
        assert_true(config.store.limit == GIB);
}

static void pipe_is_read_to_its_end(void **state)
{
        char path[64];
        int fds[2];

        assert_int_equal(pipe(fds), 0);
        assert_int_equal(write(fds[1], "store:\n", 7), 7);
        assert_int_equal(write(fds[1], "  limit: 3GiB\n", 14), 14);
        close(fds[1]);
        snprintf(path, sizeof(path), "/dev/fd/%d", fds[0]);
        assert_int_equal(config_load_file(&config, path, &fault), 0);
        assert_true(config.store.limit == 3 * GIB);
        close(fds[0]);
}

static void note(void *userdata, const char *text)
{
        if (++*(unsigned *)userdata == 1)
                snprintf(first_noted, sizeof(first_noted), "%s", text);
}

/* For any file, reading past errors ends. It finds an error if and only if reading up to the first
 * one does, and reports the same first error. */
static void all_errors_are_noted_whatever_is_wrong(void **state)
{
        static const char right[] =
                "store:\n  limit: 1GiB\n  path: [/a, /b]\n  prewrite: off\nmemory.pool: 64MiB\n"
                "access:\n  users: [root, 12]\n  groups:\n  - root\n"
                "tenants:\n- name: a\n  users: [root]\n  pool: 16MiB\n- {name: b, groups: root}\n"
                "log: {level: info}\nio:\n  depth: 4\n";
        static const char put_in[] = "x[]{}:,&*- \n\"!|#0";
        char alone[sizeof(fault.text)];
        unsigned more_than_one = 0;

        for (size_t at = 0; at < sizeof(right) - 1; at++)
                for (size_t k = 0; k < sizeof(put_in); k++) {
                        struct config_error all = { .each = note };
                        char text[sizeof(right) + 1];
                        unsigned noted = 0;
                        size_t n;

                        /* Replaces a character, or at the last step removes it. */
                        n = (size_t)snprintf(text, sizeof(text), "%.*s%.*s%s", (int)at, right,
                                             put_in[k] != '\0', &put_in[k], right + at + 1);
                        (void)load(text);
                        memcpy(alone, fault.text, sizeof(alone));
                        reset();
                        all.userdata = &noted;
                        (void)config_load_text(&config, "t", text, n, &all);
                        assert_int_equal(all.n, noted);
                        assert_int_equal(noted > 0, alone[0] != '\0');
                        if (noted > 0)
                                assert_string_equal(first_noted, alone);
                        more_than_one += noted > 1;
                }
        assert_true(more_than_one > 50);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(errors_name_place_fault_and_remedy),
                CASE(what_yaml_has_beyond_keys_and_values_is_refused),
                CASE(bytes_that_are_not_text_are_refused),
                CASE(deep_long_and_large_ones_are_refused_with_one_line),
                CASE(laughs_are_not_counted),
                CASE(every_cut_of_a_good_file_is_good_or_one_error),
                CASE(changed_bytes_are_good_or_one_error),
                CASE(files_that_are_none_get_one_clear_error),
                CASE(pipe_is_read_to_its_end),
                CASE(all_errors_are_noted_whatever_is_wrong),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
