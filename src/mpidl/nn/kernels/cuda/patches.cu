// Patches of images. Windows are of size `down` x `wide`; there are `rows` x `across` positions.

// One thread per element of the patches.
KERNEL gather_patches(
    Index count, const Real *images, Real *patches, Index height, Index width, Index channels,
    Index rows, Index across, Index down, Index wide, Index depth,
    Index stride_y, Index stride_x, Index padding_y, Index padding_x, Index row, Index channel
) {
    EACH(i, count) {
        Index image = i;
        const Index k = take(image, depth), v = take(image, wide), u = take(image, down);
        const Index x = take(image, across) * stride_x - padding_x + v;
        const Index y = (row + take(image, rows)) * stride_y - padding_y + u;
        const bool inside = 0 <= y && y < height && 0 <= x && x < width;
        patches[i] = inside ? images[((image * height + y) * width + x) * channels + channel + k] : 0;
    }
}

// One thread per channel of each pixel in `extent` rows, from row `first` on.
KERNEL scatter_patches(
    Index count, const Real *patches, Real *images, Index height, Index width, Index channels,
    Index rows, Index across, Index down, Index wide, Index depth,
    Index stride_y, Index stride_x, Index padding_y, Index padding_x, Index row, Index channel,
    Index first, Index extent
) {
    EACH(i, count) {
        Index image = i;
        const Index k = take(image, depth), x = take(image, width), y = first + take(image, extent);
        const Index above = first_over(y + padding_y, down, stride_y), top = above > row ? above : row;
        const Index bottom = last_over(y + padding_y, stride_y, row + rows);
        const Index left = first_over(x + padding_x, wide, stride_x);
        const Index right = last_over(x + padding_x, stride_x, across);
        Real sum = 0;
        for (Index p = top; p <= bottom; p++) {
            const Index u = y + padding_y - p * stride_y;
            for (Index q = left; q <= right; q++) {
                const Index v = x + padding_x - q * stride_x;
                sum += patches[((((image * rows + p - row) * across + q) * down + u) * wide + v) * depth + k];
            }
        }
        images[((image * height + y) * width + x) * channels + channel + k] += sum;
    }
}
