/* SPDX-License-Identifier: Apache-2.0 */
/* Keys for S3: from remote.credentials, a file in the AWS format ("[default]", aws_access_key_id,
 * aws_secret_access_key, aws_session_token), which is read again when it has changed; without one,
 * from the environment variables that AWS's tools use. Read on one thread at a time. */
#pragma once

#include <stdint.h>
#include <sys/stat.h>

struct s3_credentials {
        char *path; /* NULL: the environment */
        char key[256], secret[256], token[4096];
        struct stat read; /* the file as it was then */
        uint64_t checked_ns;
};

/* 0; -errno, and what is wrong with the file, without anything that is in it. */
int s3_credentials_init(struct s3_credentials *c, const char *path, char ret_error[static 256]);
void s3_credentials_fini(struct s3_credentials *c);
/* Reads the file again if it has changed, at most once a second. What cannot be read leaves the
 * keys that there are: a file may be replaced at any moment. */
void s3_credentials_refresh(struct s3_credentials *c, uint64_t now_ns);
