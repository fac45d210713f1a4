/* An external delegate for tests that fails as its option `fail` says: `load` makes none, `prepare` refuses the model, and a
 * path takes every node, computes nothing, and fails while there is such a file. Anything else takes no node, so that LiteRT
 * computes. The structures are the beginnings of those of LiteRT's C interface. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int size;
    int data[];
} int_array;

typedef struct context context;
typedef struct delegate delegate;

typedef struct {
    void *(*init)(context *, const char *, size_t);
    void (*free)(context *, void *);
    int (*prepare)(context *, void *);
    int (*invoke)(context *, void *);
    const char *(*profiling_string)(const context *, const void *);
    int32_t builtin_code;
    const char *custom_name;
    int version;
    void *later[8]; /* what newer releases have added */
} registration;

struct context {
    size_t tensors_size;
    int (*execution_plan)(context *, int_array **);
    void *tensors, *impl;
    int (*resize_tensor)(context *, void *, int_array *);
    void (*report_error)(context *, const char *, ...);
    int (*add_tensors)(context *, int, int *);
    int (*node_and_registration)(context *, int, void **, registration **);
    int (*replace_nodes)(context *, registration, const int_array *, delegate *);
};

struct delegate {
    void *data;
    int (*prepare)(context *, delegate *);
    void *copy_from, *copy_to, *free_buffer;
    int64_t flags;
    void *builder;
    char fail[256];
};

static char obstacle[256];

static void *init(context *unused, const char *buffer, size_t size) {
    (void)unused, (void)buffer, (void)size;
    return NULL;
}

static void release(context *unused, void *nothing) { (void)unused, (void)nothing; }

static int ready(context *unused, void *node) {
    (void)unused, (void)node;
    return 0;
}

static int invoke(context *where, void *node) {
    (void)node;
    if (access(obstacle, F_OK)) return 0;
    where->report_error(where, "the delegate lost its device");
    return 1;
}

static int prepare(context *where, delegate *self) {
    int_array *plan;
    if (strcmp(self->fail, "prepare") == 0) return 1;
    if (!strchr(self->fail, '/')) return 0;
    memcpy(obstacle, self->fail, sizeof obstacle);
    if (where->execution_plan(where, &plan)) return 1;
    int_array *nodes = malloc(sizeof *nodes + sizeof(int) * (size_t)plan->size);
    memcpy(nodes, plan, sizeof *nodes + sizeof(int) * (size_t)plan->size);
    const registration kernel = {init, release, ready, invoke, NULL, 51, "Failing", 1, {0}};
    const int status = where->replace_nodes(where, kernel, nodes, self);
    free(nodes);
    return status;
}

delegate *tflite_plugin_create_delegate(const char *const *keys, const char *const *values, size_t count,
                                        void (*report)(const char *)) {
    delegate *made = calloc(1, sizeof *made);
    made->prepare = prepare;
    for (size_t i = 0; i < count; i++)
        if (strcmp(keys[i], "fail") == 0) strncpy(made->fail, values[i], sizeof made->fail - 1);
    if (strcmp(made->fail, "load")) return made;
    report("there is no such device");
    free(made);
    return NULL;
}

void tflite_plugin_destroy_delegate(delegate *made) { free(made); }
