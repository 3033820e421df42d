"""What the first rank tells its launcher: heard and taken out of stderr, however it arrives."""

import subprocess
import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mpidl.launch import marks

TEXTS = (b"a line\n", b"\r 12%|##  |", b"\x02", b"\x02mpidl", b"mpidl failed: ", b"\x03", b"\x02mpidl:\n")


@given(st.data())
def test_marks_are_heard_and_the_rest_is_left(draw):
    words = ("ready", "saved 0", "saved 75")
    parts = draw.draw(st.lists(st.sampled_from([*words, *TEXTS])))
    text = b"".join(b"\x02mpidl:%s\x03\n" % each.encode() if isinstance(each, str) else each for each in parts)
    places = sorted({0, len(text), *draw.draw(st.sets(st.integers(0, len(text))))})
    chunks = [text[start:stop] for start, stop in pairwise(places)]
    heard = []
    left = b"".join(marks.listen(chunks, heard.append))
    assert heard == [each for each in parts if isinstance(each, str)]
    assert left == b"".join(each for each in parts if isinstance(each, bytes))


def test_only_ranks_of_a_launcher_that_listens_tell(bare_environment):
    call = [sys.executable, "-c", "from mpidl.launch import marks; marks.tell_done(75, 1)"]
    for variables, expected in (({}, b""), ({marks.VARIABLE: "1"}, b"\x02mpidl:saved 75\x03\n")):
        done = subprocess.run(call, env=bare_environment | variables, capture_output=True, check=True)
        assert done.stderr == expected
