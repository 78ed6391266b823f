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
