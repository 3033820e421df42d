"""What is known of rows beside their values: counts of updates end at the largest number, and don't begin again."""

import numpy as np

from mpidl.tables.entries import Entries


def test_a_count_stays_at_its_largest_number():
    entries, most = Entries(), 0xFFFFFFFF
    entries.reserve(2)
    rows = entries.make(np.array([5, 7]))
    entries.append(rows, np.array([1, 1]), np.array([most - 1, 3]))
    for update in (2, 3):
        entries.use(rows, update)
    assert entries.memory.array["count"][rows].tolist() == [most, 5]
    assert entries.memory.array["used"][rows].tolist() == [3, 3]
