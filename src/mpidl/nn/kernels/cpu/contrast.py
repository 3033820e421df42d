"""Per-pixel parts of local contrast normalisation, for arrays (pixels, channels) and (pixels,)."""

from __future__ import annotations

from functools import partial

from mpidl.jit import jit


@partial(jit, reassociate=True)
def channel_moments(images, mean, variance):  # type: ignore[no-untyped-def]
    """Overwrite `mean` and `variance` with those over the channels of each pixel."""
    pixels, channels = images.shape
    zero, share = images.dtype.type(0), images.dtype.type(1 / channels)
    for i in range(pixels):
        total, squares = zero, zero
        for k in range(channels):
            total += images[i, k]
        centre = share * total
        for k in range(channels):
            difference = images[i, k] - centre
            squares += difference * difference
        mean[i], variance[i] = centre, share * squares


@jit
def normalise_contrast(images, local_mean, deviation, outputs):  # type: ignore[no-untyped-def]
    """Overwrite `outputs` (pixels, channels) with ``(images - local_mean) / deviation``."""
    pixels, channels = images.shape
    one = images.dtype.type(1)
    for i in range(pixels):
        mean, scale = local_mean[i], one / deviation[i]
        for k in range(channels):
            outputs[i, k] = scale * (images[i, k] - mean)


@partial(jit, reassociate=True)
def contrast_slopes(outputs, output_gradient, deviation, threshold, slopes, sums):  # type: ignore[no-untyped-def]
    """Overwrite `slopes` with the gradient of the squared deviation, and `sums` with that of each pixel's mean.

    With outputs y, their gradient g and the deviation d, the former is -sum(g y) / (2 d^2), or zero where d is the
    threshold; the latter is sum(g) / d, with the sign reversed.
    """
    pixels, channels = outputs.shape
    zero, half, one = outputs.dtype.type(0), outputs.dtype.type(0.5), outputs.dtype.type(1)
    least = outputs.dtype.type(threshold)
    for i in range(pixels):
        product, total = zero, zero
        for k in range(channels):
            product += output_gradient[i, k] * outputs[i, k]
            total += output_gradient[i, k]
        scale = one / deviation[i]
        slopes[i] = -half * product * scale * scale if deviation[i] > least else zero
        sums[i] = total * scale


@jit
def backprop_contrast(outputs, output_gradient, deviation, slopes, shifts, input_gradient):  # type: ignore[no-untyped-def]
    """Overwrite `input_gradient` with g / d + 2 slopes d y / channels - shifts / channels; see `contrast_slopes`."""
    pixels, channels = outputs.shape
    one, share = outputs.dtype.type(1), outputs.dtype.type(1 / channels)
    for i in range(pixels):
        scale, slope, shift = one / deviation[i], share * (slopes[i] + slopes[i]) * deviation[i], share * shifts[i]
        for k in range(channels):
            input_gradient[i, k] = scale * output_gradient[i, k] + slope * outputs[i, k] - shift
