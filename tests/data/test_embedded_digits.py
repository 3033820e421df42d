from __future__ import annotations

import h5py
import numpy as np

from mpidl.data import Digits
from mpidl.data.builtin import FILE

# Samples per class in UCI's optdigits.tes, from its description.
COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_is_what_it_says():
    dataset = Digits().open()
    assert (dataset.name, dataset.input_shape, dataset.classes) == ("digits", (8, 8), 10)
    assert (dataset.train.samples, dataset.test.samples) == (1437, 360)
    batches = [split.gather(np.arange(split.samples)) for split in (dataset.train, dataset.test)]
    assert np.bincount(np.concatenate([batch.targets for batch in batches])).tolist() == COUNTS
    assert np.bincount(batches[1].targets, minlength=10).min() > 20
    inputs = np.concatenate([batch.inputs for batch in batches])
    assert len(np.unique(inputs, axis=0)) == 1797
    sixteenths = np.round(np.unique(inputs) * 16)
    assert sixteenths.tolist() == list(range(17))
    assert np.abs(np.unique(inputs) - sixteenths / 16).max() <= 0.5 / 255 + 1e-6
    assert np.round(inputs * 16).sum() == 561718  # the sum of the original pixels, 0 to 16


def test_can_be_learnt_by_nearest_neighbour():
    dataset = Digits().open()
    train, labels = (a.copy() for a in dataset.train.gather(np.arange(1437))[:2])
    test, expected = dataset.test.gather(np.arange(360))[:2]
    train, test = train.reshape(1437, -1), test.reshape(360, -1)
    distances = (train**2).sum(1) - 2 * test @ train.T
    assert (labels[distances.argmin(1)] == expected).mean() > 0.97


def test_file_is_small_and_states_its_licence():
    assert FILE.stat().st_size < 100_000
    with h5py.File(FILE) as file:
        assert file["train/x"].dtype == np.uint8
        assert "Alpaydin" in file.attrs["creators"]
        assert "CC BY 4.0" in file.attrs["license"]
        assert file.attrs["source"].startswith("https://doi.org/")
