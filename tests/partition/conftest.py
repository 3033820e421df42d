"""What the tests of cut networks share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _any_rows_are_worth_it():
    """Let ranks compute apart whatever rows they can, however few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpidl.partition.local.WORTH", 1)
        yield
