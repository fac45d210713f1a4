/* Nothing in a file is trusted: its check finds accidents, not intentions, so every size is compared with the file's
 * size before memory is allocated or mapped. */
#include "checksum.h"
#include "model_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORD = sizeof(int64_t), CONSTANTS_ALIGNMENT = 4096 };

#define HEADER_BYTES ((int64_t)NNS_FILE_WORDS * WORD)

static int32_t read_all(int descriptor, void *to, int64_t bytes, const char *path, nns_report *report) {
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(descriptor, (char *)to + done, (size_t)(bytes - done), (off_t)done);
        if (got > 0) {
            done += got;
        } else if (got == 0) {
            return nns_fail(report, NNS_EINVALID, "%s ends early; compile the model again", path);
        } else if (errno != EINTR) {
            return nns_fail(report, NNS_EINVALID, "cannot read %s: %s", path, strerror(errno));
        }
    }
    return NNS_OK;
}

static int32_t check_header(const int64_t *header, int64_t size, const char *path, nns_report *report) {
    if (header[NNS_FILE_IS_MODEL] != NNS_FILE_MAGIC)
        return nns_fail(report, NNS_EINVALID, "%s is no model file; nnstretch compile --standalone makes one", path);
    if (header[NNS_FILE_FORMAT] < NNS_FILE_FIRST_FORMAT || header[NNS_FILE_FORMAT] > NNS_FILE_LAST_FORMAT)
        return nns_fail(report, NNS_EINVALID,
                        "%s has format %lld, this library reads %d to %d; make it again: nnstretch compile MODEL "
                        "--standalone",
                        path, (long long)header[NNS_FILE_FORMAT], NNS_FILE_FIRST_FORMAT, NNS_FILE_LAST_FORMAT);
    if (header[NNS_FILE_BYTES] != size)
        return nns_fail(report, NNS_EINVALID, "%s has %lld bytes and should have %lld; copy it again", path,
                        (long long)size, (long long)header[NNS_FILE_BYTES]);
    const int64_t words = header[NNS_FILE_N_WORDS], text = header[NNS_FILE_N_TEXT];
    const int64_t at = header[NNS_FILE_CONSTANTS_AT];
    /* `size` is far below the largest int64, so that none of these sums overflows. */
    if (words < 0 || words > size / WORD || text < 0 || text > size || text % WORD || at < 0 || at > size ||
        at % CONSTANTS_ALIGNMENT || HEADER_BYTES + words * WORD + text > at ||
        header[NNS_FILE_CONSTANT_BYTES] != size - at)
        return nns_fail(report, NNS_EINVALID, "%s is damaged: its parts do not fit its size; copy it again", path);
    return NNS_OK;
}

static int32_t read_head(int descriptor, int64_t size, nns_file *file, const char *path, nns_report *report) {
    int64_t header[NNS_FILE_WORDS];
    if (size < HEADER_BYTES)
        return nns_fail(report, NNS_EINVALID, "%s is no model file: it has %lld bytes only", path, (long long)size);
    if (read_all(descriptor, header, HEADER_BYTES, path, report) || check_header(header, size, path, report))
        return report->status;
    const int64_t body = header[NNS_FILE_N_WORDS] + header[NNS_FILE_N_TEXT] / WORD;
    const int64_t bytes = HEADER_BYTES + body * WORD;
    file->head = malloc((size_t)bytes);
    if (!file->head) return nns_fail(report, NNS_EMEMORY, "no memory for %lld bytes of %s", (long long)bytes, path);
    if (read_all(descriptor, file->head, bytes, path, report)) return report->status;
    if (memcmp(file->head, header, sizeof header))
        return nns_fail(report, NNS_EINVALID, "%s changes while it is read", path);
    file->n_words = header[NNS_FILE_N_WORDS];
    file->words = file->head + NNS_FILE_WORDS;
    file->text = (const char *)(file->words + file->n_words);
    file->text_bytes = header[NNS_FILE_N_TEXT];
    return NNS_OK;
}

static int32_t map(int descriptor, int64_t size, nns_file *file, const char *path, nns_report *report) {
    void *memory = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED) return nns_fail(report, NNS_EMEMORY, "cannot map %s: %s", path, strerror(errno));
    file->map = memory;
    file->map_bytes = (size_t)size;
    file->constants = (const char *)memory + file->head[NNS_FILE_CONSTANTS_AT];
    file->constant_bytes = file->head[NNS_FILE_CONSTANT_BYTES];
    return NNS_OK;
}

/* Verifies the mapped file, and that the copy of its head is part of it. */
static int32_t verify(const nns_file *file, const char *path, nns_report *report) {
    const size_t head_bytes = (size_t)(file->text + file->text_bytes - (const char *)file->head);
    const uint64_t check = nns_checksum(file->map, file->map_bytes, NNS_FILE_CHECK);
    if (check == (uint64_t)file->head[NNS_FILE_CHECK] && !memcmp(file->map, file->head, head_bytes)) return NNS_OK;
    return nns_fail(report, NNS_EINVALID, "%s is damaged: its checksum does not match; copy it again", path);
}

int32_t nns_file_open(const char *path, nns_file *file, nns_report *report) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return nns_fail(report, NNS_EINVALID, "cannot open %s: %s", path, strerror(errno));
    struct stat about;
    if (fstat(descriptor, &about))
        nns_fail(report, NNS_EINVALID, "cannot read %s: %s", path, strerror(errno));
    else if (!S_ISREG(about.st_mode) || (uint64_t)about.st_size > SIZE_MAX / 2)
        nns_fail(report, NNS_EINVALID, "%s is no file of a size that can be mapped", path);
    else if (read_head(descriptor, about.st_size, file, path, report) == NNS_OK &&
             map(descriptor, about.st_size, file, path, report) == NNS_OK)
        verify(file, path, report);
    close(descriptor);
    return report->status;
}

void nns_file_close(nns_file *file) {
    if (file->map) munmap(file->map, file->map_bytes);
    free(file->head);
    *file = (nns_file){0};
}
