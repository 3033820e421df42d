"""Packing a folder of images into an HDF5 file for the source ``hdf5``: one size, in random order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import UsageError
from mpidl.paths import check_new, whole, writing_hdf5

if TYPE_CHECKING:
    import h5py
    from PIL import Image

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
#: The formats that are opened: images only, not programs such as PostScript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
#: Beginnings of the names of folders that aren't classes; macOS adds the second to archives.
HIDDEN = (".", "__MACOSX")
BLOCK = 256  # images that are read and written at a time


class _Image(NamedTuple):
    path: Path
    label: int


class _Kind(NamedTuple):
    """Type of an image's values."""

    name: str
    dtype: str
    channels: int


#: Images whose values don't fit in bytes have one channel; all others become red, green and blue.
BYTES, VALUES = _Kind("8 bits a channel", "uint8", 3), _Kind("16 bits or floats", "float32", 1)


def pack(
    folder: Path,
    file: Path,
    size: int = 224,
    test: Path | None = None,
    test_fraction: float = 0.1,
    seed: int = 0,
    force: bool = False,
) -> dict[str, Any]:
    """Write a folder of images, with a subfolder for each class, as train/x, train/y, test/x and test/y.

    The central square of each image, upright as its EXIF orientation says, is scaled to `size`. The order is random
    because portions of a file are contiguous. Hidden files, whose names begin with a dot, are left out.

    Parameters
    ----------
    folder : Path
        Its subfolders are the classes, in the order of their names; or it contains such folders named ``train`` and,
        optionally, ``val`` or ``test``.
    file : Path
        The file, which appears when it is complete. x: (n, size, size, 3) bytes, or (n, size, size, 1) float32 for
        images of 16 bits or floats; y: (n,) int64; ``classes``: names.
    size : int
        Pixels along each side.
    test : Path, optional
        Folder of test images, with the same classes.
    test_fraction : float
        Fraction of each class's images, in (0, 1), for testing if there is no folder of test images.
    seed : int
        Seed of the order and of the choice of test images.
    force : bool
        Whether to replace the file if it exists.

    Returns
    -------
    dict
        The keys are file, classes, train_samples and test_samples.

    Raises
    ------
    UsageError
        Pillow isn't installed, a folder is missing or empty, an image can't be read or has another type than the
        first, or the file exists or can't be written.
    """
    _check_pillow()
    check_new(file, force)
    random = np.random.default_rng(seed)
    train, test = _splits(folder, test)
    classes = _classes(train)
    images = _images(train, classes)
    if test is not None:
        splits = {"train": images, "test": _images(test, classes)}
    else:
        splits = _divided(images, test_fraction, random)
    for chosen in splits.values():
        random.shuffle(chosen)
    _write(file, size, splits, classes)
    samples = {f"{split}_samples": len(chosen) for split, chosen in splits.items()}
    return {"file": str(file), "classes": len(classes), **samples}


def _check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise UsageError("data pack: Pillow is not installed, expected `pip install 'mpidl[images]'`") from None


def _splits(folder: Path, test: Path | None) -> tuple[Path, Path | None]:
    for path in (folder, test):
        if path is not None and not path.is_dir():
            raise UsageError(f"{path}: no such folder, expected one with a subfolder of images for each class")
    if not (folder / "train").is_dir():
        return folder, test
    inside = [folder / name for name in ("val", "test") if (folder / name).is_dir()]
    return folder / "train", test or next(iter(inside), None)


def _classes(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(HIDDEN))
    if not names:
        raise UsageError(f"{folder}: no subfolders, expected one of images for each class")
    return names


def _images(folder: Path, classes: list[str]) -> list[_Image]:
    """Return the images of a split, sorted by class and name."""
    images = []
    for name in _classes(folder):
        if name not in classes:
            raise UsageError(f"{folder / name}: no training images of the class {name!r}")
        found = [path for path in sorted((folder / name).rglob("*")) if path.suffix.lower() in SUFFIXES]
        paths = [path for path in found if not any(part[0] == "." for part in path.relative_to(folder).parts)]
        if not paths:
            raise UsageError(f"{folder / name}: no images, expected {', '.join(sorted(SUFFIXES))}")
        for path in paths:
            if not path.is_file():  # reading a pipe would block
                raise UsageError(f"{path}: not a file, expected an image")
        label = classes.index(name)
        images += [_Image(path, label) for path in paths]
    return images


def _divided(images: list[_Image], fraction: float, random: np.random.Generator) -> dict[str, list[_Image]]:
    """Set aside a fraction of each class for testing, but keep at least one training image."""
    splits: dict[str, list[_Image]] = {"train": [], "test": []}
    for _, group in groupby(images, lambda image: image.label):
        of_class = list(group)
        random.shuffle(of_class)
        aside = min(round(fraction * len(of_class)), len(of_class) - 1)
        splits["test"] += of_class[:aside]
        splits["train"] += of_class[aside:]
    if not splits["test"]:
        raise UsageError(f"--test-fraction: {fraction:g} of each class selects no images; use a larger fraction")
    return splits


def _write(file: Path, size: int, splits: dict[str, list[_Image]], classes: list[str]) -> None:
    with whole(file) as path, writing_hdf5(path) as written:
        written["classes"] = classes
        written.attrs["size"] = size
        first = splits["train"][0].path
        with _opened(first) as opened:
            kind = _kind_of(opened, first)
        for split, images in splits.items():
            _write_split(written.create_group(split), split, images, size, kind)


def _write_split(group: h5py.Group, split: str, images: list[_Image], size: int, kind: _Kind) -> None:
    from tqdm import tqdm

    group["y"] = np.array([image.label for image in images], np.int64)
    # Contiguous storage: a portion is read by a single call, directly into its memory.
    inputs = group.create_dataset("x", (len(images), size, size, kind.channels), kind.dtype)
    with tqdm(total=len(images), desc=split, unit=" images", file=sys.stderr, disable=None) as bar:
        for start, block in _decoded(images, size, kind):
            inputs[start : start + len(block)] = block
            bar.update(len(block))


def _decoded(images: list[_Image], size: int, kind: _Kind) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the index of each block's first image, and the block; decode on all cores."""
    decode = partial(_decode, size=size, kind=kind)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for start in range(0, len(images), BLOCK):
            yield start, np.stack(list(threads.map(decode, images[start : start + BLOCK])))


def _decode(image: _Image, size: int, kind: _Kind) -> NDArray[Any]:
    from PIL import Image, ImageOps

    with _opened(image.path) as opened:
        if (found := _kind_of(opened, image.path)) != kind:
            raise UsageError(f"{image.path}: an image of {found.name}, expected {kind.name} as in the others")
        if kind is BYTES:
            opened.draft("RGB", (size, size))  # a large JPEG is decoded at a fraction of its size
        ImageOps.exif_transpose(opened, in_place=True)
        whole = opened.convert("RGB") if kind is BYTES else Image.fromarray(np.asarray(opened).astype(np.float32))
        fitted = ImageOps.fit(whole, (size, size), Image.Resampling.BILINEAR)
        return np.asarray(fitted).reshape(size, size, kind.channels)


def _kind_of(opened: Image.Image, path: Path) -> _Kind:
    if opened.mode.startswith(("I", "F")):
        return VALUES
    # Pillow would leave out the lower half of each value.
    if any("16" in str(tile[-1]) for tile in getattr(opened, "tile", ())):
        raise UsageError(f"{path}: 16 bits a channel and several channels, expected 8 bits, or one channel")
    return BYTES


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as opened:
            yield opened
    except UsageError:
        raise
    except Exception as error:  # decoders raise all kinds of errors
        raise UsageError(f"{path}: not a valid image ({' '.join(str(error).split())})") from None
