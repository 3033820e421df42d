"""The loops that reflect, rotate and shift images and add noise, one image at a time.

Images are (height, width, channels) of float32. The loops over one image take the whole batch as a flat array, in
which the image begins at `first`. Random numbers are hashes of (seed, epoch, sample) and a counter: splitmix64 (Steele,
Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
"""

from __future__ import annotations

from math import cos, exp, log, pi, sin, sqrt

import numpy as np
from numpy.typing import NDArray

from mpidl.jit import jit

STEP = np.uint64(0x9E3779B97F4A7C15)  # increment of splitmix64's counter
DRAWS = np.uint64(4)  # random numbers drawn for a sample before its noise
unsigned = np.uint64  # an unsigned index needs no test for negative values, which would double the time of a copy
LAYERS = 128  # of the ziggurat
TAIL = 3.442619855899  # where the lowest layer ends
AREA = 9.91256303526217e-3  # area of each layer


def _edges() -> NDArray[np.float64]:
    """Return the right edges of the layers under exp(-x^2 / 2), and 0; the lowest layer is a rectangle with no tail."""
    edges = [AREA / exp(-(TAIL**2) / 2), TAIL]
    while len(edges) < LAYERS:
        edges.append(sqrt(-2 * log(AREA / edges[-1] + exp(-(edges[-1] ** 2) / 2))))
    return np.array([*edges, 0.0])


EDGES = _edges()
INNER = EDGES[1:] / EDGES[:-1]  # fraction of each layer that lies entirely under the curve


@jit
def mixed(bits):  # type: ignore[no-untyped-def]
    """Return 64 random bits: splitmix64's hash of `bits`."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@jit
def unit(bits):  # type: ignore[no-untyped-def]
    """Return a float in the open interval (0, 1) from the upper 52 bits."""
    return ((bits >> np.uint64(12)) + 0.5) * 2.0**-52


@jit
def distort(images, out, indices, seed, epoch, reflect, translate, rotate, noise):  # type: ignore[no-untyped-def]
    """Augment a batch.

    Parameters
    ----------
    images, out : array (n, height, width, channels), float32, C-contiguous
        `out` is overwritten.
    indices : array (n,) of int64
        Indices of the samples.
    seed : uint64
    epoch : int
    reflect : bool
    translate : int
        Pixels, less than 2**31.
    rotate : float
        Degrees.
    noise : float
    """
    of_epoch = mixed(seed + np.uint64(epoch) * STEP)
    shape = images.shape[1:]
    size = shape[0] * shape[1] * shape[2]
    pixels, changed = images.reshape(-1), out.reshape(-1)
    spread = np.uint64(2 * translate + 1)
    for i in range(len(images)):
        state = mixed(of_epoch + np.uint64(indices[i]) * STEP)
        # All numbers are always drawn, so that none depends on the other settings.
        first, second = mixed(state + STEP), mixed(state + np.uint64(2) * STEP)
        third, fourth = mixed(state + np.uint64(3) * STEP), mixed(state + DRAWS * STEP)
        flipped = reflect and (first >> np.uint64(63)) == np.uint64(1)
        down = np.int64(((second >> np.uint64(32)) * spread) >> np.uint64(32)) - translate
        right = np.int64(((third >> np.uint64(32)) * spread) >> np.uint64(32)) - translate
        if rotate > 0:
            rotate_and_shift(pixels, changed, i * size, shape, flipped, down, right, rotate * (2 * unit(fourth) - 1))
        else:
            shift(pixels, changed, i * size, shape, flipped, down, right)
        if noise > 0:
            add_noise(changed, i * size, size, state + DRAWS * STEP, noise)


@jit
def shift(images, out, first, shape, flipped, down, right):  # type: ignore[no-untyped-def]
    """Copy an image, reflected if `flipped` and then shifted by less than its size; zero outside the image."""
    height, width, channels = shape
    line = width * channels
    before, copied = unsigned(max(0, right) * channels), unsigned((width - abs(right)) * channels)
    pixel = unsigned(channels)
    for y in range(height):
        start = unsigned(first + y * line)
        if y - down < 0 or y - down >= height:
            for j in range(unsigned(line)):
                out[start + j] = 0
            continue
        for j in range(before):
            out[start + j] = 0
        for j in range(before + copied, unsigned(line)):
            out[start + j] = 0
        start += before
        line_start, skipped = first + (y - down) * line, max(0, -right) * channels
        source, last = unsigned(line_start + skipped), unsigned(line_start + line - channels - skipped)
        if not flipped:
            for j in range(copied):
                out[start + j] = images[source + j]
        elif channels == 1:
            for j in range(copied):
                out[start + j] = images[last - j]
        else:
            for j in range(unsigned(0), copied, pixel):
                for k in range(pixel):
                    out[start + j + k] = images[last - j + k]


@jit
def rotate_and_shift(images, out, first, shape, flipped, down, right, degrees):  # type: ignore[no-untyped-def]
    """Reflect, rotate counterclockwise and shift an image; bilinear, zero beyond the outermost pixels' centres."""
    height, width, channels = shape
    middle_y, middle_x = (height - 1) / 2, (width - 1) / 2
    cosine, sine = cos(degrees * pi / 180), sin(degrees * pi / 180)
    target = unsigned(first)
    pixel = unsigned(channels)
    for y in range(height):
        from_y = y - down - middle_y
        start_y, start_x = cosine * from_y + middle_y, middle_x - sine * from_y
        for x in range(width):
            from_x = x - right - middle_x
            at_y, at_x = start_y + sine * from_x, start_x + cosine * from_x
            if 0 <= at_y <= height - 1 and 0 <= at_x <= width - 1:
                if flipped:
                    at_x = width - 1 - at_x
                top, left = int(at_y), int(at_x)
                low, far = np.float32(at_y - top), np.float32(at_x - left)
                here = unsigned(first + (top * width + left) * channels)
                aside = unsigned(channels if left < width - 1 else 0)
                below = unsigned(width * channels if top < height - 1 else 0)
                for k in range(pixel):
                    upper, lower = images[here + k], images[here + below + k]
                    upper += far * (images[here + aside + k] - upper)
                    lower += far * (images[here + below + aside + k] - lower)
                    out[target + k] = upper + low * (lower - upper)
            else:
                for k in range(pixel):
                    out[target + k] = 0
            target += pixel


@jit
def add_noise(images, first, size, state, deviation):  # type: ignore[no-untyped-def]
    """Add Gaussian noise by the ziggurat method of Marsaglia and Tsang (2000), as amended by Doornik (2005)."""
    for j in range(unsigned(first), unsigned(first + size)):
        while True:
            state += STEP
            bits = mixed(state)
            layer = bits & np.uint64(LAYERS - 1)
            part = 2 * unit(bits) - 1
            value = part * EDGES[layer]
            if abs(part) < INNER[layer]:
                break
            if layer == np.uint64(0):
                excess, height = 0.0, 0.0
                while 2 * height <= excess * excess:
                    state += np.uint64(2) * STEP
                    excess, height = -log(unit(mixed(state - STEP))) / TAIL, -log(unit(mixed(state)))
                value = TAIL + excess if part > 0 else -TAIL - excess
                break
            state += STEP
            outer = exp(-(EDGES[layer] * EDGES[layer] - value * value) / 2)
            inner = exp(-(EDGES[layer + np.uint64(1)] * EDGES[layer + np.uint64(1)] - value * value) / 2)
            if inner + unit(mixed(state)) * (outer - inner) < 1:
                break
        images[j] += np.float32(deviation * value)
