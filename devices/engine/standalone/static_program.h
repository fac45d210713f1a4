/* Programs that are linked statically cannot open libraries. */
#ifndef NNS_STATIC_PROGRAM_H
#define NNS_STATIC_PROGRAM_H

#include <stdbool.h>
#include <string.h>

/* Whether dlopen failed because this program is linked statically (musl). `why` is dlerror's text, or NULL. */
static inline bool nns_is_static_program(const char *why) { return why && strstr(why, "Dynamic loading not supported"); }

#endif
