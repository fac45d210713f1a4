#include <limits.h>

#include "file_reader.h"

enum { FILE_ALIGNMENT = 16, LEAST_CALL = 5 /* words */ };

static int32_t read_call_queue(nns_file_reader *r, nns_image *image, nns_litert_queue *call_queue) {
    int64_t queue = 0, accelerator = 0;
    TRY(nns_read(&r->input, &queue, "the queue of calls", 1, image->queues.count - 1));
    if (image->queues.kinds[queue] != NNS_QUEUE_HOST) return DAMAGED(r, "queue %lld has two kinds", (long long)queue);
    image->queues.kinds[queue] = NNS_QUEUE_CALL;
    TRY(nns_read(&r->input, &accelerator, "the accelerator of a queue", 0, NNS_LITERT_ACCELERATORS - 1));
    call_queue->queue = (int32_t)queue;
    call_queue->accelerator = (int32_t)accelerator;
    return NNS_OK;
}

static int32_t read_types(nns_file_reader *r, nns_litert_call *call) {
    const int32_t count = call->n_reads + call->n_writes;
    call->tensors = nns_new_array(r->input.report, count, sizeof *call->tensors);
    if (!call->tensors) return r->input.report->status;
    for (int32_t i = 0; i < count; i++) {
        nns_tensor *tensor = &call->tensors[i];
        TRY(nns_read_type(r, true, tensor));
        bool fits = tensor->rank <= NNS_LITERT_MOST_RANK;
        for (int32_t d = 0; fits && d < tensor->rank; d++) fits = tensor->shape[d] <= INT32_MAX;
        if (!fits) return DAMAGED(r, "a tensor of a call is larger than LiteRT takes");
    }
    return NNS_OK;
}

static int32_t read_call(nns_file_reader *r, const nns_file *file, nns_image *image, nns_litert_call *call) {
    int64_t offset = 0, n_reads = 0, n_writes = 0;
    TRY(nns_read(&r->input, &call->queue, "the queue of a call", 0, image->calls.n_queues - 1));
    TRY(nns_read(&r->input, &offset, "the place of a TFLite file", image->constant_bytes, file->constant_bytes));
    TRY(nns_read(&r->input, &call->bytes, "the size of a TFLite file", 1, file->constant_bytes - offset));
    if (offset % FILE_ALIGNMENT) return DAMAGED(r, "a TFLite file begins at byte %lld", (long long)offset);
    TRY(nns_read(&r->input, &n_reads, "the reads of a call", 0, NNS_MAX_READS));
    TRY(nns_read(&r->input, &n_writes, "the writes of a call", 1, NNS_MAX_WRITES));
    call->content = file->constants + offset;
    call->n_reads = (int32_t)n_reads;
    call->n_writes = (int32_t)n_writes;
    TRY(read_types(r, call));
    return nns_read_text(r, &call->name, "the name of a call");
}

int32_t nns_calls_read(nns_file_reader *r, const nns_file *file, nns_image *image) {
    nns_litert_plan *plan = &image->calls;
    TRY(nns_read(&r->input, &plan->n_queues, "the number of call queues", 0, image->queues.count - 1));
    for (int64_t i = 0; i < plan->n_queues; i++) TRY(read_call_queue(r, image, &plan->queues[i]));
    int64_t count = 0;
    TRY(nns_read_count(r, &count, "the number of calls", LEAST_CALL));
    plan->calls = nns_new_array(r->input.report, count, sizeof *plan->calls);
    if (!plan->calls) return r->input.report->status;
    plan->n_calls = count;
    for (int64_t i = 0; i < count; i++) TRY(read_call(r, file, image, &plan->calls[i]));
    return NNS_OK;
}
