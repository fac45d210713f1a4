/* nns-bench, the runner: describes a machine or times models on it, without Python. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fail.h"
#include "nns_engine.h"
#include "machine/probe.h"
#include "timing/race.h"
#include "stop.h"

static void make_folder(const char *path) {
    struct stat about;
    if (mkdir(path, 0777) && (errno != EEXIST || stat(path, &about) || !S_ISDIR(about.st_mode)))
        nns_die("cannot make the folder %s: %s", path, strerror(errno));
}

static void write_runner(nns_json *json) {
    nns_json_object(json, "runner");
    nns_json_text(json, "isa", nns_library_isa());
    nns_json_integer(json, "abi", nns_abi());
    nns_json_text(json, "system", nns_system);
    nns_json_text(json, "version", NNS_VERSION);
    nns_json_end_object(json);
}

/* Measures and writes the result. Returns the exit status. */
static int measure(const nns_options *options, const nns_opencl_list *opencl, nns_json *json) {
    static nns_race race;
    nns_stop_on_signals();
    nns_race_run(&race, options);
    bool has_failed = false;
    nns_json_object(json, NULL);
    write_runner(json);
    nns_json_integer(json, "seed", (int64_t)options->seed);
    nns_json_text(json, "stopped", race.stopped[0] ? race.stopped : NULL);
    nns_json_array(json, "models");
    for (int32_t i = 0; i < race.n_entries; i++) {
        nns_entry_write(&race.entries[i], &race.turns.thermal, json);
        has_failed |= race.entries[i].error[0] != 0;
    }
    nns_json_end_array(json);
    nns_probe_write(&race.turns.fs, opencl, json, "device");
    nns_json_end_object(json);
    nns_race_free(&race);
    return nns_stop_signal() ? 128 + nns_stop_signal() : has_failed;
}

int main(int count, char **words) {
    static nns_options options;
    static nns_opencl_list opencl;
    nns_options_parse(&options, count, words);
    if (options.outputs) make_folder(options.outputs);
    nns_list_opencl(&options.opencl, &opencl);
    nns_json json = {stdout, false};
    int status = 0;
    if (options.probe)
        nns_probe_write(&(nns_sysfs){options.root}, &opencl, &json, NULL);
    else
        status = measure(&options, &opencl, &json);
    fputc('\n', stdout);
    if (fflush(stdout) || ferror(stdout)) nns_die("cannot write to the standard output: %s", strerror(errno));
    return status;
}
