/* A loaded model: what nnstretch.h calls nns_model. model.c makes and runs it, describe.c answers questions about it. */
#ifndef NNS_MODEL_H
#define NNS_MODEL_H

#include "model_file.h"
#include "nns_engine.h"
#include "nnstretch.h"

enum { NNS_FEATURES_TEXT = 256 };

struct nns_model {
    nns_file file;
    nns_image image;
    nns_program *program;
    void *arena;           /* NULL if the model needs none */
    nns_ocl_host *devices; /* NULL if the model has no OpenCL queues */
    nns_litert_host *calls; /* NULL if the model has no call queues */
    char features[NNS_FEATURES_TEXT];
    nns_queue_info *queues; /* of the program */
    nns_step_info *steps;   /* of the program */
    int32_t n_queues, n_steps, n_subgraphs;
};

/* Fills `queues` and `steps`. After a failure, too, nns_model_free frees them. */
int32_t nns_model_describe(nns_model *model, nns_report *report);

#endif
