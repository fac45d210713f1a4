/* The thread pool and the measurement of its barriers, for tests/devices/engine/test_pool_benchmark.py. */
#include "../../../devices/engine/runtime/pool.c"
#include "../../../devices/engine/runtime/split.c"
#include "../../../devices/engine/runtime/status.c"
#include "../../../devices/engine/runtime/threads.c"
#include "../../../devices/engine/runtime/turn.c"
#include "../../../scripts/engine/pool_join.c"
