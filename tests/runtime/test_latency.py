"""Latency profiles: the published times come out, and bad ones are refused by name."""

import json

import pytest

from palaestra.runtime.latency import LatencyModel, profile, profiles


@pytest.mark.parametrize(
    ("name", "ten_steps_ms", "one_step_ms"),
    [("pi05-4090", 80.0, 62.1), ("pi05-4060", 303.3, 238.6), ("xvla-4090", 113.7, 44.8), ("xvla-4060", 399.5, 129.2)],
)
def test_profiles_give_the_published_times_to_first_action(name, ten_steps_ms, one_step_ms):
    model = profiles()[name]
    assert model.seconds(1, 10, True) * 1000 == pytest.approx(ten_steps_ms, rel=0.002)
    assert model.seconds(1, 1, True) * 1000 == pytest.approx(one_step_ms, rel=0.002)


def test_a_profile_can_be_written_on_the_spot_or_read_from_a_file(tmp_path):
    assert profile("encode_ms=20,evaluation_ms=5").seconds(1, 2, False) == 0.03
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"arm": {"encode_ms": 7}}))
    assert profile(f"{file}#arm").encode_ms == profile(str(file)).encode_ms == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pi05-4091", "nearest: pi05-4090"),
        ("speed=3", "unknown key 'speed'"),
        ("encode_ms=fast", "encode_ms='fast'"),
        ("encode_ms=-1", "expected milliseconds >= 0"),
        ("encode_ms=nan", "expected milliseconds >= 0"),
        ("missing.json", "cannot be read"),
    ],
)
def test_bad_profiles_are_refused_by_name(text, words):
    with pytest.raises(ValueError, match=words):
        profile(text)


def test_a_broken_file_is_named(tmp_path):
    file = tmp_path / "broken.json"
    file.write_text('{"arm": {"encode": 7}}')
    with pytest.raises(ValueError, match=r"broken\.json is not a file of latency profiles"):
        profile(str(file))
    with pytest.raises(ValueError, match="seven"):
        LatencyModel("x", encode_ms="seven")
