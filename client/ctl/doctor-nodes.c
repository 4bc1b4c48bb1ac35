/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the memory nodes (NUMA) that the daemon may use with those of the host's GPUs. A copy
 * between a GPU and the memory of another node crosses the link between the sockets.
 *
 * The check is about the nodes that the daemon's cpuset and the host allow. Other processes
 * cannot read the memory policy of the daemon, such as NUMAPolicy= of its unit; the remedy names
 * that setting. No check is added on hosts with one node, without a GPU of the driver "nvidia",
 * or without known nodes. */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "doctor.h"
#include "host.h"

enum { NODES = 64 };

/* Reads a list such as "0,2-3" up to the end of its line, as a set of nodes below NODES. Returns 0
 * if it is malformed or empty. */
static uint64_t nodes_in(const char *list)
{
        uint64_t nodes = 0;

        for (;;) {
                char *end;
                unsigned long first = strtoul(list, &end, 10), last = first;

                if (end == list || *list < '0' || *list > '9')
                        return 0;
                if (*end == '-') {
                        list = end + 1;
                        last = strtoul(list, &end, 10);
                        if (end == list || last < first)
                                return 0;
                }
                for (unsigned long node = first; node <= last && node < NODES; node++)
                        nodes |= UINT64_C(1) << node;
                if (*end != ',')
                        return *end == '\0' || *end == '\n' ? nodes : 0;
                list = end + 1;
        }
}

static uint64_t online_nodes(const char *root)
{
        char path[PATH_MAX], text[HOST_FILE_MOST + 1];

        snprintf(path, sizeof(path), "%s/sys/devices/system/node/online", root);
        return host_read_file(path, text) < 0 ? 0 : nodes_in(text);
}

/* Returns the nodes on which the daemon's process may have memory, or 0 if they cannot be read. */
static uint64_t nodes_of_daemon(const char *root, uint64_t pid)
{
        char text[HOST_FILE_MOST + 1];
        const char *line;

        if (!doctor_read_process(root, pid, "status", text) ||
            !(line = strstr(text, "\nMems_allowed_list:")))
                return 0;
        line += strlen("\nMems_allowed_list:");
        return nodes_in(line + strspn(line, " \t"));
}

/* Returns the nodes of the GPUs, without those whose node is not known. */
static uint64_t nodes_of_gpus(const char *root)
{
        char path[PATH_MAX], text[HOST_FILE_MOST + 1];
        uint64_t nodes = 0;
        struct dirent *e;
        DIR *drivers;

        snprintf(path, sizeof(path), "%s/sys/bus/pci/drivers/nvidia", root);
        drivers = opendir(path);
        while (drivers && (e = readdir(drivers))) {
                int length =
                        snprintf(path, sizeof(path), "%s/sys/bus/pci/drivers/nvidia/%s/numa_node",
                                 root, e->d_name);

                if (e->d_name[0] != '.' && length < (int)sizeof(path) &&
                    host_read_file(path, text) >= 0)
                        nodes |= nodes_in(text); /* "-1", for an unknown node, adds no node */
        }
        if (drivers)
                closedir(drivers);
        return nodes;
}

static const char *list_of(uint64_t nodes, char ret[static 256])
{
        size_t n = 0;

        ret[0] = '\0';
        for (unsigned node = 0; node < NODES; node++)
                if (nodes >> node & 1)
                        n += (size_t)snprintf(ret + n, 256 - n, "%s%u", n > 0 ? "," : "", node);
        return ret;
}

void doctor_check_nodes(const char *root, const cJSON *status, cJSON *checks)
{
        uint64_t online = online_nodes(root), gpus = nodes_of_gpus(root), daemon;
        char of_gpus[256], of_daemon[256];

        if ((online & (online - 1)) == 0 || gpus == 0)
                return;
        daemon = nodes_of_daemon(root, answer_count_of(status, "pid"));
        if (daemon == 0) {
                doctor_add(checks, DOCTOR_UNKNOWN, "memory nodes",
                           "run kvcachectl doctor where the daemon runs",
                           "the memory nodes of the daemon's process cannot be read");
                return;
        }
        list_of(gpus, of_gpus);
        list_of(daemon, of_daemon);
        doctor_add(checks, gpus & ~daemon ? DOCTOR_WARNING : DOCTOR_OK, "memory nodes",
                   "give the daemon memory of the GPUs' nodes: AllowedMemoryNodes= of its unit or "
                   "the container's cpuset; with several nodes NUMAPolicy=interleave divides the "
                   "pool among them",
                   "GPUs are at memory nodes %s, and the daemon may use memory of nodes %s",
                   of_gpus, of_daemon);
}
