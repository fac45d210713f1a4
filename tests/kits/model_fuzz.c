/* Loads damaged copies of a model file with the library and runs those that still load. Built with the address and
 * undefined-behaviour sanitizers, which end the program at the first mistake.
 *
 * model_fuzz MODEL.nnm SCRATCH ROUNDS SEED
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"
#include "nnstretch.h"

enum { WORD = 8, HEADER_WORDS = 8, N_WORDS = 3, N_TEXT = 4, CHECK = 7, MOST_BYTES = 1 << 24 };

static uint64_t state;

static uint64_t draw(uint64_t n) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % n;
}

static void stop(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(3);
}

static size_t load_file(const char *path, unsigned char **content) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) stop("cannot read the model");
    const size_t size = (size_t)ftell(file);
    rewind(file);
    *content = malloc(size);
    if (fread(*content, 1, size, file) != size) stop("cannot read the model");
    fclose(file);
    return size;
}

static uint64_t word_at(const unsigned char *content, size_t word) {
    uint64_t value;
    memcpy(&value, content + word * WORD, sizeof value);
    return value;
}

static void set_word(unsigned char *content, size_t word, uint64_t value) {
    memcpy(content + word * WORD, &value, sizeof value);
}

static void mend_check(unsigned char *content, size_t size) {
    if (size > CHECK * WORD + WORD) set_word(content, CHECK, nns_checksum(content, size, CHECK));
}

/* A number of the kind that a program has, or one that it should not have. */
static uint64_t some_number(const unsigned char *content, size_t words) {
    switch (draw(7)) {
    case 0: return draw(4);
    case 1: return draw(300);
    case 2: return UINT64_MAX - draw(3);
    case 3: return INT64_MAX - draw(70);
    case 4: return UINT64_C(1) << draw(64);
    case 5: return state * UINT64_C(0x9e3779b97f4a7c15);
    default: return word_at(content, draw(words));
    }
}

/* Damages a copy in place and returns its new size. */
static size_t damage(unsigned char *content, size_t size, size_t head_words) {
    if (draw(16) == 0) return draw(size);
    for (uint64_t changes = 1 + draw(3); changes; changes--) {
        const size_t word = draw(8) ? HEADER_WORDS + draw(head_words - HEADER_WORDS) : draw(HEADER_WORDS);
        if (draw(4) == 0)
            content[word * WORD + draw(WORD)] ^= (unsigned char)(1 << draw(8));
        else if (draw(2))
            set_word(content, word, word_at(content, word) + draw(9) - 4);
        else
            set_word(content, word, some_number(content, head_words));
    }
    if (draw(32)) mend_check(content, size);
    return size;
}

static void *new_array(const nns_tensor *tensor, int64_t *left) {
    if (tensor->bytes > *left) return NULL;
    *left -= tensor->bytes;
    return calloc((size_t)tensor->bytes, 1);
}

static int run(nns_model *model) {
    const int32_t n_in = nns_model_input_count(model), n_out = nns_model_output_count(model);
    nns_input *inputs = calloc((size_t)n_in + 1, sizeof *inputs);
    nns_output *arrays = calloc((size_t)(n_in + n_out) + 1, sizeof *arrays);
    int64_t left = MOST_BYTES;
    int good = 1;
    for (int32_t i = 0; i < n_in + n_out && good; i++) {
        const nns_tensor *tensor = i < n_in ? nns_model_input(model, i) : nns_model_output(model, i - n_in);
        arrays[i] = (nns_output){new_array(tensor, &left), tensor->bytes};
        good = arrays[i].data != NULL;
        if (i < n_in) inputs[i] = (nns_input){arrays[i].data, arrays[i].bytes};
    }
    char error[256];
    good = good && !nns_model_run(model, inputs, n_in, arrays + n_in, n_out, error, sizeof error);
    for (int32_t i = 0; i < n_in + n_out; i++) free(arrays[i].data);
    free(arrays);
    free(inputs);
    return good;
}

int main(int count, char **words) {
    if (count != 5) stop("usage: model_fuzz MODEL.nnm SCRATCH ROUNDS SEED");
    unsigned char *content;
    const size_t size = load_file(words[1], &content);
    const size_t head_words = HEADER_WORDS + word_at(content, N_WORDS) + word_at(content, N_TEXT) / WORD;
    unsigned char *copy = malloc(size);
    int refused = 0, ran = 0;
    state = strtoull(words[4], NULL, 10);
    for (int round = atoi(words[3]); round; round--) {
        memcpy(copy, content, size);
        const size_t kept = damage(copy, size, head_words);
        FILE *file = fopen(words[2], "wb");
        if (!file || fwrite(copy, 1, kept, file) != kept || fclose(file)) stop("cannot write the copy");
        nns_model *model = NULL;
        char error[256] = "";
        if (nns_model_load(words[2], NULL, &model, error, sizeof error)) {
            if (model || !*error) stop("a refusal without a reason");
            refused++;
        } else {
            ran += run(model);
            nns_model_free(model);
        }
    }
    free(copy);
    free(content);
    printf("%d %d\n", refused, ran);
    return 0;
}
