// Per-pixel parts of local contrast normalisation.

KERNEL channel_moments(Index count, const Real *images, Real *mean, Real *variance, Index channels) {
    EACH(i, count) {
        const Real *pixel = images + i * channels;
        Real total = 0, squares = 0;
        for (Index k = 0; k < channels; k++) total += pixel[k];
        const Real centre = total / (Real)channels;
        for (Index k = 0; k < channels; k++) squares += (pixel[k] - centre) * (pixel[k] - centre);
        mean[i] = centre;
        variance[i] = squares / (Real)channels;
    }
}

KERNEL normalise_contrast(
    Index count, const Real *images, const Real *local_mean, const Real *deviation, Real *outputs, Index channels
) {
    EACH(i, count) outputs[i] = (images[i] - local_mean[i / channels]) / deviation[i / channels];
}

KERNEL contrast_slopes(
    Index count, const Real *outputs, const Real *output_gradient, const Real *deviation, Real threshold,
    Real *slopes, Real *sums, Index channels
) {
    EACH(i, count) {
        Real product = 0, total = 0;
        for (Index k = i * channels; k < (i + 1) * channels; k++) {
            product += output_gradient[k] * outputs[k];
            total += output_gradient[k];
        }
        const Real d = deviation[i];
        slopes[i] = d > threshold ? -product / (2 * d * d) : 0;
        sums[i] = total / d;
    }
}

KERNEL backprop_contrast(
    Index count, const Real *outputs, const Real *output_gradient, const Real *deviation, const Real *slopes,
    const Real *shifts, Real *input_gradient, Index channels
) {
    EACH(i, count) {
        const Index pixel = i / channels;
        const Real d = deviation[pixel], share = (Real)1 / (Real)channels;
        input_gradient[i] =
            output_gradient[i] / d + share * (2 * slopes[pixel] * d * outputs[i] - shifts[pixel]);
    }
}
