/* SPDX-License-Identifier: Apache-2.0
 * Work that nobody waits for: a few threads, started when there is some and gone when there is
 * none. */
#ifndef MICA_BASE_SYSTEM_BACKGROUND_H
#define MICA_BASE_SYSTEM_BACKGROUND_H

#include <stdbool.h>

typedef struct mica_job mica_job;
/* The first member of what an owner allocates with mica_alloc for a job. Its memory is the owner's,
 * but from mica_job_start on until the work is done, or given up with mica_job_leave. */
struct mica_job {
    void (*work)(mica_job *job); /* on a thread of its own */
    /* Then one of these. `done`: hands over what was made, quickly, for others wait meanwhile.
     * `discard`: the owner has left; gives everything back but the job's memory. */
    void (*done)(mica_job *job);
    void (*discard)(mica_job *job);
    /* of background.c */
    mica_job *next;
    const void *heir;
    int state;
};

/* False: there is no thread for it, or the process ends. */
bool mica_job_start(mica_job *job);
/* The owner goes. True: the job is over, or will never begin, and its memory is the owner's again.
 * False: it is discarded when its work is done; mica_jobs_wait(heir) waits for that. */
bool mica_job_leave(mica_job *job, const void *heir);
/* Waits until it is done; false: it never will be, since it was dropped at the process's end, or
 * started before a fork. */
bool mica_job_wait(mica_job *job);
void mica_jobs_wait(const void *heir);

#endif
