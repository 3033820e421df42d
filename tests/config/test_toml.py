"""TOML in and out."""

import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.config import toml
from mpidl.errors import UsageError

text = st.text(st.characters(codec="utf-8"))
scalars = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), text)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner, max_size=3), max_leaves=8)


@given(st.dictionaries(st.sampled_from("abc"), st.dictionaries(text, values)))
def test_what_is_written_reads_back(sections):
    assert tomllib.loads(toml.dump(sections)) == sections


def test_none_is_left_out_and_tuples_become_arrays():
    sections = {"model": {"layer": ({"units": 3, "absent": None}, {"units": 4}), "loss": None}, "data": {"s": (1, 2)}}
    assert tomllib.loads(toml.dump(sections)) == {
        "model": {"layer": [{"units": 3}, {"units": 4}]},
        "data": {"s": [1, 2]},
    }


def test_what_toml_has_no_form_for():
    with pytest.raises(TypeError, match="not TOML serializable"):
        toml.dump({"a": {"b": object()}})


@given(scalars)
def test_a_value_on_the_command_line(value):
    written = toml.dump({"a": {"b": value}}).partition(" = ")[2].strip()
    assert toml.parse(written) == value


@pytest.mark.parametrize("bare", ["", "abc", "../data/x.h5", "1.2.3", "1\nb = 2", "[1, 2"])
def test_a_bare_string_on_the_command_line(bare):
    assert toml.parse(bare) == bare


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[run]\nepochs = = 3\n", "line 2: invalid value"),
        (b"[run]\nepochs = 3\n[run]\n", "line 3: cannot declare"),
        (b"[run]\nname = [1,\n\n", "line 2: "),
        (b"name = '\xff'\n", "not UTF-8 text, expected a TOML file"),
    ],
)
def test_files_that_are_not_toml(tmp_path, content, message):
    path = tmp_path / "job.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        toml.read(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_files(tmp_path):
    with pytest.raises(UsageError) as error:
        toml.read(tmp_path / "absent.toml")
    assert str(error.value) == f"{tmp_path / 'absent.toml'}: No such file or directory"
    with pytest.raises(UsageError, match="Is a directory"):
        toml.read(tmp_path)


#: For a depth or a number of digits; other tests may have changed how deep Python goes.
BEYOND = {
    "nested arrays": lambda most: "x = " + "[" * most + "]" * most,
    "nested tables": lambda most: "x = " + "{a = " * most + "1" + "}" * most,
    "long": lambda most: "x = " + "9" * most,
    "long in another base": lambda most: "x = 0x" + "f" * most,
}


@pytest.mark.parametrize("name", BEYOND)
def test_what_python_can_not_take_is_one_line(tmp_path, name):
    path = tmp_path / "job.toml"
    text = BEYOND[name](5000 + sys.getrecursionlimit())
    path.write_text(text)
    for read in (lambda: toml.read(path), lambda: toml.parse(text.removeprefix("x = "))):
        with pytest.raises(UsageError, match=r": (tables or arrays are nested too deeply|an integer has too many dig)"):
            read()
