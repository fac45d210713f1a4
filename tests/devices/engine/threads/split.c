/* How units are divided among threads, for tests/devices/engine/test_queues.py. */
#include "../../../../devices/engine/runtime/threads/split.c"
