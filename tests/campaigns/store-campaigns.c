/* SPDX-License-Identifier: Apache-2.0 */
/* Campaigns against the store: store-campaigns NAME [--count N] [--seed S]. The head of each file
 * describes its campaign. Exits with 0 if every run was right; otherwise with 1, and prints the
 * seed that reproduces the failure. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "campaign.h"
#include "checked.h"

static const struct {
        const char *name;
        int (*run)(uint64_t count, uint64_t *seed);
        uint64_t count; /* default, which CI runs */
        bool real_io;   /* tests io.c, or a real disk: store-campaigns-threads */
} campaigns[] = {
        { "powerloss", campaign_powerloss, 10000 },
        { "crashpoint", campaign_crashpoint, 4000 },
        { "misdirect", campaign_misdirect, 1000 },
        { "bitflip", campaign_bitflip, 10000 },
        { "succession", campaign_succession, 4000 },
        { "reconfigure", campaign_reconfigure, 4000 },
        { "nth-failure", campaign_nth_failure, 500, true },
        { "succession-disk", campaign_succession_disk, 240, true },
};

static uint64_t number(const char *text)
{
        char *end;
        unsigned long long n;

        errno = 0;
        n = text ? strtoull(text, &end, 10) : 0;
        if (!text || errno != 0 || end == text || *end != '\0') {
                fprintf(stderr, "store-campaigns: a number is missing or not one\n");
                exit(2);
        }
        return n;
}

int main(int argc, char **argv)
{
        uint64_t count = 0, seed = 1;
        int which = -1;

        for (int i = 1; i < argc; i++) {
                if (strcmp(argv[i], "--count") == 0) {
                        count = number(argv[++i]);
                } else if (strcmp(argv[i], "--seed") == 0) {
                        seed = number(argv[++i]);
                } else {
                        for (unsigned j = 0; j < ARRAY_SIZE(campaigns); j++)
                                if (strcmp(argv[i], campaigns[j].name) == 0)
                                        which = (int)j;
                        if (which < 0)
                                break;
                }
        }
        if (which < 0) {
                fprintf(stderr, "usage: store-campaigns NAME [--count N] [--seed S]\nnames:");
                for (unsigned j = 0; j < ARRAY_SIZE(campaigns); j++)
                        fprintf(stderr, " %s", campaigns[j].name);
                fprintf(stderr, "\n");
                return 2;
        }
        if (campaigns[which].real_io && !REAL_IO) {
                fprintf(stderr, "store-campaigns: %s runs in store-campaigns-threads\n",
                        campaigns[which].name);
                return 2;
        }
        setvbuf(stdout, NULL, _IOLBF, 0);
        campaign_begin(campaigns[which].name, &seed);
        return campaigns[which].run(count ? count : campaigns[which].count, &seed);
}
