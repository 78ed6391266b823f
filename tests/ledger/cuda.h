/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The few CUDA functions that the programs here call, so that no CUDA is needed to compile them. */
#ifndef TONNAGE_TESTS_CUDA_H
#define TONNAGE_TESTS_CUDA_H

#include <stddef.h>

typedef unsigned long long address;

int cudaSetDevice(int device);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaMalloc(void **block, size_t bytes);
int cudaMallocManaged(void **block, size_t bytes, unsigned flags);
int cudaFree(void *block);
int cudaMallocHost(void **block, size_t bytes);
int cudaFreeHost(void *block);
int cudaStreamCreate(void **stream);
int cudaMallocAsync(void **block, size_t bytes, void *stream);
int cudaFreeAsync(void *block, void *stream);
int cudaDeviceGetDefaultMemPool(void **pool, int device);
int cudaMemPoolSetAttribute(void *pool, int attribute, void *value);
int cudaMemPoolTrimTo(void *pool, size_t keep);
int cuMemAddressReserve(address *start, size_t bytes, size_t alignment, address wish, unsigned long long flags);
int cuMemAddressFree(address start, size_t bytes);
int cuMemCreate(address *handle, size_t bytes, const void *properties, unsigned long long flags);
int cuMemRelease(address handle);
int cuMemMap(address start, size_t bytes, size_t offset, address handle, unsigned long long flags);
int cuMemUnmap(address start, size_t bytes);
int cusolverDnCreateParams(void **parameters);
int cudaStreamSynchronize(void *stream);
int cudaStreamDestroy(void *stream);
int cudaGetSymbolAddress(void **found, const void *symbol);
struct extent {
    unsigned x, y, z;
};
int cudaLaunchKernel(
    const void *kernel, struct extent grid, struct extent block, void **arguments, size_t shared, void *stream);
void **__cudaRegisterFatBinary(void *binary);
void __cudaUnregisterFatBinary(void **binary);
void __cudaRegisterFunction(
    void **binary, const char *host, char *device, const char *name, int threads, void *thread, void *block,
    void *block_extent, void *grid_extent, int *warp);
void __cudaRegisterVar(
    void **binary, char *host, char *device, const char *name, int external, size_t bytes, int constant, int global);
int cuModuleLoadData(void **module, const void *image);
int cuModuleGetGlobal_v2(address *start, size_t *bytes, void *module, const char *name);
int cuModuleUnload(void *module);
int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);
int cublasSetStream_v2(void *handle, void *stream);
int cublasSgemm_v2(
    void *handle, int a_form, int b_form, int m, int n, int k, const float *alpha, const void *a, int a_step,
    const void *b, int b_step, const float *beta, void *c, int c_step);
int cublasLtMatrixLayoutCreate(
    void **layout, int type, unsigned long long rows, unsigned long long columns, long long step);
int cusparseCreate(void **handle);
int cusparseSetPointerMode(void *handle, int mode);
int ncclGetUniqueId(void *id);
int ncclCommInitAll(void **communicators, int count, const int *devices);
int ncclAllReduce(
    const void *from, void *to, size_t count, int type, int operation, void *communicator, void *stream);
int ncclCommDestroy(void *communicator);

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* Physical memory of a device, as cuMemCreate wants it described. */
static inline int create_physical(address *handle, size_t bytes, int device) {
    int properties[8] = {1, 0, 1, device, 0, 0, 0, 0};
    return cuMemCreate(handle, bytes, properties, 0);
}

static inline size_t free_bytes(void) {
    size_t free_now = 0, total = 0;
    cudaMemGetInfo(&free_now, &total);
    return free_now;
}

#endif
