"""The bytes of the pieces in which long messages travel."""

import pytest

from mpidl.rma.sends import LONGEST_PIECE, PIECE_SECONDS, SHORTEST_PIECE, TRIAL, bytes_of_piece


@pytest.mark.parametrize("round_trip", [1e-4, 1e-3, 3e-3])
@pytest.mark.parametrize("speed", [125e6, 1.25e9])
def test_two_pieces_fill_the_link_while_ranks_agree_on_the_next(speed, round_trip):
    """With two at a time, one travels while MPI asks, is answered and sends the next one's first bytes."""
    piece = bytes_of_piece(round_trip, 2 * round_trip + TRIAL / speed)
    assert piece == LONGEST_PIECE or 1.5 * round_trip <= piece / speed <= PIECE_SECONDS + 2.01 * round_trip


@pytest.mark.parametrize(
    ("round_trip", "seconds", "piece"),
    [(1e-5, 1.0, SHORTEST_PIECE), (1e-5, 1e-5, LONGEST_PIECE), (1.0, 1e-4, LONGEST_PIECE)],
)
def test_a_piece_is_neither_too_short_nor_too_long(round_trip, seconds, piece):
    assert bytes_of_piece(round_trip, seconds) == piece
