"""Packing a folder of images into a file that the source hdf5 reads."""

import os
import struct
import sys
import zlib

import data_files
import h5py
import numpy as np
import pytest
from PIL import Image, ImageOps

from mpidl.data import Hdf5
from mpidl.data.pack import pack

SIZE = 8


def draw(path, colour, shape=(20, 13), **keywords):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(keywords.pop("mode", "RGB"), shape, colour).save(path, **keywords)


@pytest.fixture
def folder(tmp_path):
    """Three classes of 5, 4 and 6 images, each image in a different colour."""
    for label, (name, images) in enumerate({"ant": 5, "bee": 4, "cat": 6}.items()):
        for number in range(images):
            draw(tmp_path / "all" / name / f"{number}.png", (100 * label, 20 * number, 7))
    (tmp_path / "all" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "all" / ".hidden").mkdir()
    return tmp_path / "all"


def colours(split):
    """Return (label, colour) of each image; all images must have a single colour."""
    batch = split.gather(np.arange(split.samples))
    pixels = np.round(batch.inputs * 255).astype(int)
    assert np.all(pixels == pixels[:, :1, :1])
    return [(int(label), *pixel) for label, pixel in zip(batch.targets, pixels[:, 0, 0].tolist(), strict=True)]


def expected(**classes):
    return sorted((label, 100 * label, 20 * n, 7) for label, images in enumerate(classes.values()) for n in images)


def test_every_image_is_there_once_with_its_label(folder, tmp_path):
    file = tmp_path / "packed.h5"
    told = pack(folder, file, SIZE, test_fraction=0.4)
    assert told == {"file": str(file), "classes": 3, "train_samples": 9, "test_samples": 6}
    dataset = Hdf5(str(file)).open()
    assert (dataset.input_shape, dataset.classes) == ((SIZE, SIZE, 3), 3)
    train, test = colours(dataset.train), colours(dataset.test)
    assert sorted(train + test) == expected(ant=range(5), bee=range(4), cat=range(6))
    assert [label for label, *_ in sorted(test)] == [0, 0, 1, 1, 2, 2]
    assert train != sorted(train)
    with h5py.File(file, locking=False) as opened:
        assert opened["classes"].asstr()[()].tolist() == ["ant", "bee", "cat"]
        assert opened["train/x"].chunks is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "packed.h5"]


def test_the_seed_decides_the_order(folder, tmp_path):
    def order(seed):
        pack(folder, tmp_path / "packed.h5", SIZE, seed=seed, test_fraction=0.4, force=True)
        dataset = Hdf5(str(tmp_path / "packed.h5")).open()
        return colours(dataset.train) + colours(dataset.test)

    assert order(1) == order(1)
    assert order(1) != order(2)


@pytest.mark.parametrize("name", ["val", "test", "apart"])
def test_folders_that_are_splits(folder, tmp_path, name):
    splits = tmp_path / "splits"
    splits.mkdir()
    folder.rename(splits / "train")
    draw(splits / name / "bee" / "new.PNG", (1, 2, 3))
    pack(splits, tmp_path / "packed.h5", SIZE, test=splits / name if name == "apart" else None)
    dataset = Hdf5(str(tmp_path / "packed.h5")).open()
    assert sorted(colours(dataset.train)) == expected(ant=range(5), bee=range(4), cat=range(6))
    assert colours(dataset.test) == [(1, 1, 2, 3)]


@pytest.mark.parametrize("shape", [(31, 17), (17, 31), (8, 8), (5, 3), (700, 500)])
def test_the_middle_square_is_scaled(tmp_path, shape):
    for name in ("0.png", "1.png"):
        path = tmp_path / "all" / "one" / name
        draw(path, 0, shape)
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (*shape[::-1], 3), np.uint8)).save(path)
    pack(tmp_path / "all", tmp_path / "packed.h5", SIZE, test_fraction=0.5)
    image = ImageOps.fit(Image.open(path), (SIZE, SIZE), Image.Resampling.BILINEAR)
    found = Hdf5(str(tmp_path / "packed.h5")).open().train.gather(np.array([0])).inputs[0]
    assert np.array_equal(np.round(found * 255), np.asarray(image))


@pytest.mark.parametrize(
    ("name", "mode", "colour", "found"),
    [
        ("a.png", "L", 90, (90, 90, 90)),
        ("a.gif", "P", 1, (1, 1, 1)),
        ("a.png", "RGBA", (9, 99, 199, 50), (9, 99, 199)),
        ("a.jpeg", "CMYK", (255, 255, 255, 0), (0, 0, 0)),
        ("a.JPG", "RGB", (128, 128, 128), (128, 128, 128)),
    ],
)
def test_every_kind_becomes_red_green_and_blue(tmp_path, name, mode, colour, found):
    for split in ("train", "test"):
        keywords = {"format": "JPEG"} if "j" in name.lower() else {}
        draw(tmp_path / "all" / split / "one" / name, colour, (900, 600), mode=mode, **keywords)
    if mode == "P":
        palette = Image.open(tmp_path / "all" / "train" / "one" / name).convert("RGB")
        found = palette.getpixel((0, 0))
    pack(tmp_path / "all", tmp_path / "packed.h5", SIZE)
    assert colours(Hdf5(str(tmp_path / "packed.h5")).open().train) == [(0, *found)]


@pytest.mark.parametrize(("name", "keywords"), [("a.jpg", {"quality": 100}), ("a.png", {}), ("a.tif", {})])
@pytest.mark.parametrize(
    ("orientation", "turn"),
    [(3, Image.Transpose.ROTATE_180), (5, Image.Transpose.TRANSPOSE), (8, Image.Transpose.ROTATE_90)],
)
def test_photographs_are_upright(tmp_path, name, keywords, orientation, turn):
    exif = Image.Exif()
    exif[0x0112] = orientation
    # Grey in coarse blocks, which a JPEG keeps; wider than high, so that the central square depends on the orientation.
    blocks = np.kron(np.random.default_rng(0).integers(0, 2, (4, 6)) * 255, np.ones((16, 16))).astype(np.uint8)
    for split in ("train", "test"):
        path = tmp_path / "all" / split / "one" / name
        path.parent.mkdir(parents=True)
        Image.fromarray(blocks).convert("RGB").save(path, exif=exif, **keywords)
    pack(tmp_path / "all", tmp_path / "packed.h5", 64)
    found = Hdf5(str(tmp_path / "packed.h5")).open().train.gather(np.array([0])).inputs[0, :, :, 0]
    assert np.abs(found - np.asarray(Image.fromarray(blocks[:, 16:80]).transpose(turn)) / 255).max() < 0.1


def test_an_orientation_that_cannot_be_read_is_none(tmp_path):
    for split in ("train", "test"):
        draw(tmp_path / "all" / split / "one" / "a.jpg", (8, 8, 8), exif=b"Exif\0\0neither MM nor II")
    pack(tmp_path / "all", tmp_path / "packed.h5", SIZE)
    assert colours(Hdf5(str(tmp_path / "packed.h5")).open().train) == [(0, 8, 8, 8)]


def test_hidden_files_are_left_out(folder, tmp_path):
    for name in ("ant/._0.JPG", "bee/.thumbnails/0.png", "cat/more/._5.jpeg", "__MACOSX/ant/._0.JPG"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(b"\0\x05\x16\x07\0\x02\0\0Mac OS X")
    assert pack(folder, tmp_path / "packed.h5", SIZE, test_fraction=0.4)["train_samples"] == 9


def fails(line, *arguments, **keywords):
    data_files.fails(lambda: pack(*arguments, **keywords), line)


def test_what_is_wrong_is_one_line(folder, tmp_path):
    file = tmp_path / "packed.h5"
    empty = tmp_path / "empty"
    empty.mkdir()
    fails(r"none: no such folder, expected one with a subfolder", tmp_path / "none", file)
    fails(r"none: no such folder, expected one with a subfolder", folder, file, test=tmp_path / "none")
    fails(r"empty: no subfolders, expected one of images for each class$", empty, file)
    line = r"^--test-fraction: 0\.01 of each class selects no images; use a larger fraction$"
    fails(line, folder, file, test_fraction=0.01)
    fails(r"^.*absent/packed\.h5: can't be written \(.*\)$", folder, tmp_path / "absent" / "packed.h5")
    draw(tmp_path / "other" / "dog" / "0.png", 0)
    fails(r"other/dog: no training images of the class 'dog'$", folder, file, test=tmp_path / "other")
    (folder / "dog").mkdir()
    fails(r"dog: no images, expected \.bmp, ", folder, file)
    assert not file.exists()


def test_without_pillow(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    fails(r"^data pack: Pillow is not installed, expected `pip install 'mpidl\[images\]'`$", folder, tmp_path / "x.h5")


def test_a_file_is_replaced_only_if_asked_to(folder, tmp_path):
    file = tmp_path / "packed.h5"
    file.write_text("something else")
    fails(r"packed\.h5: exists already, expected --force to replace it$", folder, file, SIZE)
    assert file.read_text() == "something else"
    pack(folder, file, SIZE, test_fraction=0.4, force=True)
    assert Hdf5(str(file)).open().train.samples == 9
    fails(r"all: exists already, expected the name of a file$", folder, folder, SIZE, force=True)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a.png", np.array([[1, 300], [40_000, 65_535]], np.uint16)),
        ("a.tif", np.array([[0.25, -3], [1e6, 0]], np.float32)),
        ("a.tiff", np.array([[1, -300], [2**20, 65_536]], np.int32)),
    ],
)
def test_values_that_bytes_can_not_hold_are_kept(tmp_path, name, values):
    for split in ("train", "test"):
        path = tmp_path / "all" / split / "one" / name
        path.parent.mkdir(parents=True)
        Image.fromarray(values).save(path)
    pack(tmp_path / "all", tmp_path / "packed.h5", 2)
    with h5py.File(tmp_path / "packed.h5") as file:
        assert file["train/x"].dtype == np.float32
        assert file["train/x"][0, :, :, 0].tolist() == values.tolist()


def cut_short(path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def colours_of_16_bits(path):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header, rows = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0), zlib.compress(bytes(7))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


#: What is written in the place of an image.
WRONG = {
    "nothing": (lambda path: path.write_bytes(b""), r"not a valid image \(.*\)$"),
    "text": (lambda path: path.write_bytes(b"text"), r"not a valid image \(.*\)$"),
    "half of it": (cut_short, r"not a valid image \(.*\)$"),
    "another kind": (
        lambda path: Image.fromarray(np.full((9, 9), 999, np.uint16)).save(path),
        "an image of .*, expected .* as in the others$",
    ),
    "colours of 16 bits": (colours_of_16_bits, "16 bits a channel and several channels, expected"),
    "a program": (
        lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"),
        r"not a valid image \(cannot identify .*\)$",
    ),
    "a pipe without a writer": (lambda path: (path.unlink(), os.mkfifo(path)), "not a file, expected an image$"),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_image_that_can_not_be_read_is_named(folder, tmp_path, case):
    write, line = WRONG[case]
    write(folder / "bee" / "2.png")
    fails(rf"\.png: {line}" if case == "another kind" else rf"bee/2\.png: {line}", folder, tmp_path / "packed.h5", SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["all"]
