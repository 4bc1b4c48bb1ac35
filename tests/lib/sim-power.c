/* SPDX-License-Identifier: Apache-2.0 */
/* The possible ends of a process or a disk: power loss and kill. Uncertain changes are decided at
 * random. */
#include <fcntl.h>
#include <unistd.h>

#include "checked.h"
#include "sim-internal.h"

void sim_die_locked(void)
{
        if (sim.dead)
                return;
        /* Writes in flight may have reached the disk, in parts. */
        for (struct waiting *w = sim.held; w; w = w->next) {
                const struct kio_request *req = w->req;
                struct file *f = req->op == KIO_WRITE ? sim_file_of(req->fd) : NULL;

                if (f && req->length > req->progress) {
                        uint64_t left = req->length - req->progress;
                        uint8_t *whole = must(malloc(left));

                        sim_gather(req, whole, false);
                        sim_record_add(f, req->offset + req->progress, left, whole);
                        free(whole);
                }
        }
        sim.dead = true;
        while (sim.n_held > 0)
                sim_execute_held(0);
}

void sim_die(void)
{
        lock();
        sim_die_locked();
        unlock();
}

void sim_die_after(uint64_t changes)
{
        lock();
        sim.die_after = changes;
        unlock();
}

bool sim_is_dead(void)
{
        bool dead;

        lock();
        dead = sim.dead;
        unlock();
        return dead;
}

/* The treatment of uncertain changes, chosen once per loss. */
enum luck {
        LUCK_NONE,     /* everything is lost */
        LUCK_ALL,      /* everything remains */
        LUCK_SECTORS,  /* each sector with probability 1/2 */
        LUCK_RECORDS,  /* each write as a whole */
        LUCK_ORDER,    /* everything up to some moment */
        LUCK_FILES,    /* each file as a whole */
        LUCK_ONE_LESS, /* all but one write of each file */
        LUCK_MIXED,    /* each write with a probability of its own */
        LUCK_END,
};

struct loss {
        enum luck luck;
        uint64_t moment;
        uint64_t salt;
};

static bool kept_by(uint64_t salt, uint64_t what)
{
        uint64_t state = salt ^ what * UINT64_C(0xd6e8feb86659fd93);

        return sim_draw(&state) & 1;
}

static void redo(const struct loss *loss, const struct file *f, unsigned file_number)
{
        uint64_t spared = f->n_records ? draw(f->n_records) : 0;

        for (unsigned i = 0; i < f->n_records; i++) {
                const struct record *r = &f->records[i];
                unsigned share = 4; /* eighths */

                switch (loss->luck) {
                case LUCK_NONE:
                        share = 0;
                        break;
                case LUCK_ALL:
                        share = 8;
                        break;
                case LUCK_RECORDS:
                        share = draw(2) ? 8 : 0;
                        break;
                case LUCK_ORDER:
                        share = r->serial <= loss->moment ? 8 : 0;
                        break;
                case LUCK_FILES:
                        share = kept_by(loss->salt, file_number) ? 8 : 0;
                        break;
                case LUCK_ONE_LESS:
                        share = i == spared ? (unsigned)draw(8) : 8;
                        break;
                case LUCK_MIXED:
                        share = (unsigned)draw(9);
                        break;
                default:
                        break;
                }
                /* Sectors of the disk rather than of the write. */
                for (uint64_t at = 0; share > 0 && at < r->length;) {
                        uint64_t n =
                                share == 8 ? r->length : SIM_SECTOR - (r->offset + at) % SIM_SECTOR;

                        n = MIN(n, r->length - at);
                        if (share == 8 || draw(8) < share)
                                sim_write_whole(f->fd, r->new + at, n, r->offset + at);
                        at += n;
                }
        }
}

static uint64_t settle_size(const struct loss *loss, uint64_t stable, uint64_t now)
{
        switch (loss->luck) {
        case LUCK_NONE:
                return stable;
        case LUCK_ALL:
                return now;
        default:
                if (now <= stable || draw(2) == 0)
                        return draw(2) ? stable : now;
                return stable + draw(now - stable + 1) / SIM_SECTOR * SIM_SECTOR;
        }
}

static struct file *settle_name(const struct loss *loss, const struct name *n, bool in_order)
{
        struct file *f = n->changes[0].file;

        for (unsigned i = 1; i < n->n; i++) {
                uint64_t serial = n->changes[i].serial;
                bool kept = loss->luck == LUCK_ALL ||
                            (loss->luck != LUCK_NONE &&
                             (in_order ? serial <= loss->moment : kept_by(loss->salt, serial)));

                if (kept)
                        f = n->changes[i].file;
        }
        return f;
}

static void copy_to(int to, const struct file *f)
{
        uint64_t bytes = sim_size_of(f);
        void *buf = must(malloc(bytes + 1));
        int r = __real_ftruncate64(to, (off_t)bytes);

        assert(r == 0);
        sim_read_whole(f->fd, buf, bytes, 0);
        sim_write_whole(to, buf, bytes, 0);
        free(buf);
}

int sim_power_loss(void)
{
        struct loss loss;
        bool in_order;
        int r;

        lock();
        assert(sim.active && !sim.held);
        loss = (struct loss){ .luck = (enum luck)draw(LUCK_END),
                              .moment = sim.serial - MIN(draw(64), sim.serial - 1),
                              .salt = sim_draw(&sim.random) };
        in_order = draw(2) == 0;
        for (unsigned i = 0; i < sim.n_files; i++) {
                struct file *f = sim.files[i];
                uint64_t now = sim_size_of(f), size;

                if (f->n_records == 0 && now == f->stable_size)
                        continue;
                for (unsigned j = f->n_records; j-- > 0;)
                        if (f->records[j].old)
                                sim_write_whole(f->fd, f->records[j].old, f->records[j].length,
                                                f->records[j].offset);
                redo(&loss, f, i);
                now = MAX(now, sim_size_of(f));
                size = settle_size(&loss, f->stable_size, now);
                r = __real_ftruncate64(f->fd, (off_t)size);
                assert(r == 0);
        }
        for (unsigned i = 0; i < sim.n_names; i++) {
                const struct name *n = sim.names[i];
                struct file *f = settle_name(&loss, n, in_order);

                if (f == sim_name_now(n))
                        continue;
                __real_unlinkat(sim.dirs[n->dir].fd, n->name, 0);
                if (f) {
                        int fd = __real_openat64(sim.dirs[n->dir].fd, n->name,
                                                 O_RDWR | O_CREAT | O_CLOEXEC, 0600);

                        assert(fd >= 0);
                        copy_to(fd, f);
                        close(fd);
                }
        }
        sim_forget_all();
        sim.dead = false;
        sim.die_after = 0;
        r = sim_take_stock();
        unlock();
        return r;
}

void sim_end_process(void)
{
        lock();
        assert(sim.active && !sim.held);
        sim.dead = false;
        sim.die_after = 0;
        sim.watch = NULL;
        for (unsigned i = 0; i < sim.n_files; i++) {
                struct file *f = sim.files[i];
                unsigned n = f->n_records, torn = 0;
                struct record *records = must(calloc(n + 1, sizeof(*records)));

                /* Writes in flight are the last; each remains, remains in part, or is lost. */
                for (unsigned k = n; k-- > 0 && !f->records[k].old;)
                        records[torn++] = f->records[--f->n_records];
                while (torn-- > 0) {
                        const struct record *r = &records[torn];

                        if (draw(3) == 0)
                                sim_file_write(f, r->new, r->length, r->offset);
                        else if (draw(2))
                                sim_file_tear(f, r->new, r->length, r->offset);
                        free(r->new);
                }
                free(records);
        }
        unlock();
}

bool sim_has_dropped(void)
{
        bool any = false;

        lock();
        for (unsigned i = 0; i < sim.n_files; i++)
                for (unsigned j = 0; j < sim.files[i]->n_records; j++)
                        any = any || sim.files[i]->records[j].dropped;
        unlock();
        return any;
}

int sim_kill(void)
{
        int r;

        lock();
        assert(sim.active && !sim.held);
        for (unsigned i = 0; i < sim.n_files; i++) {
                struct file *f = sim.files[i];
                struct loss loss = { .luck = draw(3) == 0   ? LUCK_NONE
                                             : draw(2) == 0 ? LUCK_ALL
                                                            : LUCK_SECTORS };
                unsigned n = 0;

                for (unsigned j = 0; j < f->n_records; j++) {
                        if (f->records[j].old) {
                                free(f->records[j].old);
                                free(f->records[j].new);
                        } else {
                                f->records[n++] = f->records[j];
                        }
                }
                f->n_records = n;
                redo(&loss, f, i);
        }
        sim_forget_all();
        sim.dead = false;
        sim.die_after = 0;
        sim.watch = NULL;
        r = sim_take_stock();
        unlock();
        return r;
}
