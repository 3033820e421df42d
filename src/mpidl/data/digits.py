"""Handwritten digits that come with the package.

UCI Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak, 1998, https://doi.org/10.24432/C50P49),
licensed under CC BY 4.0: the 1797 samples of its test part, 8x8 pixels each, which scikit-learn bundles too.
Changes: a pixel p in 0 to 16 became the byte round(255 p / 16), and the samples were split into 1437 training and
360 test samples, the first and the rest of ``numpy.random.default_rng(0).permutation(1797)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mpidl.data.columns import Column, check
from mpidl.data.dataset import ArraySplit, Dataset
from mpidl.data.hdf5_files import open_columns

FILE = Path(__file__).with_name("digits.h5")


@dataclass(frozen=True)
class Digits:
    """Handwritten digits: inputs (8, 8), 10 classes, 1437 training and 360 test samples."""

    name: ClassVar[str] = "digits"

    def open(self) -> Dataset:
        columns = {key: Column(column.name, column.values[()]) for key, column in open_columns([FILE]).items()}
        train, test = (columns["train/x"], columns["train/y"]), (columns["test/x"], columns["test/y"])
        input_shape, classes = check(train, test, classes=10)
        return Dataset(
            self.name,
            input_shape,
            classes,
            ArraySplit(train[0].values, train[1].values),
            ArraySplit(test[0].values, test[1].values),
        )
