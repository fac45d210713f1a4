#include <stdlib.h>

#include "host.h"

static int32_t fail_count(const char *name, const char *what, int64_t takes, int64_t given, nns_report *report) {
    return nns_fail(report, NNS_EINVALID,
                    "OpenCL kernel %.60s takes %lld %s and the model gives %lld; compile the model again", name,
                    (long long)takes, what, (long long)given);
}

/* The integer with the same 32 bits as a signed or unsigned one. */
static int32_t bits_of(int64_t number) { return (int32_t)(uint32_t)(uint64_t)number; }

static int32_t set_arguments(const nns_ocl_port *port, ocl_handle kernel, const char *name,
                             const nns_ocl_argument *memory, int64_t count, const int64_t *integers, int64_t n_integers,
                             nns_report *report) {
    ocl_int code = 0;
    for (int64_t i = 0; i < count && !code; i++)
        code = nns_ocl.SetKernelArg(kernel, (ocl_uint)i, sizeof memory[i].buffer, &memory[i].buffer);
    const int64_t n_words = count + n_integers;
    int32_t *words = code ? NULL : malloc((size_t)(n_words ? n_words : 1) * sizeof *words);
    if (words) {
        for (int64_t i = 0; i < count; i++) words[i] = (int32_t)memory[i].offset;
        for (int64_t i = 0; i < n_integers; i++) words[count + i] = bits_of(integers[i]);
        code = nns_ocl.SetKernelArg(kernel, (ocl_uint)count, (size_t)n_words * sizeof *words, words);
        free(words);
    } else if (!code) {
        return nns_fail(report, NNS_EMEMORY, "no memory for a model");
    }
    return code ? nns_ocl_fail(port->device, code, report, "refused the arguments of kernel %.60s", name) : NNS_OK;
}

int32_t nns_ocl_make_kernel(const nns_ocl_port *port, ocl_handle program, const nns_ocl_source *source,
                            const char *name, const nns_ocl_argument *memory, int64_t count, const int64_t *integers,
                            int64_t n_integers, ocl_handle *kernel, nns_report *report) {
    const int64_t wanted = nns_ocl_kernel_integers(source->text, name);
    if (wanted >= 0 && wanted != count + n_integers)
        return fail_count(name, "integers", wanted, count + n_integers, report);
    ocl_int code = 0;
    *kernel = nns_ocl.CreateKernel(program, name, &code);
    if (!*kernel) return nns_ocl_fail(port->device, code, report, "has no kernel %.60s of %.40s", name, source->name);
    ocl_uint takes = 0;
    code = nns_ocl.GetKernelInfo(*kernel, OCL_KERNEL_NUM_ARGS, sizeof takes, &takes, NULL);
    if (code) return nns_ocl_fail(port->device, code, report, "does not describe kernel %.60s", name);
    if (takes != count + 1) return fail_count(name, "arguments", takes, count + 1, report);
    return set_arguments(port, *kernel, name, memory, count, integers, n_integers, report);
}

static ocl_handle memory_of(const nns_ocl_port *port, int64_t number) {
    if (number == NNS_OCL_ABSENT) return NULL;
    if (number == NNS_OCL_CONSTANTS) return port->constants.buffer;
    if (number == NNS_OCL_ARENA) return port->arena.buffer;
    return port->slots[number - NNS_OCL_FIRST_SLOT - port->plan->first_slot].memory.buffer;
}

/* Bytes of a memory that may be read as an image: of constants alone. */
static int64_t bytes_of(const nns_ocl_port *port, int64_t number) {
    return number == NNS_OCL_CONSTANTS ? port->plan->constant_bytes : 0;
}

static int32_t make_launch(nns_ocl_host *host, const nns_ocl_launch *plan, nns_launch *launch, nns_report *report) {
    nns_ocl_argument memory[NNS_MAX_READS + NNS_MAX_WRITES];
    const nns_ocl_program *program = &host->plan->programs[plan->program];
    const nns_ocl_port *port = &host->ports[program->queue];
    for (int64_t i = 0; i < plan->n_operands; i++) {
        const int64_t *operand = plan->operands + i * NNS_OCL_OPERAND_WORDS;
        memory[i] = (nns_ocl_argument){memory_of(port, operand[0]), operand[1] / operand[3]};
        const nns_ocl_pixels pixels = {memory[i].buffer, bytes_of(port, operand[0]), operand[1], operand[2], operand[3]};
        if (program->images >> i & 1) TRY(nns_ocl_make_image(host, port, &pixels, &memory[i], report));
    }
    launch->dimensions = plan->dimensions;
    for (int32_t d = 0; d < plan->dimensions; d++) {
        launch->global[d] = (size_t)plan->global[d];
        launch->local[d] = (size_t)plan->local[d];
    }
    return nns_ocl_make_kernel(port, host->programs[plan->program], &host->plan->sources[program->source], plan->kernel,
                               memory, plan->n_operands, plan->integers, plan->n_integers, &launch->kernel, report);
}

int32_t nns_ocl_make_launches(nns_ocl_host *host, nns_report *report) {
    for (int64_t i = 0; i < host->plan->n_launches; i++)
        TRY(make_launch(host, &host->plan->launches[i], &host->launches[i], report));
    return NNS_OK;
}
