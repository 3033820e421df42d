// Pooling. Windows are of size `down` x `wide`; there are `rows` x `across` positions.

// One thread per output.
KERNEL max_pool(
    Index count, const Real *images, Real *outputs, int *winners, Index height, Index width, Index channels,
    Index rows, Index across, Index down, Index wide, Index stride_y, Index stride_x, Index padding_y, Index padding_x
) {
    EACH(i, count) {
        Index image = i;
        const Index k = take(image, channels);
        const Index left = take(image, across) * stride_x - padding_x, top = take(image, rows) * stride_y - padding_y;
        Real best = 0;
        Index winner = -1;
        for (Index y = top > 0 ? top : 0; y < top + down && y < height; y++)
            for (Index x = left > 0 ? left : 0; x < left + wide && x < width; x++) {
                const Real value = images[((image * height + y) * width + x) * channels + k];
                // A value that differs from itself is NaN, which is kept.
                if (winner < 0 || value > best || (value != value && best == best)) {
                    best = value;
                    winner = y * width + x;
                }
            }
        outputs[i] = best;
        winners[i] = (int)winner;
    }
}

// One thread per channel of each pixel sums over the windows whose maximum it is, always in the same order.
KERNEL backprop_max_pool(
    Index count, const Real *output_gradient, Real *input_gradient, const int *winners, Index pixels, Index channels,
    Index positions
) {
    EACH(i, count) {
        Index image = i;
        const Index k = take(image, channels), pixel = take(image, pixels);
        Real sum = 0;
        for (Index p = 0; p < positions; p++) {
            const Index j = (image * positions + p) * channels + k;
            if (winners[j] == (int)pixel) sum += output_gradient[j];
        }
        input_gradient[i] = sum;
    }
}

// One thread per output: the mean over its window, or the root of the sum of squares.
KERNEL pool(
    Index count, const Real *images, Real *outputs, Index squares, Index height, Index width, Index channels,
    Index rows, Index across, Index down, Index wide, Index stride_y, Index stride_x, Index padding_y, Index padding_x
) {
    EACH(i, count) {
        Index image = i;
        const Index k = take(image, channels);
        const Index left = take(image, across) * stride_x - padding_x, top = take(image, rows) * stride_y - padding_y;
        Real sum = 0;
        for (Index y = top > 0 ? top : 0; y < top + down && y < height; y++)
            for (Index x = left > 0 ? left : 0; x < left + wide && x < width; x++) {
                const Real value = images[((image * height + y) * width + x) * channels + k];
                sum += squares ? value * value : value;
            }
        outputs[i] = squares ? sqrt(sum) : sum / (Real)(down * wide);
    }
}

// One thread per channel of each pixel sums the gradients of the windows that contain it, divided by the window's size;
// with `squares`, divided by each window's output and multiplied by the pixel.
KERNEL backprop_pool(
    Index count, const Real *images, const Real *outputs, const Real *output_gradient, Real *input_gradient,
    Index squares, Index height, Index width, Index channels,
    Index rows, Index across, Index down, Index wide, Index stride_y, Index stride_x, Index padding_y, Index padding_x
) {
    EACH(i, count) {
        Index image = i;
        const Index k = take(image, channels), x = take(image, width), y = take(image, height);
        const Index top = first_over(y + padding_y, down, stride_y), bottom = last_over(y + padding_y, stride_y, rows);
        const Index left = first_over(x + padding_x, wide, stride_x);
        const Index right = last_over(x + padding_x, stride_x, across);
        Real sum = 0;
        for (Index p = top; p <= bottom; p++)
            for (Index q = left; q <= right; q++) {
                const Index j = ((image * rows + p) * across + q) * channels + k;
                if (!squares)
                    sum += output_gradient[j];
                else if (outputs[j] != 0)
                    sum += output_gradient[j] / outputs[j];
            }
        input_gradient[i] = squares ? sum * images[i] : sum / (Real)(down * wide);
    }
}
