/* Runs calls of kernels that come from standard input and writes their outputs to standard output, so that tests can run kernels
 * of another architecture in an emulator. All numbers are int64.
 *
 * call     length of the kernel's name, the name, the number of parameters, the parameters, the number of reads, each as its bytes
 *          and contents (0 bytes: absent; -1: the output of the call before), the bytes of the output, negative for a check alone
 * answer   0 and the output, or the units of work after a check alone; or the length of the reason for refusal and the reason */
#include <stdio.h>
#include <stdlib.h>

#include "program/registry.h"

enum { GUARD = 256, GUARD_BYTE = 0xa5, UNWRITTEN_BYTE = 0xff, MOST_NUMBERS = 64, LINE = 64 };

static void get(void *to, int64_t bytes) {
    if (bytes && fread(to, (size_t)bytes, 1, stdin) != 1) exit(3);
}

static int64_t get_number(void) {
    int64_t number;
    get(&number, sizeof number);
    return number;
}

static void put(const void *from, int64_t bytes) {
    if (bytes && fwrite(from, (size_t)bytes, 1, stdout) != 1) exit(4);
}

static void answer(const char *refusal) {
    const int64_t length = (int64_t)strlen(refusal);
    put(&length, sizeof length);
    put(refusal, length);
}

/* Memory between guards, aligned like a tensor's and full of NaN: a lane that no kernel has written shows. */
static char *guarded(int64_t bytes) {
    char *whole = aligned_alloc(LINE, (size_t)(nns_ceil_div(bytes, LINE) * LINE + 2 * GUARD));
    if (!whole) exit(5);
    memset(whole, GUARD_BYTE, (size_t)bytes + 2 * GUARD);
    memset(whole + GUARD, UNWRITTEN_BYTE, (size_t)bytes);
    return whole + GUARD;
}

/* Whether the bytes around `memory` are as `guarded` left them. */
static bool is_whole(const char *memory, int64_t bytes) {
    for (int64_t i = 1; i <= GUARD; i++)
        if ((unsigned char)memory[-i] != GUARD_BYTE || (unsigned char)memory[bytes + i - 1] != GUARD_BYTE) return false;
    return true;
}

/* Checks the call and runs its units in two parts, as two sub-graphs might; the reason for refusal or NULL. */
static const char *run(const nns_kernel *kernel, nns_args *args, bool only_check, int64_t *units) {
    nns_work work = {0};
    const char *wrong = kernel->check(args, &work);
    *units = work.units;
    if (wrong || only_check) return wrong;
    char *scratch = guarded(work.scratch);
    if (work.scratch >= 8) memset(scratch, 0, 8);
    kernel->run(args, 0, work.units / 2, scratch);
    kernel->run(args, work.units / 2, work.units, scratch);
    const bool whole = is_whole(scratch, work.scratch);
    free(scratch - GUARD);
    return whole ? NULL : "the kernel wrote beside its scratch";
}

/* The output of the call before. */
static char *last;
static int64_t last_bytes;

static const nns_kernel *find(const char *name) {
    for (int64_t id = 0; id < nns_kernel_count(); id++)
        if (!strcmp(nns_kernel_at(id)->name, name)) return nns_kernel_at(id);
    return NULL;
}

/* Reads, runs and answers one call whose name has `length` characters. */
static void run_call(int64_t length) {
    char name[MOST_NUMBERS + 1] = {0};
    int64_t p[MOST_NUMBERS];
    nns_args args = {.p = p, .n_out = 1};
    if (length > MOST_NUMBERS) exit(6);
    get(name, length);
    args.n_p = (int32_t)get_number();
    if (args.n_p > MOST_NUMBERS) exit(6);
    get(p, args.n_p * (int64_t)sizeof *p);
    args.n_in = (int32_t)get_number();
    if (args.n_in > NNS_MAX_READS) exit(6);
    for (int i = 0; i < args.n_in; i++) {
        args.in_bytes[i] = get_number();
        if (args.in_bytes[i] < 0) {
            if (!last) exit(7);
            args.in_bytes[i] = last_bytes;
            args.in[i] = last;
            continue;
        }
        char *memory = args.in_bytes[i] ? guarded(args.in_bytes[i]) : NULL;
        get(memory, args.in_bytes[i]);
        args.in[i] = memory;
    }
    args.out_bytes[0] = get_number();
    const bool only_check = args.out_bytes[0] < 0;
    if (only_check) args.out_bytes[0] = -args.out_bytes[0];
    args.out[0] = guarded(args.out_bytes[0]);
    const nns_kernel *kernel = find(name);
    int64_t units = 0;
    const char *wrong = kernel ? run(kernel, &args, only_check, &units) : "the engine has no such kernel";
    if (!wrong && !is_whole(args.out[0], args.out_bytes[0])) wrong = "the kernel wrote beside its output";
    answer(wrong ? wrong : "");
    if (!wrong && only_check) put(&units, sizeof units);
    if (!wrong && !only_check) put(args.out[0], args.out_bytes[0]);
    for (int i = 0; i < args.n_in; i++)
        if (args.in[i] && args.in[i] != last) free((char *)args.in[i] - GUARD);
    if (last) free(last - GUARD);
    last = args.out[0];
    last_bytes = args.out_bytes[0];
}

int main(void) {
    for (int64_t length; fread(&length, sizeof length, 1, stdin) == 1;) run_call(length);
    return 0;
}
