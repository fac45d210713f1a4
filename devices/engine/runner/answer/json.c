#include "json.h"

#include <inttypes.h>
#include <math.h>

#include "fail.h"

/* The bytes of the valid UTF-8 sequence at `at`, or 0 (RFC 3629). */
static int sequence_bytes(const unsigned char *at) {
    static const struct {
        unsigned char first, last, low, high; /* of the first byte, and of the second */
        int bytes;
    } rows[] = {
        {0x20, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (at[0] < rows[i].first || at[0] > rows[i].last) continue;
        if (rows[i].bytes > 1 && (at[1] < rows[i].low || at[1] > rows[i].high)) return 0;
        for (int k = 2; k < rows[i].bytes; k++)
            if (at[k] < 0x80 || at[k] > 0xbf) return 0;
        return rows[i].bytes;
    }
    return 0;
}

static void put_text(FILE *file, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    fputc('"', file);
    while (*at) {
        const int bytes = sequence_bytes(at);
        if (*at == '"' || *at == '\\') {
            fprintf(file, "\\%c", *at);
        } else if (bytes) {
            fwrite(at, 1, (size_t)bytes, file);
        } else if (*at < 0x20) {
            fprintf(file, "\\u%04x", *at);
        } else {
            fputs("\\ufffd", file);
        }
        at += bytes ? bytes : 1;
    }
    fputc('"', file);
}

static void begin_value(nns_json *json, const char *key) {
    if (json->follows) fputs(", ", json->file);
    json->follows = true;
    if (!key) return;
    put_text(json->file, key);
    fputs(": ", json->file);
}

static void open_bracket(nns_json *json, const char *key, char bracket) {
    begin_value(json, key);
    fputc(bracket, json->file);
    json->follows = false;
}

static void close_bracket(nns_json *json, char bracket) {
    fputc(bracket, json->file);
    json->follows = true;
}

void nns_json_object(nns_json *json, const char *key) { open_bracket(json, key, '{'); }
void nns_json_end_object(nns_json *json) { close_bracket(json, '}'); }
void nns_json_array(nns_json *json, const char *key) { open_bracket(json, key, '['); }
void nns_json_end_array(nns_json *json) { close_bracket(json, ']'); }

void nns_json_null(nns_json *json, const char *key) {
    begin_value(json, key);
    fputs("null", json->file);
}

void nns_json_bool(nns_json *json, const char *key, bool value) {
    begin_value(json, key);
    fputs(value ? "true" : "false", json->file);
}

void nns_json_text(nns_json *json, const char *key, const char *text) {
    if (!text) {
        nns_json_null(json, key);
        return;
    }
    begin_value(json, key);
    put_text(json->file, text);
}

void nns_json_integer(nns_json *json, const char *key, int64_t value) {
    if (value == NNS_UNKNOWN) {
        nns_json_null(json, key);
        return;
    }
    begin_value(json, key);
    fprintf(json->file, "%" PRId64, value);
}

void nns_json_real(nns_json *json, const char *key, double value) {
    if (!isfinite(value)) {
        nns_json_null(json, key);
        return;
    }
    begin_value(json, key);
    fprintf(json->file, "%.9g", value); /* 9 digits hold a float32 exactly */
}

void nns_json_whole(nns_json *json, const char *key, double value) {
    begin_value(json, key);
    fprintf(json->file, "%.0f", value);
}

void nns_json_members(nns_json *json, const char *members) {
    begin_value(json, NULL);
    fputs(members, json->file);
}

nns_json nns_json_open_text(char **text, size_t *size) {
    const nns_json json = {open_memstream(text, size), false};
    if (!json.file) nns_die("no memory for a description");
    return json;
}

void nns_json_close_text(const nns_json *json) {
    if (fclose(json->file)) nns_die("no memory for a description");
}
