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


JOB = """# A job.
[run]
name = "x"   # its name

[topology]  # who does what
servers = 1     # of four ranks
text = '''
[topology]
servers = 7'''

[[model.layer]]
type = "dense"
"""


def test_a_change_leaves_everything_else_as_it_is(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    toml.change(path, "topology", {"servers": 3})
    assert path.read_text() == JOB.replace("servers = 1 ", "servers = 3 ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1\n", "a = 1\n\n[topology]\nservers = 3\n"),
        ("[topology]\n# none yet\n", "[topology]\n# none yet\nservers = 3\n"),
        ("topology = {servers = 1, b = 2}  # short\r\n", "topology = {servers = 3, b = 2}  # short\r\n"),
        ("topology.servers = 1\n[x]\n", "topology.servers = 3\n[x]\n"),
    ],
)
def test_a_section_in_any_form(tmp_path, text, expected):
    path = tmp_path / "job.toml"
    path.write_bytes(text.encode())
    (tmp_path / "link.toml").symlink_to(path)
    path.chmod(0o640)
    toml.change(tmp_path / "link.toml", "topology", {"servers": 3})
    assert path.read_bytes().decode() == expected
    assert path.stat().st_mode & 0o777 == 0o640


@given(
    st.dictionaries(st.sampled_from(["topology", "b"]), st.dictionaries(text.filter(bool), values)), st.integers(1, 99)
)
def test_a_change_of_any_file(tmp_path_factory, sections, servers):
    path = tmp_path_factory.mktemp("files") / "job.toml"
    path.write_text(toml.dump(sections), encoding="utf-8")
    toml.change(path, "topology", {"servers": servers})
    expected = {**sections, "topology": {**sections.get("topology", {}), "servers": servers}}
    assert tomllib.loads(path.read_text(encoding="utf-8")) == expected
