#include "workers.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;
    return (x > y) - (x < y);
}

void nns_ocl_list_threads(nns_ocl_threads *threads) {
    threads->count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (!folder) return;
    for (struct dirent *entry; (entry = readdir(folder)) && threads->count < NNS_OCL_MOST_WORKERS;) {
        const long number = strtol(entry->d_name, NULL, 10);
        if (number > 0) threads->ids[threads->count++] = (pid_t)number;
    }
    closedir(folder);
    qsort(threads->ids, (size_t)threads->count, sizeof *threads->ids, ascending);
}

void nns_ocl_new_threads(nns_ocl_threads *threads, const nns_ocl_threads *before) {
    int32_t kept = 0;
    for (int32_t i = 0; i < threads->count; i++)
        if (!bsearch(&threads->ids[i], before->ids, (size_t)before->count, sizeof *before->ids, ascending))
            threads->ids[kept++] = threads->ids[i];
    threads->count = kept;
}

void nns_ocl_bind_thread(pid_t thread, const int32_t *cores, int32_t count) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int32_t i = 0; i < count; i++) CPU_SET((size_t)cores[i], &set);
    sched_setaffinity(thread, sizeof set, &set); /* fails for a thread that has ended, or cores that are gone: it stays */
}
