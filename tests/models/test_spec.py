from string import printable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra.models.spec import Spec, parse_spec

KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
VALUES = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(alphabet=printable)
NAMES = st.from_regex(r"[A-Za-z][\w./-]{0,12}(:[A-Z]\w{0,5})?", fullmatch=True)


@given(st.builds(Spec, NAMES, st.dictionaries(KEYS, VALUES, max_size=4)))
def test_a_written_spec_reads_back_to_itself(spec):
    read = parse_spec(str(spec))
    assert read == spec
    assert [type(v) for v in read.options.values()] == [type(v) for v in spec.options.values()]


def test_literals_and_paths_need_no_quotes():
    spec = parse_spec("pkg.agents:Mine:checkpoint=runs/a-b.v2/x.safetensors,steps=4,lr=1e-3,fast=true,tag=007")
    assert spec.name == "pkg.agents:Mine"
    assert spec.options == {
        "checkpoint": "runs/a-b.v2/x.safetensors",
        "steps": 4,
        "lr": 1e-3,
        "fast": True,
        "tag": "007",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no name"),
        (":steps=4", "no name"),
        ("flow:", "no option"),
        ("flow:steps=4,fast", "'fast'"),
        ("flow:steps=4,steps=5", "twice"),
        ("flow:steps=", "empty"),
        ('flow:path="a', "double quote"),
        ('flow:path="a"b', "quoted text"),
        ("flow,steps=4", "not a name"),
    ],
)
def test_what_cannot_be_read_is_named(text, says):
    with pytest.raises(ValueError, match=says):
        parse_spec(text)
