#include <stdlib.h>

#include "host.h"

enum { HANDLES = 2 }; /* of an image: the part of a buffer, the image */

static int64_t count_images(const nns_ocl_host *host) {
    int64_t count = 0;
    for (int64_t i = 0; i < host->plan->n_launches; i++)
        count += __builtin_popcountll((uint64_t)host->plan->programs[host->plan->launches[i].program].images);
    return count;
}

bool nns_ocl_expect_images(nns_ocl_host *host) {
    host->images = calloc((size_t)(HANDLES * count_images(host) + 1), sizeof *host->images);
    return host->images != NULL;
}

void nns_ocl_free_images(nns_ocl_host *host) {
    while (host->n_images > 0)
        if (host->images[--host->n_images]) nns_ocl.ReleaseMemObject(host->images[host->n_images]);
}

/* Makes the part of a buffer that holds pixels, which begins where the device lets it. */
static int32_t make_part(const nns_ocl_port *port, const nns_ocl_pixels *pixels, ocl_handle *part, int64_t *first,
                         nns_report *report) {
    ocl_int code = 0;
    *first = pixels->offset / port->device->part_alignment * port->device->part_alignment;
    const ocl_part place = {(size_t)*first, (size_t)(pixels->offset - *first + pixels->bytes)};
    *part = nns_ocl.CreateSubBuffer(pixels->buffer, OCL_MEM_READ_ONLY, OCL_BUFFER_CREATE_TYPE_REGION, &place, &code);
    return *part ? NNS_OK : nns_ocl_fail(port->device, code, report, "makes no part of a buffer for an image");
}

int32_t nns_ocl_make_image(nns_ocl_host *host, const nns_ocl_port *port, const nns_ocl_pixels *pixels,
                           nns_ocl_argument *argument, nns_report *report) {
    const int64_t pixel = NNS_OCL_PIXEL_NUMBERS * pixels->element;
    const bool whole = pixels->buffer_bytes / pixel <= port->device->image_buffer;
    const int64_t bytes = whole ? pixels->buffer_bytes : pixels->bytes;
    ocl_handle *handles = &host->images[host->n_images];
    int64_t first = 0;
    ocl_int code = 0;
    if (!port->device->image_buffer)
        return nns_fail(report, NNS_EOPENCL, "OpenCL device %d (%.40s) has no images; compile the model for this device",
                        (int)port->device->index, port->device->name);
    host->n_images += HANDLES;
    if (!whole) TRY(make_part(port, pixels, &handles[0], &first, report));
    const ocl_image_format format = {OCL_RGBA, pixels->element == sizeof(float) ? OCL_FLOAT : OCL_HALF_FLOAT};
    const ocl_image_desc image = {
        .type = OCL_MEM_OBJECT_IMAGE1D_BUFFER,
        .width = (size_t)((whole ? bytes : pixels->offset - first + bytes) / pixel),
        .buffer = whole ? pixels->buffer : handles[0],
    };
    handles[1] = nns_ocl.CreateImage(port->context, OCL_MEM_READ_ONLY, &format, &image, NULL, &code);
    *argument = (nns_ocl_argument){handles[1], (pixels->offset - first) / pixels->element};
    return handles[1] ? NNS_OK
                      : nns_ocl_fail(port->device, code, report, "makes no image of %lld bytes", (long long)bytes);
}
