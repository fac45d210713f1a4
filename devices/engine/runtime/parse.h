/* Reads and validates program images. */
#ifndef NNS_PARSE_H
#define NNS_PARSE_H

#include "program.h"

/* Fills a zeroed program from its image (`program->image`, `words` long) and the memory bound to it. On failure the
 * program is left for nns_program_destroy to free. */
int32_t nns_parse(nns_program *program, int64_t words, const nns_bindings *bindings, nns_report *report);

#endif
