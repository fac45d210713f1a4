/* Writes JSON. The output is valid for all arguments: numbers that are not finite become null, and bytes of a text that
 * are not UTF-8 become U+FFFD. */
#ifndef NNS_JSON_H
#define NNS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The value of a number that is not known; it is written as null. */
#define NNS_UNKNOWN INT64_MIN

typedef struct {
    FILE *file;
    bool follows; /* a value of the innermost object or array has been written */
} nns_json;

/* `key` names the value in an object; it is NULL in an array and for the outermost value. */
void nns_json_object(nns_json *json, const char *key);
void nns_json_end_object(nns_json *json);
void nns_json_array(nns_json *json, const char *key);
void nns_json_end_array(nns_json *json);
void nns_json_text(nns_json *json, const char *key, const char *text); /* NULL: null */
void nns_json_integer(nns_json *json, const char *key, int64_t value); /* NNS_UNKNOWN: null */
void nns_json_real(nns_json *json, const char *key, double value);     /* not finite: null */
void nns_json_whole(nns_json *json, const char *key, double value);    /* a finite whole number, with all its digits */
void nns_json_bool(nns_json *json, const char *key, bool value);
void nns_json_null(nns_json *json, const char *key);

/* A writer whose text goes to memory; `text`, which the caller frees, has it after nns_json_close_text. Both end the runner if
 * there is no memory. */
nns_json nns_json_open_text(char **text, size_t *size);
void nns_json_close_text(const nns_json *json);

/* Continues an object with members that another writer has written. */
void nns_json_members(nns_json *json, const char *members);

#endif
