/* SPDX-License-Identifier: Apache-2.0 */
/* Credentials for S3, from remote.credentials, a file in the AWS format ("[default]",
 * aws_access_key_id, aws_secret_access_key, aws_session_token) that is read again when it changes.
 * Without such a file they come from the environment variables that AWS's tools use. Used by one
 * thread at a time. */
#pragma once

#include <stdint.h>
#include <sys/stat.h>

struct s3_credentials {
        char *path; /* NULL: use the environment */
        char key[256], secret[256], token[4096];
        struct stat read; /* the file's state when it was read */
        uint64_t checked_ns;
};

/* Reads the credentials. Returns 0, -ENOMEM, or another -errno and a sentence about the problem
 * with the file or the environment, which contains no part of a credential. */
int s3_credentials_init(struct s3_credentials *c, const char *path, char ret_error[static 256]);
void s3_credentials_fini(struct s3_credentials *c);
/* Reads the file again if it has changed, at most once a second. If it cannot be read, the present
 * credentials stay, because another process may be replacing the file just now. */
void s3_credentials_refresh(struct s3_credentials *c, uint64_t now_ns);
