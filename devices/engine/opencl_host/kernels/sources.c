#include "sources.h"

#include <ctype.h>
#include <stddef.h>
#include <string.h>

#include "sha256.h"

#ifndef NNS_OCL_TRUSTED
#define NNS_OCL_TRUSTED "" /* SHA-256 of each kernel file with its includes, hexadecimal, with a comma after each */
#endif

bool nns_ocl_is_trusted(const char *text) {
    unsigned char digest[NNS_SHA256_BYTES];
    char hex[NNS_SHA256_HEX];
    nns_sha256 hash;
    nns_sha256_begin(&hash);
    nns_sha256_add(&hash, text, strlen(text));
    nns_sha256_end(&hash, digest);
    nns_sha256_hex(digest, hex);
    return strstr(NNS_OCL_TRUSTED, hex) != NULL;
}

/* ---- argument structs ------------------------------------------------------------------------------------- */

/* A part of a text. */
typedef struct {
    const char *at;
    size_t length;
} span;

enum { MOST_STRUCTS = 64, MOST_INTEGERS = 1 << 20 };

/* Structs of integers, or of other such structs. */
typedef struct {
    span name;
    int64_t integers;
} known_struct;

typedef struct {
    known_struct list[MOST_STRUCTS];
    int32_t count;
} known_structs;

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static span word_at(const char *text) {
    span word = {text, 0};
    while (is_word(text[word.length])) word.length++;
    return word;
}

static bool equal(span a, const char *b, size_t length) { return a.length == length && !memcmp(a.at, b, length); }

/* Whether `text` begins with `prefix`; then moves it behind that. */
static bool skip(const char **text, const char *prefix) {
    const size_t length = strlen(prefix);
    if (strncmp(*text, prefix, length)) return false;
    *text += length;
    return true;
}

static bool ends_line(const char *text) { return *text == '\n' || !*text; }

/* The integers of a type, or 0 if it is unknown. The last struct of a name counts. */
static int64_t integers_of(const known_structs *known, span type) {
    if (equal(type, "int", 3)) return 1;
    for (int32_t i = known->count - 1; i >= 0; i--)
        if (equal(type, known->list[i].name.at, known->list[i].name.length)) return known->list[i].integers;
    return 0;
}

/* The integers of a struct's members, as in "int a, b; pair c;"; -1 if there are others. */
static int64_t count_members(const known_structs *known, const char *at, const char *end) {
    int64_t total = 0;
    for (;;) {
        while (at < end && (isspace((unsigned char)*at) || *at == ';')) at++;
        if (at == end) return total;
        span type = {at, 0};
        while (at < end && !isspace((unsigned char)*at) && *at != ';') at++;
        type.length = (size_t)(at - type.at);
        const int64_t each = integers_of(known, type);
        int64_t names = 1;
        while (at < end && isspace((unsigned char)*at)) at++;
        if (!each || at == end || *at == ';') return -1;
        for (; at < end && *at != ';'; at++) names += *at == ',';
        total += each * names;
        if (total > MOST_INTEGERS) return -1;
    }
}

/* Reads "typedef struct {MEMBERS} NAME;" where a line begins. */
static void read_struct(known_structs *known, const char *line) {
    if (!skip(&line, "typedef struct {") || known->count == MOST_STRUCTS) return;
    const char *end = strchr(line, '}');
    if (!end || end[1] != ' ') return;
    const span name = word_at(end + 2);
    const char *after = name.at + name.length;
    if (!name.length || *after != ';' || !ends_line(after + 1)) return;
    const int64_t integers = count_members(known, line, end);
    if (integers >= 0) known->list[known->count++] = (known_struct){name, integers};
}

/* The type in "kernel void NAME(…, const TYPE given)" where a line begins; empty if the line is not of this kernel. */
static span read_kernel(const char *line, const char *name) {
    static const char last[] = " given";
    const size_t suffix = sizeof last - 1;
    const span none = {line, 0};
    if (!skip(&line, "kernel void ") || !skip(&line, name) || *line != '(') return none;
    const char *close = strchr(line, ')');
    if (!close || !ends_line(close + 1) || (size_t)(close - line) < suffix || memcmp(close - suffix, last, suffix))
        return none;
    span type = {close - suffix, 0};
    while (type.at > line && is_word(type.at[-1])) type.at--, type.length++;
    const char *before = type.at - strlen("const ");
    if (!type.length || before <= line || strncmp(before, "const ", strlen("const "))) return none;
    if (!isspace((unsigned char)before[-1])) return none;
    while (before > line && isspace((unsigned char)before[-1])) before--;
    return before > line && before[-1] == ',' ? type : none;
}

int64_t nns_ocl_kernel_integers(const char *text, const char *kernel) {
    known_structs known = {.count = 0};
    span type = {0};
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
        read_struct(&known, line);
        const span found = read_kernel(line, kernel);
        if (found.length) type = found;
    }
    const int64_t integers = type.length ? integers_of(&known, type) : 0;
    return integers ? integers : -1;
}
