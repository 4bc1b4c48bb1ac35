/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that return wrong bytes: those of another place, old ones, swapped ones, or ones with
 * flipped bits. */
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "sim-internal.h"

/* Reads another place of some payload file, if it is long enough. */
static bool read_elsewhere(uint64_t length, uint8_t *buf)
{
        const struct file *f = sim.files[draw(sim.n_files)];
        uint64_t size = sim_size_of(f);

        if (!f->is_payload || size < length)
                return false;
        sim_read_whole(f->fd, buf, length, draw((size - length) / PAGE + 1) * PAGE);
        return true;
}

static bool read_old(const struct file *f, uint64_t offset, uint64_t length, uint8_t *buf)
{
        bool whole = draw(2) == 0;

        if (!f || offset + length > f->past_bytes)
                return false;
        for (uint64_t at = 0; at < length; at += SIM_SECTOR)
                if (whole || draw(2) == 0)
                        memcpy(buf + at, f->past + offset + at,
                               MIN((uint64_t)SIM_SECTOR, length - at));
        return true;
}

static void read_swapped(int fd, uint64_t offset, uint64_t length, uint8_t *buf)
{
        for (unsigned i = 0; i < 2 && sim.n_swapped == 2; i++)
                if (sim.swapped[i].fd == fd && sim.swapped[i].offset == offset)
                        sim_read_whole(sim.swapped[!i].fd, buf, length, sim.swapped[!i].offset);
}

static void spoil_read(const struct kio_request *req, uint8_t *buf, uint64_t length)
{
        uint64_t counts = req->crc_bytes ? MIN(req->crc_bytes, length) : length;
        uint8_t *right;

        if (sim.fault == SIM_READ_RIGHT || counts == 0)
                return;
        right = must(malloc(length));
        memcpy(right, buf, length);
        for (unsigned try = 0; try < 64 && memcmp(buf, right, counts) == 0; try++) {
                memcpy(buf, right, length);
                switch (sim.fault) {
                case SIM_READ_MISDIRECTED:
                        read_elsewhere(length, buf);
                        break;
                case SIM_READ_STALE:
                        read_old(sim_file_of(req->fd), req->offset, length, buf);
                        break;
                case SIM_READ_SWAPPED:
                        read_swapped(req->fd, req->offset, length, buf);
                        break;
                default:
                        for (uint64_t n = 1 + draw(4); n > 0; n--)
                                buf[draw(counts)] ^= (uint8_t)(1u << draw(8));
                }
        }
        if (memcmp(buf, right, counts) != 0) {
                sim.fault_hits++;
                if (sim.fault_count > 0 && --sim.fault_count == 0)
                        sim.fault = SIM_READ_RIGHT;
        }
        free(right);
}

/* Spoils a read; parts of a merged read are spoilt independently. */
void sim_spoil_reads(const struct kio_request *req, uint8_t *buf, uint64_t length)
{
        if (!req->parts) {
                spoil_read(req, buf, length);
                return;
        }
        list_for_each (req->parts, i) {
                const struct kio_request *part = kio_request_of(i);
                uint64_t of_part = MIN(part->length, length);

                spoil_read(part, buf, of_part);
                buf += of_part;
                length -= of_part;
        }
}

void sim_note_for_swap(const struct kio_request *req)
{
        if (req->parts) {
                list_for_each (req->parts, i)
                        sim_note_for_swap(kio_request_of(i));
                return;
        }
        if (sim.fault != SIM_READ_SWAPPED || req->op != KIO_READ || sim.n_swapped == 2 ||
            (sim.n_swapped == 1 && sim.swapped[0].fd == req->fd &&
             sim.swapped[0].offset == req->offset))
                return;
        sim.swapped[sim.n_swapped++] = (struct range){ .fd = req->fd, .offset = req->offset };
}

/* Replaces a few pages of a read by other or old ones. */
void sim_spoil_pages(uint8_t *buf, uint64_t bytes)
{
        uint64_t pages = bytes / PAGE;
        uint8_t page[PAGE];

        if (pages < 2)
                return;
        for (uint64_t n = 1 + draw(6); n > 0; n--) {
                uint64_t a = draw(pages), b = draw(pages);

                if (memcmp(buf + a * PAGE, buf + b * PAGE, PAGE) == 0)
                        continue;
                memcpy(page, buf + a * PAGE, PAGE);
                memcpy(buf + a * PAGE, buf + b * PAGE, PAGE);
                if (draw(2) == 0)
                        memcpy(buf + b * PAGE, page, PAGE);
                sim.fault_hits++;
        }
}

void sim_set_reads(enum sim_read_fault fault, uint64_t count)
{
        lock();
        sim.fault = fault;
        sim.fault_count = count;
        sim.fault_hits = 0;
        sim.n_swapped = 0;
        unlock();
}

uint64_t sim_read_faults(void)
{
        uint64_t n;

        lock();
        n = sim.fault_hits;
        unlock();
        return n;
}

void sim_set_start_reads(const char *name)
{
        lock();
        snprintf(sim.start_name, sizeof(sim.start_name), "%s", name ? name : "");
        sim.fault_hits = 0;
        unlock();
}
