#include "opencl_list.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stop.h"
#include "threads/threads.h"

static void list_here(const nns_opencl_options *options, nns_opencl_list *list) {
    nns_report report = {0};
    const nns_ocl_setup setup = {.library = options->library, .cache = options->cache};
    if (nns_ocl_load_drivers(&setup, &report) == NNS_OK) list->count = nns_ocl_device_count();
    if (list->count > NNS_MOST_LISTED_DEVICES) list->count = NNS_MOST_LISTED_DEVICES;
    for (int32_t i = 0; i < list->count; i++) {
        list->devices[i] = *nns_ocl_device_at(i);
        list->devices[i].id = NULL;
    }
    nns_answer(&report, list->error, sizeof list->error);
    if (!list->count && !list->error[0])
        snprintf(list->error, sizeof list->error, "the OpenCL drivers have no device");
}

/* The process that lists. What drivers print is dropped. */
_Noreturn static void be_child(const nns_opencl_options *options, int to) {
    static nns_opencl_list list;
    FILE *null = fopen("/dev/null", "we");
    if (null) {
        dup2(fileno(null), STDOUT_FILENO);
        dup2(fileno(null), STDERR_FILENO);
    }
    list_here(options, &list);
    size_t done = 0;
    for (ssize_t wrote; done < sizeof list; done += (size_t)wrote)
        if ((wrote = write(to, (const char *)&list + done, sizeof list - done)) <= 0) break;
    _exit(done < sizeof list);
}

/* Reads the list, until `end` at most. Returns whether it is whole. */
static bool receive(int from, int64_t end, nns_opencl_list *list) {
    size_t done = 0;
    while (done < sizeof *list) {
        struct pollfd ready = {.fd = from, .events = POLLIN};
        const int64_t left = (end - nns_now()) / 1000000;
        if (left <= 0 || (poll(&ready, 1, (int)left) < 0 && errno != EINTR)) return false;
        if (!ready.revents) continue;
        const ssize_t got = read(from, (char *)list + done, sizeof *list - done);
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

/* Waits until a child has ended, whose end of the pipe closes before; kills it at `end`. Returns whether it was late. */
static bool is_late(pid_t child, int64_t end, int *status) {
    while (!waitpid(child, status, WNOHANG)) {
        if (nns_now() >= end) {
            kill(child, SIGKILL);
            waitpid(child, status, 0);
            return true;
        }
        nns_sleep(0.001);
    }
    return false;
}

static void report_end(pid_t child, int64_t end, nns_opencl_list *list) {
    int status = 0;
    *list = (nns_opencl_list){0};
    if (is_late(child, end, &status))
        snprintf(list->error, sizeof list->error, "the OpenCL drivers do not answer; remove the one that hangs");
    else
        snprintf(list->error, sizeof list->error, "an OpenCL driver ended the process that listed devices (%s %d); remove it",
                 WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

void nns_list_opencl(const nns_opencl_options *options, nns_opencl_list *list) {
    enum { MOST_SECONDS = 30 };
    const int64_t end = nns_now() + (int64_t)MOST_SECONDS * 1000000000;
    int ends[2];
    *list = (nns_opencl_list){0};
    if (pipe(ends)) {
        snprintf(list->error, sizeof list->error, "the OpenCL devices cannot be listed: %s", strerror(errno));
        return;
    }
    const pid_t child = fork();
    if (!child) {
        close(ends[0]);
        be_child(options, ends[1]);
    }
    close(ends[1]);
    if (child < 0)
        snprintf(list->error, sizeof list->error, "the OpenCL devices cannot be listed: %s", strerror(errno));
    else if (!receive(ends[0], end, list))
        report_end(child, end, list);
    else
        waitpid(child, NULL, 0);
    close(ends[0]);
}

void nns_opencl_list_write(const nns_opencl_list *list, nns_json *json) {
    nns_json_array(json, "opencl");
    for (int32_t i = 0; i < list->count; i++) {
        const nns_ocl_device *device = &list->devices[i];
        nns_json_object(json, NULL);
        nns_json_text(json, "platform", device->platform);
        nns_json_text(json, "name", device->name);
        nns_json_text(json, "version", device->version);
        nns_json_text(json, "driver", device->driver);
        nns_json_bool(json, "on_cpu", device->on_cpu);
        nns_json_bool(json, "unified", device->unified);
        nns_json_bool(json, "fine_grained", device->fine_grained);
        nns_json_bool(json, "scalar", device->scalar);
        nns_json_integer(json, "compute_units", device->compute_units);
        nns_json_integer(json, "local_memory", device->local_memory);
        nns_json_integer(json, "group_items", device->group_items);
        nns_json_text(json, "vendor", device->vendor);
        nns_json_integer(json, "wave", device->wave);
        nns_json_bool(json, "half_arithmetic", device->half_arithmetic);
        nns_json_text(json, "int8_dot", device->int8_dot_accelerated ? "accelerated" : device->int8_dot ? "emulated" : "");
        nns_json_integer(json, "image_width", device->image_width);
        nns_json_integer(json, "image_height", device->image_height);
        nns_json_integer(json, "image_buffer", device->image_buffer);
        nns_json_integer(json, "allocation_bytes", device->allocation_bytes);
        nns_json_integer(json, "address_bits", device->address_bits);
        nns_json_end_object(json);
    }
    nns_json_end_array(json);
    nns_json_text(json, "opencl_error", list->error[0] ? list->error : NULL);
}
