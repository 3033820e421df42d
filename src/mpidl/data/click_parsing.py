"""The loop that reads lines of click logs, and hashes categories."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit

TAB, NEWLINE, RETURN, MINUS, ZERO = 9, 10, 13, 45, 48
#: Numbers with more digits may not fit in int64.
DIGITS = 18
#: Constants of xxHash64.
PRIME_1, PRIME_2, PRIME_3, PRIME_4, PRIME_5 = map(
    np.uint64,
    (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5),
)


@jit
def rotated(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@jit
def little_endian(text: Any, start: int, size: int) -> Any:
    """Return the number that some bytes stand for."""
    value = np.uint64(0)
    for place in range(size):
        value |= np.uint64(text[start + place]) << np.uint64(8 * place)
    return value


@jit
def turned(lane: Any, word: Any) -> Any:
    return rotated(lane + word * PRIME_2, 31) * PRIME_1


@jit
def hashed(text: Any, start: int, stop: int, seed: Any) -> Any:
    """Return xxHash64 of some bytes (Y. Collet, xxHash fast digest algorithm, section XXH64)."""
    at, seed = start, np.uint64(seed)
    if stop - start >= 32:
        first, second = seed + PRIME_1 + PRIME_2, seed + PRIME_2
        third, fourth = seed, seed - PRIME_1
        while stop - at >= 32:
            first = turned(first, little_endian(text, at, 8))
            second = turned(second, little_endian(text, at + 8, 8))
            third = turned(third, little_endian(text, at + 16, 8))
            fourth = turned(fourth, little_endian(text, at + 24, 8))
            at += 32
        found = rotated(first, 1) + rotated(second, 7) + rotated(third, 12) + rotated(fourth, 18)
        for lane in (first, second, third, fourth):
            found = (found ^ turned(np.uint64(0), lane)) * PRIME_1 + PRIME_4
    else:
        found = seed + PRIME_5
    found += np.uint64(stop - start)
    while stop - at >= 8:
        found = rotated(found ^ turned(np.uint64(0), little_endian(text, at, 8)), 27) * PRIME_1 + PRIME_4
        at += 8
    if stop - at >= 4:
        found = rotated(found ^ little_endian(text, at, 4) * PRIME_1, 23) * PRIME_2 + PRIME_3
        at += 4
    while at < stop:
        found = rotated(found ^ np.uint64(text[at]) * PRIME_5, 11) * PRIME_1
        at += 1
    found = (found ^ (found >> np.uint64(33))) * PRIME_2
    found = (found ^ (found >> np.uint64(29))) * PRIME_3
    return found ^ (found >> np.uint64(32))


@jit
def skip(text: Any, lines: int) -> int:
    """Return the place behind a number of lines."""
    at = 0
    while lines and at < text.size:
        lines -= text[at] == NEWLINE
        at += 1
    return at


@jit
def parse(  # type: ignore[no-untyped-def]
    text, start, numbers, seed, ids, inputs, targets
):
    """Read lines.

    Parameters
    ----------
    text : array of uint8
        Ends with a newline.
    start : int
        Where the first line begins.
    numbers : int
        Number of numbers in a line, behind the label; the other fields are categories.
    seed, ids : uint64
        Seed of the hashes, and their number; 0 if any.
    inputs : array (lines, numbers + categories) of int64
        Overwritten.
    targets : array (lines, 1) of float32
        Overwritten.

    Returns
    -------
    lines, end : int
        Number of lines that have been read, all unless one is malformed, and where the next one begins.
    """
    at, features = start, inputs.shape[1] - numbers
    for line in range(len(inputs)):
        begin = at
        if at + 1 >= text.size or not (ZERO <= text[at] <= ZERO + 1) or text[at + 1] != TAB:
            return line, begin
        targets[line, 0] = text[at] - ZERO
        at += 2
        for j in range(numbers):
            sign = -1 if text[at] == MINUS else 1
            at += sign < 0
            value, first = np.int64(0), at
            while ZERO <= text[at] <= ZERO + 9:
                value = np.int64(10) * value + np.int64(text[at]) - ZERO
                at += 1
            if text[at] != TAB or at - first > DIGITS or (sign < 0 and at == first):
                return line, begin
            inputs[line, j] = sign * value
            at += 1
        for feature in range(features):
            first = at
            while text[at] != TAB and text[at] != NEWLINE:
                at += 1
            last = feature == features - 1
            if (text[at] == NEWLINE) != last:
                return line, begin
            end = at - 1 if last and at > first and text[at - 1] == RETURN else at
            found = hashed(text, first, end, np.uint64(features) * seed + np.uint64(feature))
            inputs[line, numbers + feature] = np.int64(found if ids == 0 else found % ids)
            at += 1
    return len(inputs), at
