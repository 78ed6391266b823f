/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What programs do that a dry run cannot follow, by the calls that show it:
 *   runtime     a CUDA runtime that was linked statically asks the driver for its undocumented tables
 *   framework   a framework that divides the device itself takes memory by the driver's functions
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

int cuGetExportTable(const void **table, const void *id);
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuMemAlloc_v2(address *block, size_t bytes);

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "runtime") == 0) {
        const void *table = NULL;
        char id[16] = {0};
        int answer = cuGetExportTable(&table, id);
        printf("table %d\n", answer);
        return 36;
    }
    void *context = NULL;
    address block = 0;
    int answer = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuMemAlloc_v2(&block, 20 * GIB);
    printf("goes on %d\n", answer);
    return 0;
}
