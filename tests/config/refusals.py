"""The line that a wrong configuration gets."""

import pytest

from mpidl.config import from_dict
from mpidl.errors import UsageError


def line(values):
    """Return what is said of the values of a configuration."""
    with pytest.raises(UsageError) as error:
        from_dict(values)
    text = str(error.value)
    assert "\n" not in text
    return text
