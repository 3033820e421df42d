"""The windows of images (height, width, channels), as rows of a matrix; see `mpidl.nn.windows.Windows`."""

from __future__ import annotations

from mpidl.jit import jit


@jit
def gather_patches(images, patches, of, row, channel):  # type: ignore[no-untyped-def]
    """Copy some channels of the windows at some rows of positions.

    Parameters
    ----------
    images : array (n, height, width, channels)
    patches : array (n, rows, positions across, *of.size, depth)
        Overwritten; zero where a window hangs over the edge.
    of : Windows
    row : int
        The first row of positions.
    channel : int
        The first of the `depth` channels.
    """
    height, width, channels = images.shape[1:]
    depth = patches.shape[5]
    whole = depth == channels
    for i in range(patches.shape[0]):
        for y in range(patches.shape[1]):
            top = (row + y) * of.stride[0] - of.padding[0]
            for x in range(patches.shape[2]):
                left = x * of.stride[1] - of.padding[1]
                begin, end = max(0, -left), min(of.size[1], width - left)
                for u in range(of.size[0]):
                    patch = patches[i, y, x, u].reshape(-1)
                    if top + u < 0 or top + u >= height or begin >= end:
                        patch[:] = 0
                        continue
                    pixels = images[i, top + u].reshape(-1)
                    patch[: begin * depth] = 0
                    if whole:
                        for k in range(begin * depth, end * depth):
                            patch[k] = pixels[left * depth + k]
                    else:
                        for v in range(begin, end):
                            for k in range(depth):
                                patch[v * depth + k] = pixels[(left + v) * channels + channel + k]
                    patch[end * depth :] = 0


@jit
def scatter_patches(patches, images, of, row, channel):  # type: ignore[no-untyped-def]
    """Add to each pixel what the windows that have it say: the adjoint of `gather_patches`."""
    height, width, channels = images.shape[1:]
    depth = patches.shape[5]
    whole = depth == channels
    for i in range(patches.shape[0]):
        for y in range(patches.shape[1]):
            top = (row + y) * of.stride[0] - of.padding[0]
            for x in range(patches.shape[2]):
                left = x * of.stride[1] - of.padding[1]
                begin, end = max(0, -left), min(of.size[1], width - left)
                for u in range(of.size[0]):
                    if top + u < 0 or top + u >= height:
                        continue
                    patch = patches[i, y, x, u].reshape(-1)
                    pixels = images[i, top + u].reshape(-1)
                    if whole:
                        for k in range(begin * depth, end * depth):
                            pixels[left * depth + k] += patch[k]
                    else:
                        for v in range(begin, end):
                            for k in range(depth):
                                pixels[(left + v) * channels + channel + k] += patch[v * depth + k]
