/* Lists of numbers and of ranges of them, such as 0-3,6. */
#ifndef NNS_RANGES_H
#define NNS_RANGES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Reads one number of at most `highest` and moves `at` behind it. Returns -1 if there is none. */
static inline int32_t nns_parse_range_end(const char **at, int32_t highest) {
    char *end = NULL;
    const bool is_digit = **at >= '0' && **at <= '9';
    const long number = is_digit ? strtol(*at, &end, 10) : -1;
    if (number < 0 || number > highest) return -1;
    *at = end;
    return (int32_t)number;
}

/* Parses a whole text. Returns how many numbers there are, or -1 if it is no such list or holds more than `most`.
 *
 *   separators: each of these characters may stand between two ranges
 *   highest:    the largest number, below INT32_MAX */
static inline int32_t nns_parse_ranges(const char *text, const char *separators, int32_t highest, int32_t *numbers,
                                       int32_t most) {
    int32_t count = 0;
    for (;; text++) {
        const int32_t first = nns_parse_range_end(&text, highest);
        int32_t last = first;
        if (*text == '-' && first >= 0) {
            text++;
            last = nns_parse_range_end(&text, highest);
        }
        if (first < 0 || last < first || last - first >= most - count) return -1;
        for (int32_t number = first; number <= last; number++) numbers[count++] = number;
        if (!*text) return count;
        if (!strchr(separators, *text)) return -1;
    }
}

#endif
