/* Nothing in an image is trusted: every count is compared with the words that are left before memory is
 * allocated for it, and every number with the range that later code relies on. */
#include "program.h"

#include <stdlib.h>

#include "registry.h"
#include "reader.h"

typedef struct {
    nns_reader input;
    const nns_bindings *bindings;
    nns_program *program;
} parser;

#define INVALID(r, ...) nns_fail((r)->input.report, NNS_EINVALID, __VA_ARGS__)

/* Sets `pointer` to a zeroed array. */
#define MAKE(r, pointer, count) \
    if (!((pointer) = nns_new_array((r)->input.report, count, sizeof *(pointer)))) return (r)->input.report->status

static int32_t parse_header(parser *r) {
    nns_program *program = r->program;
    int64_t magic = 0, abi = 0;
    if (r->input.end - r->input.at < 9) return INVALID(r, "the program is shorter than its header");
    magic = *r->input.at++;
    abi = *r->input.at++;
    if (magic != NNS_MAGIC) return INVALID(r, "this is not a program: its first word is %lld", (long long)magic);
    if (abi != NNS_ABI)
        return INVALID(r, "the program is for engine interface %lld, this is %d", (long long)abi, NNS_ABI);
    const int64_t words = r->input.end - r->input.at;
    TRY(nns_read(&r->input, &program->n_queues, "the number of queues", 1, NNS_MAX_QUEUES));
    TRY(nns_read(&r->input, &program->n_regions, "the number of regions", 0, words));
    TRY(nns_read(&r->input, &program->n_buffers, "the number of buffers", 0, words));
    TRY(nns_read(&r->input, &program->n_steps, "the number of steps", 0, nns_min_int(words, INT32_MAX)));
    TRY(nns_read(&r->input, &program->n_subgraphs, "the number of sub-graphs", 0, words));
    TRY(nns_read(&r->input, &program->n_inputs, "the number of inputs", 0, words));
    TRY(nns_read(&r->input, &program->n_outputs, "the number of outputs", 0, words));
    return NNS_OK;
}

static int32_t parse_queues(parser *r) {
    nns_program *program = r->program;
    MAKE(r, program->queues, program->n_queues);
    for (int64_t i = 0; i < program->n_queues; i++) {
        nns_queue *queue = &program->queues[i];
        int64_t kind = 0, n_cores = 0, n_ratios = 0;
        const int64_t *cores = NULL;
        TRY(nns_read(&r->input, &kind, "the kind of a queue", NNS_QUEUE_HOST, NNS_QUEUE_CALL));
        if (i == 0 && kind != NNS_QUEUE_HOST)
            return INVALID(r, "queue 0 is of kind %lld; it must be a host queue", (long long)kind);
        TRY(nns_read_list(&r->input, &cores, &n_cores, NNS_MAX_CORES, "cores of a queue", 0, NNS_MAX_CORES - 1));
        TRY(nns_read_list(&r->input, &queue->ratios, &n_ratios, NNS_MAX_CORES, "ratios of a queue", 1, NNS_MAX_RATIO));
        if (n_ratios && n_ratios != n_cores)
            return INVALID(r, "queue %lld has %lld ratios for %lld cores", (long long)i, (long long)n_ratios,
                           (long long)n_cores);
        if (!n_ratios) queue->ratios = NULL;
        queue->kind = (int32_t)kind;
        MAKE(r, queue->cores, n_cores);
        MAKE(r, queue->subgraphs, program->n_subgraphs);
        queue->n_cores = (int32_t)n_cores;
        for (int64_t c = 0; c < n_cores; c++) queue->cores[c] = (int32_t)cores[c];
        if (kind != NNS_QUEUE_OPENCL) continue;
        queue->command_queue = r->bindings->command_queues ? r->bindings->command_queues[i] : NULL;
        if (!queue->command_queue) return INVALID(r, "OpenCL queue %lld has no command queue", (long long)i);
        queue->trace_queue = r->bindings->trace_queues ? r->bindings->trace_queues[i] : NULL;
        if (!queue->trace_queue) queue->trace_queue = queue->command_queue;
    }
    return NNS_OK;
}

static int32_t bind_shared(parser *r, nns_area *area, const nns_region *bound, int64_t i) {
    const nns_program *program = r->program;
    if (!bound->mem) return INVALID(r, "shared region %lld has no OpenCL memory", (long long)i);
    if (bound->queue < 0 || bound->queue >= program->n_queues || program->queues[bound->queue].kind != NNS_QUEUE_OPENCL)
        return INVALID(r, "shared region %lld is bound to queue %d, which is no OpenCL queue", (long long)i,
                       (int)bound->queue);
    if (bound->sharing < NNS_SHARING_COPIED || bound->sharing > NNS_SHARING_COHERENT)
        return INVALID(r, "shared region %lld is shared in way %d, which does not exist", (long long)i,
                       (int)bound->sharing);
    area->mem = bound->mem;
    area->sharing = bound->sharing;
    area->queue = bound->queue;
    return NNS_OK;
}

static int32_t bind_region(parser *r, nns_area *area, int64_t i) {
    const bool caller = area->kind == NNS_REGION_INPUT || area->kind == NNS_REGION_OUTPUT;
    if (caller) {
        const int64_t count = area->kind == NNS_REGION_INPUT ? r->program->n_inputs : r->program->n_outputs;
        if (area->index < 0 || area->index >= count)
            return INVALID(r, "region %lld is input or output %lld of %lld", (long long)i, (long long)area->index,
                           (long long)count);
        return NNS_OK;
    }
    if (!r->bindings->regions) return INVALID(r, "region %lld has no memory bound to it", (long long)i);
    const nns_region *bound = &r->bindings->regions[i];
    if (!bound->host && area->bytes) return INVALID(r, "region %lld has no memory bound to it", (long long)i);
    area->host = bound->host;
    return area->kind == NNS_REGION_SHARED ? bind_shared(r, area, bound, i) : NNS_OK;
}

static int32_t parse_regions(parser *r) {
    nns_program *program = r->program;
    MAKE(r, program->areas, program->n_regions);
    for (int64_t i = 0; i < program->n_regions; i++) {
        nns_area *area = &program->areas[i];
        int64_t kind = 0;
        TRY(nns_read(&r->input, &kind, "the kind of a region", NNS_REGION_FIXED, NNS_REGION_SHARED));
        area->kind = (int32_t)kind;
        TRY(nns_read(&r->input, &area->index, "the index of a region", INT64_MIN, INT64_MAX));
        TRY(nns_read(&r->input, &area->bytes, "the bytes of a region", 0, NNS_MOST_BYTES));
        TRY(bind_region(r, area, i));
    }
    return NNS_OK;
}

static int32_t parse_buffers(parser *r) {
    nns_program *program = r->program;
    MAKE(r, program->buffers, program->n_buffers);
    for (int64_t i = 0; i < program->n_buffers; i++) {
        nns_buffer *buffer = &program->buffers[i];
        TRY(nns_read(&r->input, &buffer->region, "the region of a buffer", 0, program->n_regions - 1));
        const int64_t size = program->areas[buffer->region].bytes;
        TRY(nns_read(&r->input, &buffer->offset, "the offset of a buffer", 0, size));
        TRY(nns_read(&r->input, &buffer->bytes, "the bytes of a buffer", 0, size - buffer->offset));
        if (buffer->offset % NNS_BUFFER_ALIGNMENT)
            return INVALID(r, "buffer %lld starts at byte %lld, which %d does not divide", (long long)i,
                           (long long)buffer->offset, NNS_BUFFER_ALIGNMENT);
    }
    return NNS_OK;
}

/* The address of an operand, or NULL and a patch that each run applies if the memory is bound at run time. */
static char *resolve(nns_program *program, int64_t step, int32_t slot, int64_t index, bool written) {
    const nns_buffer *buffer = &program->buffers[index];
    const nns_area *area = &program->areas[buffer->region];
    if (area->kind == NNS_REGION_FIXED || area->kind == NNS_REGION_SHARED)
        return area->host ? area->host + buffer->offset : NULL;
    program->patches[program->n_patches++] = (nns_patch){
        .step = step,
        .index = area->index,
        .offset = buffer->offset,
        .slot = slot,
        .written = written,
        .output = area->kind == NNS_REGION_OUTPUT,
    };
    return NULL;
}

static int32_t parse_operands(parser *r, nns_step *step, int64_t i) {
    nns_program *program = r->program;
    const int64_t *list = NULL;
    int64_t count = 0;
    TRY(nns_read_list(&r->input, &list, &count, NNS_MAX_READS, "the reads of a step", -1, program->n_buffers - 1));
    step->args.n_in = (int32_t)count;
    for (int32_t k = 0; k < count; k++) {
        if (list[k] < 0) continue;
        step->args.in[k] = resolve(program, i, k, list[k], false);
        step->args.in_bytes[k] = program->buffers[list[k]].bytes;
    }
    TRY(nns_read_list(&r->input, &list, &count, NNS_MAX_WRITES, "the writes of a step", 0, program->n_buffers - 1));
    step->args.n_out = (int32_t)count;
    for (int32_t k = 0; k < count; k++) {
        if (program->areas[program->buffers[list[k]].region].kind == NNS_REGION_INPUT)
            return INVALID(r, "step %lld writes to an input of the run", (long long)i);
        step->args.out[k] = resolve(program, i, k, list[k], true);
        step->args.out_bytes[k] = program->buffers[list[k]].bytes;
    }
    TRY(nns_read_list(&r->input, &list, &count, INT32_MAX, "the parameters of a step", INT64_MIN, INT64_MAX));
    step->args.p = list;
    step->args.n_p = (int32_t)count;
    return NNS_OK;
}

/* Gives a step of an earlier version the parameters and the absent operands that its kernel got since. */
static int32_t complete_step(parser *r, nns_step *step, const nns_family *family) {
    const nns_counts lacking = nns_lacking(family, &step->args);
    step->args.n_in += lacking.reads;
    if (!lacking.parameters) return NNS_OK;
    MAKE(r, step->parameters, step->args.n_p + lacking.parameters);
    memcpy(step->parameters, step->args.p, (size_t)step->args.n_p * sizeof *step->parameters);
    step->args.p = step->parameters;
    step->args.n_p += lacking.parameters;
    return NNS_OK;
}

static int32_t check_kernel(parser *r, nns_step *step, int64_t i) {
    step->kernel = nns_kernel_at(step->id);
    if (!step->kernel)
        return INVALID(r, "step %lld asks for kernel %lld; the engine has none of that number", (long long)i,
                       (long long)step->id);
    const nns_family *family = nns_family_of(step->id);
    TRY(complete_step(r, step, family));
    if (!nns_counts_fit(family, &step->args))
        return INVALID(r, "step %lld, kernel %s: wrong number of reads (%d), writes (%d) or parameters (%d)",
                       (long long)i, step->kernel->name, (int)step->args.n_in, (int)step->args.n_out,
                       (int)step->args.n_p);
    const nns_parameter *parameter;
    const int64_t illegal = nns_illegal_parameter(family, &step->args, &parameter);
    if (illegal >= 0)
        return INVALID(r, "step %lld, kernel %s: parameter %lld (%s) is %lld, which is out of range", (long long)i,
                       step->kernel->name, (long long)illegal, parameter->name, (long long)step->args.p[illegal]);
    const char *objection = step->kernel->check(&step->args, &step->work);
    if (objection) return INVALID(r, "step %lld, kernel %s: %s", (long long)i, step->kernel->name, objection);
    if (step->work.units < 0 || step->work.scratch < 0)
        return INVALID(r, "step %lld, kernel %s: it answers with negative work", (long long)i, step->kernel->name);
    return NNS_OK;
}

static int32_t check_sizes(parser *r, const nns_launch *launch, const char *what, int64_t i) {
    if (!launch->kernel || launch->dimensions < 1 || launch->dimensions > 3)
        return INVALID(r, "%s %lld has no kernel or not 1 to 3 dimensions", what, (long long)i);
    for (int32_t d = 0; d < launch->dimensions; d++)
        if (!launch->global[d]) return INVALID(r, "%s %lld has a global size of 0", what, (long long)i);
    return NNS_OK;
}

static int32_t check_launch(parser *r, nns_step *step, int64_t i) {
    const nns_bindings *bindings = r->bindings;
    if (step->args.n_in || step->args.n_out)
        return INVALID(r, "step %lld is an OpenCL launch and may not list buffers", (long long)i);
    if (step->id < 0 || step->id >= bindings->n_launches || !bindings->launches)
        return INVALID(r, "step %lld asks for launch %lld of %lld", (long long)i, (long long)step->id,
                       (long long)bindings->n_launches);
    step->launch = bindings->launches[step->id];
    const nns_launch *launch = &step->launch;
    TRY(check_sizes(r, launch, "launch", step->id));
    for (int64_t k = 0; k < i; k++)
        if (r->program->steps[k].kind == NNS_STEP_OPENCL && r->program->steps[k].launch.kernel == launch->kernel)
            return INVALID(r, "steps %lld and %lld use one cl_kernel; each needs its own", (long long)k, (long long)i);
    return NNS_OK;
}

static int32_t parse_steps(parser *r) {
    nns_program *program = r->program;
    MAKE(r, program->steps, program->n_steps);
    MAKE(r, program->patches, r->input.end - r->input.at);
    for (int64_t i = 0; i < program->n_steps; i++) {
        nns_step *step = &program->steps[i];
        int64_t kind = 0;
        TRY(nns_read(&r->input, &kind, "the kind of a step", NNS_STEP_KERNEL, NNS_STEP_CALL));
        TRY(nns_read(&r->input, &step->id, "the id of a step", INT64_MIN, INT64_MAX));
        step->kind = (int32_t)kind;
        TRY(parse_operands(r, step, i));
        if (kind == NNS_STEP_KERNEL) TRY(check_kernel(r, step, i));
        if (kind == NNS_STEP_OPENCL) TRY(check_launch(r, step, i));
        if (kind == NNS_STEP_CALL && !r->bindings->call)
            return INVALID(r, "step %lld is a call and there is nothing to call", (long long)i);
    }
    return NNS_OK;
}

/* Whether steps of a kind may be on queues of a kind. */
static bool legal(int32_t queue, int32_t step) {
    if (queue == NNS_QUEUE_OPENCL) return step == NNS_STEP_OPENCL;
    return step == NNS_STEP_CALL || (queue == NNS_QUEUE_HOST && step == NNS_STEP_KERNEL);
}

static int32_t check_waits(parser *r, const nns_subgraph *subgraph, int64_t i) {
    for (int64_t k = 0; k < subgraph->n_waits; k++)
        if (r->program->subgraphs[subgraph->waits[k]].queue == subgraph->queue)
            return INVALID(r, "sub-graph %lld waits for sub-graph %lld of its own queue", (long long)i,
                           (long long)subgraph->waits[k]);
    return NNS_OK;
}

/* Checks regions that an OpenCL sub-graph acquires or releases; MAPPED ones are added to `touched`. */
static int32_t check_transfers(parser *r, nns_subgraph *subgraph, const int64_t *regions, int64_t count, int64_t i) {
    for (int64_t k = 0; k < count; k++) {
        const nns_area *area = &r->program->areas[regions[k]];
        if (area->kind != NNS_REGION_SHARED || area->queue != subgraph->queue)
            return INVALID(r, "sub-graph %lld transfers region %lld, which its queue does not share", (long long)i,
                           (long long)regions[k]);
        bool known = area->sharing != NNS_SHARING_MAPPED || !area->bytes;
        for (int64_t t = 0; t < subgraph->n_touched && !known; t++) known = subgraph->touched[t] == regions[k];
        if (!known) subgraph->touched[subgraph->n_touched++] = regions[k];
    }
    return NNS_OK;
}

static int64_t count_opencl(const nns_program *program) {
    int64_t count = 0;
    for (int64_t l = 0; l < program->n_queues; l++) count += program->queues[l].kind == NNS_QUEUE_OPENCL;
    return count;
}

static int32_t bind_semaphore(parser *r, nns_subgraph *subgraph, int64_t i) {
    const nns_bindings *bindings = r->bindings;
    if (!bindings->semaphores || !bindings->semaphores[i].kernel) return NNS_OK;
    if (r->program->queues[subgraph->queue].kind != NNS_QUEUE_OPENCL || !bindings->flags)
        return INVALID(r, "sub-graph %lld has a semaphore, but is on no OpenCL queue or has no flags", (long long)i);
    if (count_opencl(r->program) != 1)
        return INVALID(r, "sub-graph %lld has a semaphore in a program of several OpenCL queues", (long long)i);
    subgraph->semaphore = bindings->semaphores[i];
    return check_sizes(r, &subgraph->semaphore, "semaphore", i);
}

static int32_t parse_subgraph(parser *r, nns_subgraph *subgraph, int64_t i, int64_t first) {
    nns_program *program = r->program;
    int64_t queue = 0, begin = 0, count = 0;
    TRY(nns_read(&r->input, &queue, "the queue of a sub-graph", 0, program->n_queues - 1));
    TRY(nns_read(&r->input, &begin, "the first step of a sub-graph", first, first));
    TRY(nns_read(&r->input, &count, "the number of steps of a sub-graph", 0, program->n_steps - first));
    subgraph->queue = (int32_t)queue;
    subgraph->first = first;
    subgraph->end = first + count;
    const int32_t kind = program->queues[queue].kind;
    if (kind == NNS_QUEUE_OPENCL && !count)
        return INVALID(r, "sub-graph %lld is on an OpenCL queue and has no step", (long long)i);
    for (int64_t s = subgraph->first; s < subgraph->end; s++)
        if (!legal(kind, program->steps[s].kind))
            return INVALID(r, "step %lld is of kind %d, which queue %lld cannot run", (long long)s,
                           (int)program->steps[s].kind, (long long)queue);
    TRY(nns_read_list(&r->input, &subgraph->waits, &subgraph->n_waits, program->n_subgraphs, "the waits of a sub-graph",
                      0, i - 1));
    TRY(check_waits(r, subgraph, i));
    TRY(nns_read_list(&r->input, &subgraph->acquires, &subgraph->n_acquires, program->n_regions,
                      "the acquires of a sub-graph", 0, program->n_regions - 1));
    TRY(nns_read_list(&r->input, &subgraph->releases, &subgraph->n_releases, program->n_regions,
                      "the releases of a sub-graph", 0, program->n_regions - 1));
    MAKE(r, subgraph->touched, subgraph->n_acquires + subgraph->n_releases);
    TRY(check_transfers(r, subgraph, subgraph->acquires, subgraph->n_acquires, i));
    return check_transfers(r, subgraph, subgraph->releases, subgraph->n_releases, i);
}

static int32_t parse_subgraphs(parser *r) {
    nns_program *program = r->program;
    MAKE(r, program->subgraphs, program->n_subgraphs);
    int64_t first = 0;
    for (int64_t i = 0; i < program->n_subgraphs; i++) {
        nns_subgraph *subgraph = &program->subgraphs[i];
        TRY(parse_subgraph(r, subgraph, i, first));
        first = subgraph->end;
        TRY(bind_semaphore(r, subgraph, i));
        nns_queue *queue = &program->queues[subgraph->queue];
        queue->subgraphs[queue->n_subgraphs++] = i;
    }
    if (first != program->n_steps)
        return INVALID(r, "the sub-graphs hold %lld of %lld steps", (long long)first, (long long)program->n_steps);
    return NNS_OK;
}

int32_t nns_parse(nns_program *program, int64_t words, const nns_bindings *bindings, nns_report *report) {
    parser r = {
        .input = {program->image, program->image + words, .prefix = "", .source = "the program", .report = report},
        .bindings = bindings,
        .program = program,
    };
    program->call = bindings->call;
    program->call_context = bindings->call_context;
    program->flags = (_Atomic int32_t *)bindings->flags;
    TRY(parse_header(&r));
    TRY(parse_queues(&r));
    TRY(parse_regions(&r));
    TRY(parse_buffers(&r));
    TRY(parse_steps(&r));
    TRY(parse_subgraphs(&r));
    if (r.input.at != r.input.end)
        return INVALID(&r, "%lld words follow the end of the program", (long long)(r.input.end - r.input.at));
    return NNS_OK;
}
