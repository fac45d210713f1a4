/* Reads and validates program images. */
#ifndef NNS_PARSE_H
#define NNS_PARSE_H

#include "program.h"

/* Fills a zeroed program from its image (`program->image`, `words` words) and its bindings. After a failure, too,
 * nns_program_destroy frees it. */
int32_t nns_parse(nns_program *program, int64_t words, const nns_bindings *bindings, nns_report *report);

#endif
