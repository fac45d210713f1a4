#include "status.h"

#include <stdarg.h>
#include <stdio.h>

int32_t nns_fail(nns_report *report, int32_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report->text, sizeof report->text, format, arguments);
    va_end(arguments);
    report->status = status;
    return status;
}

int32_t nns_answer(const nns_report *report, char *error, int64_t error_size) {
    if (error && error_size > 0) snprintf(error, (size_t)error_size, "%s", report->status ? report->text : "");
    return report->status;
}
