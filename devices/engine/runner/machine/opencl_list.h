/* The OpenCL devices of this machine. */
#ifndef NNS_OPENCL_LIST_H
#define NNS_OPENCL_LIST_H

#include "answer/json.h"
#include "drivers/drivers.h"
#include "nnstretch.h"

enum { NNS_MOST_LISTED_DEVICES = 32, NNS_LIST_ERROR = 256 };

typedef struct {
    nns_ocl_device devices[NNS_MOST_LISTED_DEVICES]; /* without their handles */
    int32_t count;
    char error[NNS_LIST_ERROR]; /* why there are none; "" if there are some */
} nns_opencl_list;

/* Lists the devices in a process of its own, so that a driver that crashes or hangs does not end the runner. To be called
 * before this process starts threads or loads drivers. */
void nns_list_opencl(const nns_opencl_options *options, nns_opencl_list *list);

/* Writes the members "opencl" and "opencl_error". */
void nns_opencl_list_write(const nns_opencl_list *list, nns_json *json);

#endif
