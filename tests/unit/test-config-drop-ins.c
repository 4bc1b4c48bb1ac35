/* SPDX-License-Identifier: Apache-2.0 */
/* config/: drop-ins beside the configuration file: their order, what of them counts, where errors
 * point, and what is refused. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "config-fixture.h"

enum { STRANGER = 65534 };

/* Writes kvcache.yaml, or a drop-in of that name. */
static void write_text(const char *name, const char *text)
{
        char path[256], directory[256];

        mkdir(in_folder("kvcache.yaml.d", directory), 0755);
        snprintf(path, sizeof(path), "%s/%s%s", folder, name ? "kvcache.yaml.d/" : "kvcache.yaml",
                 name ? name : "");
        write_file(path, text, strlen(text));
}

static const char *drop_in(const char *name, char ret[static 256])
{
        snprintf(ret, 256, "%s/kvcache.yaml.d/%s", folder, name);
        return ret;
}

static int load_all(void)
{
        char path[256];

        reset();
        n_said = 0;
        return config_load_all(&config, in_folder("kvcache.yaml", path), false, (char *[]){ NULL },
                               NULL, 0, say, &fault);
}

/* Asserts that the error begins with the name of the drop-in, and has the text. */
static void assert_fault(const char *name, const char *text)
{
        char path[256];

        drop_in(name, path);
        if (strncmp(fault.text, path, strlen(path)) != 0 || !strstr(fault.text, text))
                fail_msg("\"%s\" does not begin with %s, or lacks \"%s\"", fault.text, path, text);
}

static void drop_ins_are_read_in_the_order_of_their_names(void **state)
{
        write_text(NULL, "store:\n  limit: 1GiB\n  reserve: 1MiB\n");
        write_text("20-b.yaml", "store:\n  limit: 3GiB\nmemory.pool: 3GiB\n");
        write_text("10-a.yaml", "store.limit: 2GiB\nmemory.pool: 2GiB\nio.depth: 2\n");
        write_text("9-c.yaml", "memory:\n  pool: 4GiB\n");
        assert_int_equal(load_all(), 0);
        assert_true(config.store.limit == 3 * GIB);
        assert_true(config.store.reserve == MIB);
        assert_true(config.memory.pool == 4 * GIB);
        assert_true(config.io.depth == 2);
        assert_int_equal(config.files.n, 4);
        assert_int_equal(n_said, 0);
}

static void the_environment_and_options_win(void **state)
{
        char path[256];
        char *variables[] = { (char *)"KVCACHE_IO_DEPTH=3", NULL };
        char *sets[] = { (char *)"io.workers=4" };

        write_text("a.yaml", "io:\n  depth: 1\n  workers: 1\n");
        assert_int_equal(config_load_all(&config, in_folder("kvcache.yaml", path), false, variables,
                                         sets, 1, say, &fault),
                         0);
        assert_true(config.io.depth == 3);
        assert_true(config.io.workers == 4);
}

static void drop_ins_need_no_file_and_no_directory(void **state)
{
        char path[256];

        assert_int_equal(load_all(), 0);
        write_text("a.yaml", "io.depth: 7\n");
        assert_int_equal(load_all(), 0);
        assert_true(config.io.depth == 7);
        reset();
        assert_int_equal(config_load_all(&config, in_folder("kvcache.yaml", path), true,
                                         (char *[]){ NULL }, NULL, 0, say, &fault),
                         -ENOENT);
        write_text("a.yaml", "# nothing\n");
        assert_int_equal(load_all(), 0);
}

static void a_later_list_replaces_an_earlier_one(void **state)
{
        write_text(NULL, "store.path: [/a, /b]\naccess.users: [root]\n");
        write_text("a.yaml", "store:\n  path: /c\naccess:\n  users: []\n");
        assert_int_equal(load_all(), 0);
        assert_int_equal(config.store.path.n, 1);
        assert_string_equal(config.store.path.items[0], "/c");
        assert_int_equal(config.access.users.n, 0);
}

static void within_a_file_nothing_is_given_twice(void **state)
{
        write_text(NULL, "io:\n  depth: 1\n");
        write_text("a.yaml", "io:\n  depth: 2\nio:\n  workers: 1\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ":3:1: section \"io\" is given twice; first at line 1");
        write_text("a.yaml", "io:\n  depth: 2\nio.depth: 3\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ":3:1: \"io.depth\" is given twice; first at line 2");
}

static void errors_name_the_drop_in_and_the_line(void **state)
{
        write_text(NULL, "io:\n  depth: 1\n");
        write_text("a.yaml", "\n\nstore:\n  limt: 1GiB\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ":4:3: unknown key");
        write_text("a.yaml", "store:\n  limit: 1GiB\n path: /a\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ":3:");
        /* An error that is found only after all files were read. */
        write_text("a.yaml", "memory.pool: 1GiB\n\nlimits:\n  leased_bytes: 2GiB\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ":4:17: limits.leased_bytes: 2GiB is more than memory.pool");
}

static void note(void *userdata, const char *text)
{
        say(text);
}

static int load_and_note(void)
{
        char path[256];

        reset();
        n_said = 0;
        fault.each = note;
        return config_load_all(&config, in_folder("kvcache.yaml", path), false, (char *[]){ NULL },
                               NULL, 0, NULL, &fault);
}

static void a_check_reports_the_errors_of_all_files(void **state)
{
        char path[256];

        write_text(NULL, "io:\n  depth: none\n");
        write_text("a.yaml", "store.limt: 1GiB\n");
        mkdir(drop_in("b.yaml", path), 0755);
        write_text("c.yaml", "io.workers: some\n");
        assert_int_equal(load_and_note(), -EINVAL);
        assert_int_equal(n_said, 4);
        assert_true(was_said("kvcache.yaml:2:10: io.depth"));
        assert_true(was_said("a.yaml:1:1: unknown key"));
        assert_true(was_said("b.yaml: is a directory"));
        assert_true(was_said("c.yaml:1:13: io.workers"));
        /* Text that is not YAML hides all that follows. */
        write_text("a.yaml", "store: [\n");
        assert_int_equal(load_and_note(), -EINVAL);
        assert_true(was_said("kvcache.yaml:2:10: io.depth") && was_said("a.yaml:1:"));
        assert_false(was_said("b.yaml") || was_said("c.yaml"));
}

static void other_names_are_left_out(void **state)
{
        static const char *const left_out[] = { ".hidden.yaml", "a.yaml~", "a.yaml.bak", "README",
                                                ".yaml",        "b.yml",   "c.conf" };
        char path[256];

        for (size_t i = 0; i < ARRAY_SIZE(left_out); i++)
                write_text(left_out[i], "this: is no key\n");
        assert_int_equal(mkdir(drop_in("folder", path), 0755), 0);
        write_text("a.yaml", "io.depth: 5\n");
        assert_int_equal(load_all(), 0);
        assert_true(config.io.depth == 5);
        assert_int_equal(n_said, 2);
        assert_true(was_said("\"b.yml\" is not read: the names of drop-ins end with .yaml"));
        assert_true(was_said("\"c.conf\" is not read"));
}

static void a_link_to_a_file_is_read(void **state)
{
        char path[256], target[256];

        write_text("a.yaml", "io.depth: 5\n");
        /* Kubernetes mounts a ConfigMap so: ..data is a link to a directory. */
        assert_int_equal(mkdir(drop_in("..v1", path), 0755), 0);
        assert_int_equal(rename(drop_in("a.yaml", target), drop_in("..v1/a.yaml", path)), 0);
        assert_int_equal(symlink("..v1", drop_in("..data", path)), 0);
        assert_int_equal(symlink("..data/a.yaml", drop_in("a.yaml", path)), 0);
        assert_int_equal(load_all(), 0);
        assert_true(config.io.depth == 5);
}

/* --- tenants --- */

static void tenants_are_merged_by_name(void **state)
{
        char where[CONFIG_WHERE], path[256];

        write_text(NULL, "tenants:\n"
                         "  - {name: a, users: [root], pool: 16MiB, keys: 2000}\n"
                         "  - {name: b, users: ['1']}\n");
        write_text("a.yaml", "tenants:\n"
                             "  - name: a\n"
                             "    pool: 32MiB\n"
                             "  - {name: c, users: ['2']}\n");
        write_text("b.yaml", "tenants:\n"
                             "  - {name: c, users: ['3', '4']}\n");
        assert_int_equal(load_all(), 0);
        assert_int_equal(config.n_tenants, 3);
        assert_string_equal(config.tenants[0].name, "a");
        assert_true(config.tenants[0].pool == 32 * MIB);
        assert_true(config.tenants[0].keys == 2000);
        assert_string_equal(config.tenants[0].users.items[0], "root");
        assert_string_equal(config.tenants[1].name, "b");
        assert_string_equal(config.tenants[2].name, "c");
        assert_int_equal(config.tenants[2].users.n, 2);
        for (unsigned i = 0; i < config_n_tenant_rows; i++)
                if (strcmp(config_tenant_rows[i].name, "tenants.pool") == 0)
                        config_tenant_where(&config, &config.tenants[0], i, where);
        snprintf(path + strlen(drop_in("a.yaml", path)), 32, ":3:11: ");
        assert_string_equal(where, path);
        assert_reads_back();
}

static void a_wrong_merged_tenant_is_an_error(void **state)
{
        write_text(NULL,
                   "tenants:\n  - {name: a, users: [root]}\n  - {name: default, keys: 2000}\n");
        write_text("a.yaml", "tenants:\n  - {name: a, users: []}\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml",
                     ":2:5: tenant \"a\" has neither users nor groups; list some of either");
        write_text("a.yaml", "tenants:\n  - {name: default, users: [root]}\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ":2:5: tenant \"default\" has limits only");
        write_text("a.yaml", "tenants:\n  - {name: a, keys: 3000}\n  - {name: a, keys: 4000}\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ":3:5: there are two tenants \"a\"");
        write_text("a.yaml", "tenants:\n  - {name: z, keys: 3000}\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml",
                     ":2:5: tenant \"z\" has neither users nor groups; list some of either");
        /* A check goes on, and has the tenants that are right. */
        write_text("a.yaml", "tenants:\n  - {name: a, users: []}\n  - {name: b, users: [root]}\n");
        assert_int_equal(load_and_note(), -EINVAL);
        assert_int_equal(n_said, 1);
        assert_int_equal(config.n_tenants, 2);
        assert_reads_back();
}

/* --- files that are refused --- */

static void what_is_no_regular_file_is_refused(void **state)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_(closep) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        char path[256];

        write_text("a.yaml", "io.depth: 5\n");
        assert_int_equal(mkdir(drop_in("b.yaml", path), 0755), 0);
        assert_int_equal(load_all(), -EISDIR);
        assert_fault("b.yaml", ": is a directory, not a file");
        rmdir(path);
        assert_int_equal(mkfifo(path, 0644), 0);
        assert_int_equal(load_all(), -EINVAL); /* and does not wait for a writer */
        assert_fault("b.yaml", ": is not a regular file");
        unlink(path);
        memcpy(address.sun_path, path, strlen(path) + 1);
        assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("b.yaml", ": is not a regular file");
        unlink(path);
        assert_int_equal(symlink("/dev/zero", path), 0);
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("b.yaml", ": is not a regular file");
}

static void a_link_that_leads_nowhere_is_refused(void **state)
{
        char path[256];

        write_text("a.yaml", "io.depth: 5\n");
        assert_int_equal(symlink("nowhere", drop_in("b.yaml", path)), 0);
        assert_int_equal(load_all(), -ENOENT);
        assert_fault("b.yaml", ": is a link to a file that does not exist");
        unlink(path);
        assert_int_equal(symlink("b.yaml", path), 0);
        assert_int_equal(load_all(), -ELOOP);
        assert_fault("b.yaml", ": ");
}

static void a_wrong_directory_is_refused(void **state)
{
        char path[256];

        in_folder("kvcache.yaml.d", path);
        write_file(path, "io.depth: 5\n", 12);
        assert_int_equal(load_all(), -ENOTDIR);
        assert_non_null(strstr(fault.text, "kvcache.yaml.d: is not a directory"));
        unlink(path);
        assert_int_equal(symlink("nowhere", path), 0);
        assert_int_equal(load_all(), -ENOENT);
        assert_non_null(strstr(fault.text, "kvcache.yaml.d: is a link to a directory that does not "
                                           "exist"));
        unlink(path);
        assert_int_equal(mkdir(path, 0755), 0);
        assert_int_equal(chmod(path, 0777), 0);
        assert_int_equal(load_all(), -EPERM);
        assert_non_null(strstr(fault.text, "kvcache.yaml.d: mode 0777 lets every user change the "
                                           "configuration; use chmod o-w"));
        assert_int_equal(chmod(path, 0775), 0);
        assert_int_equal(load_all(), 0);
}

static void a_drop_in_that_others_may_write_is_refused(void **state)
{
        char path[256];

        write_text("a.yaml", "io.depth: 5\n");
        assert_int_equal(chmod(drop_in("a.yaml", path), 0646), 0);
        assert_int_equal(load_all(), -EPERM);
        assert_fault("a.yaml", ": mode 0646 lets every user change the configuration");
        assert_true(config.io.depth == 32);
        assert_int_equal(chmod(path, 0664), 0);
        assert_int_equal(load_all(), 0);
        if (geteuid() != 0)
                return;
        assert_int_equal(chown(path, STRANGER, (gid_t)-1), 0);
        assert_int_equal(load_all(), -EPERM);
        assert_fault("a.yaml", ": belongs to user 65534, who could change the configuration");
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
        assert_int_equal(chown(in_folder("kvcache.yaml.d", path), STRANGER, (gid_t)-1), 0);
        assert_int_equal(load_all(), -EPERM);
        assert_non_null(strstr(fault.text, "kvcache.yaml.d: belongs to user 65534"));
        /* Root may check the configuration of the user that is to run the daemon. */
        write_text(NULL, "io.workers: 2\n");
        assert_int_equal(chown(in_folder("kvcache.yaml", path), STRANGER, (gid_t)-1), 0);
        assert_int_equal(load_all(), 0);
        assert_true(config.io.depth == 5 && config.io.workers == 2);
}

static void a_drop_in_that_cannot_be_read_is_refused(void **state)
{
        bool is_root = geteuid() == 0;
        char path[256];
        int r, d;

        write_text("a.yaml", "io.depth: 5\n");
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(chmod(drop_in("a.yaml", path), 0), 0);
        if (is_root)
                assert_int_equal(seteuid(STRANGER), 0);
        r = load_all();
        if (is_root)
                assert_int_equal(seteuid(0), 0);
        assert_int_equal(r, -EACCES);
        assert_fault("a.yaml", ": Permission denied; the daemon's user must be able to read it");
        assert_int_equal(chmod(in_folder("kvcache.yaml.d", path), 0), 0);
        if (is_root)
                assert_int_equal(seteuid(STRANGER), 0);
        d = load_all();
        if (is_root)
                assert_int_equal(seteuid(0), 0);
        assert_int_equal(chmod(path, 0755), 0);
        assert_int_equal(d, -EACCES);
        assert_non_null(strstr(fault.text, "kvcache.yaml.d: Permission denied"));
}

static void drop_ins_have_a_size_and_a_number(void **state)
{
        _cleanup_(freep) char *text = malloc(CONFIG_MAX_FILE + 2);
        char name[32], path[256];

        memset(text, '#', CONFIG_MAX_FILE + 1);
        text[CONFIG_MAX_FILE + 1] = '\0';
        write_text("a.yaml", text);
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("a.yaml", ": the drop-ins are larger than 1024 KiB together");
        write_text("a.yaml", text + 1);
        assert_int_equal(load_all(), 0);
        write_text("b.yaml", "#");
        assert_int_equal(load_all(), -EINVAL);
        assert_fault("b.yaml", ": the drop-ins are larger than 1024 KiB together");
        unlink(drop_in("a.yaml", path));
        unlink(drop_in("b.yaml", path));

        for (unsigned i = 0; i < CONFIG_MAX_DROP_INS; i++) {
                snprintf(name, sizeof(name), "%u.yaml", i);
                write_text(name, "io.depth: 5\n");
        }
        assert_int_equal(load_all(), 0);
        write_text("one-more.yaml", "io.depth: 5\n");
        assert_int_equal(load_all(), -E2BIG);
        assert_non_null(
                strstr(fault.text, "kvcache.yaml.d: the directory has more than 64 drop-ins"));
}

static void a_name_that_is_not_text_is_refused(void **state)
{
        write_text("a\nb.yaml", "io.depth: 5\n");
        assert_int_equal(load_all(), -EINVAL);
        assert_non_null(strstr(fault.text, "the name of the drop-in \"a"));
        assert_null(strchr(fault.text, '\n'));
}

/* --- printing, and reload --- */

static void values_of_drop_ins_are_printed_with_their_place(void **state)
{
        _cleanup_(freep) char *text = NULL;

        write_text(NULL, "io:\n  depth: 2\n  workers: 2\n"
                         "tenants:\n  - {name: a, users: [root]}\n");
        write_text("50-io.yaml", "io:\n  depth: 3\ntenants:\n  - name: a\n    keys: 2000\n");
        assert_int_equal(load_all(), 0);
        text = printed(print_it);
        assert_non_null(strstr(text, "  depth: 3  # 50-io.yaml:2\n"));
        assert_non_null(strstr(text, "  workers: 2\n"));
        assert_non_null(strstr(text, "    keys: 2000  # 50-io.yaml:5\n"));
        assert_reads_back();
}

static void ignore(void *userdata, enum config_change change, const char *text)
{
}

static void a_reload_takes_over_the_places(void **state)
{
        const struct config_report report = { .say = ignore };
        _cleanup_(freep) char *text = NULL;
        struct config next;
        char path[256];

        write_text(NULL, "limits:\n  leases: 40\n  wait: 1s\nio.depth: 2\n"
                         "tenants:\n  - {name: a, users: [root]}\n");
        assert_int_equal(load_all(), 0);
        write_text("a.yaml", "limits:\n  leases: 50\n");
        write_text("b.yaml", "\nlimits.wait: 1s\nio.depth: 3\ntenants: [{name: a, keys: 2000}]\n");
        config_init(&next);
        assert_int_equal(config_load_all(&next, in_folder("kvcache.yaml", path), true,
                                         (char *[]){ NULL }, NULL, 0, say, &fault),
                         0);
        assert_int_equal(config_reload(&config, &next, &report), 2);
        config_fini(&next);
        text = printed(print_it);
        assert_non_null(strstr(text, "  leases: 50  # a.yaml:2\n"));
        assert_non_null(strstr(text, "  wait: 1s  # b.yaml:2\n"));
        assert_non_null(strstr(text, "  depth: 2\n")); /* the new depth needs a restart */
        assert_non_null(strstr(text, "    keys: 2000  # b.yaml:4\n"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(drop_ins_are_read_in_the_order_of_their_names),
                CASE(the_environment_and_options_win),
                CASE(drop_ins_need_no_file_and_no_directory),
                CASE(a_later_list_replaces_an_earlier_one),
                CASE(within_a_file_nothing_is_given_twice),
                CASE(errors_name_the_drop_in_and_the_line),
                CASE(a_check_reports_the_errors_of_all_files),
                CASE(other_names_are_left_out),
                CASE(a_link_to_a_file_is_read),
                CASE(tenants_are_merged_by_name),
                CASE(a_wrong_merged_tenant_is_an_error),
                CASE(what_is_no_regular_file_is_refused),
                CASE(a_link_that_leads_nowhere_is_refused),
                CASE(a_wrong_directory_is_refused),
                CASE(a_drop_in_that_others_may_write_is_refused),
                CASE(a_drop_in_that_cannot_be_read_is_refused),
                CASE(drop_ins_have_a_size_and_a_number),
                CASE(a_name_that_is_not_text_is_refused),
                CASE(values_of_drop_ins_are_printed_with_their_place),
                CASE(a_reload_takes_over_the_places),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
