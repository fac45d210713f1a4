/* To preload: no thread can be moved to another core while `cores_lost` is set, as after a change of the process's
 * set of cores. */
#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

int cores_lost;

int sched_setaffinity(pid_t thread, size_t size, const cpu_set_t *cores) {
    if (!cores_lost) return (int)syscall(SYS_sched_setaffinity, thread, size, cores);
    errno = EINVAL;
    return -1;
}
