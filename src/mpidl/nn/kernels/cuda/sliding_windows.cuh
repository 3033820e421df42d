// Positions of sliding windows and of the elements of arrays.

// Return the index along the last axis, of length `extent`, and remove that axis from the flat index.
static __device__ Index take(Index &flat, Index extent) {
    const Index rest = flat / extent, place = flat - rest * extent;
    flat = rest;
    return place;
}

// The first position whose window contains a pixel; `place` counts from the edge of the padding.
static __device__ Index first_over(Index place, Index size, Index stride) {
    return place < size ? 0 : (place - size) / stride + 1;
}

static __device__ Index last_over(Index place, Index stride, Index positions) {
    const Index last = place / stride;
    return last < positions ? last : positions - 1;
}
