/* opencl_faults.c with the functions that make and release objects, for the C host of OpenCL, and with those of command
 * buffers. */
#define FAULTS_OF_HOST
#include "opencl_faults.c"
