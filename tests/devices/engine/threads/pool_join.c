/* The thread pool and the measurement of its barriers, for tests/devices/engine/threads/test_pool_benchmark.py. */
#include "../../../../devices/engine/runtime/threads/pool.c"
#include "../../../../devices/engine/runtime/threads/split.c"
#include "../../../../devices/engine/runtime/status.c"
#include "../../../../devices/engine/runtime/threads/threads.c"
#include "../../../../devices/engine/runtime/threads/turn.c"
#include "../../../../scripts/engine/pool_join.c"
