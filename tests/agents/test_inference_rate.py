"""How many plans a slow cycle has: the paper's rule, evenness, means, and what each schedule may know."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from palaestra.agents.inference_rate import Cycle, Fami, Oracle, Random, Static, Threshold, call_ticks, quantized


def cycle(number=0, phase=0.0, y_hat=0.0, force_n=0.0, draw=None, going_on=None):
    going_on = np.zeros((4, 2)) if going_on is None else going_on
    return Cycle(number, phase, y_hat, force_n, draw or np.random.default_rng(0), going_on)


@given(st.integers(1, 64), st.data())
def test_calls_are_even_distinct_and_begin_at_once(period, data):
    calls = data.draw(st.integers(1, period))
    ticks = call_ticks(calls, period)
    assert ticks[0] == 0 and len(set(ticks)) == calls and max(ticks) < period
    gaps = np.diff([*ticks, period])
    assert gaps.max() - gaps.min() <= 1


def test_more_calls_than_ticks_are_refused():
    for calls in (0, 17):
        with pytest.raises(ValueError, match=f"calls={calls}, expected 1 to 16"):
            call_ticks(calls, 16)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 16))
def test_the_papers_rule(y, other, most):
    assert quantized(0.0, most) == 1 and quantized(1.0, most) == most
    low, high = sorted((y, other))
    assert 1 <= quantized(low, most) <= quantized(high, most) <= most
    for k in range(1, most):
        assert quantized(np.nextafter(k / most, 1) + 1e-9, most) == k + 1
    assert Fami(most).calls(cycle(y_hat=y)) == quantized(y, most)


def test_with_one_call_at_most_the_adaptive_rate_is_the_fixed_one():
    for y in (0.0, 0.3, 1.0):
        assert Fami(1).calls(cycle(y_hat=y)) == Static(1).calls(cycle(y_hat=y)) == 1


def test_a_fixed_rate_keeps_its_mean_over_short_episodes_too():
    phases = np.random.default_rng(0).random(4000)
    rate = Static(2.43)
    made = [sum(rate.calls(cycle(number, phase)) for number in range(3)) / 3 for phase in phases]
    assert np.mean(made) == pytest.approx(2.43, abs=0.01)


@given(st.floats(1, 16), st.integers(1, 200), st.floats(0, 1, exclude_max=True))
@example(1.0, 2, 1 - 2**-52)
def test_a_fixed_rate_keeps_its_mean_to_within_one_call(mean, cycles, phase):
    rate = Static(mean)
    said = [rate.calls(cycle(number, phase)) for number in range(cycles)]
    assert abs(sum(said) - mean * cycles) <= 1 and max(said) - min(said) <= 1 and max(said) <= rate.most


def test_the_random_rate_has_the_mean_that_was_asked_for_and_follows_its_source():
    draw = np.random.default_rng(1)
    said = [Random(2.5, 4).calls(cycle(draw=draw)) for _ in range(4000)]
    assert set(said) == {1, 4} and np.mean(said) == pytest.approx(2.5, abs=0.1)
    again = np.random.default_rng(1)
    assert [Random(2.5, 4).calls(cycle(draw=again)) for _ in range(50)] == said[:50]
    assert Random(1, 1).calls(cycle()) == 1


def test_the_reactive_rate_feels_only_the_present():
    rate = Threshold(3.0, 4)
    assert rate.calls(cycle(force_n=3.1, y_hat=0.0)) == 4
    assert rate.calls(cycle(force_n=3.0, y_hat=1.0)) == 1


def test_the_oracle_labels_what_it_is_told():
    label = {"weights": [0, 0, 1.0, 0, 0, 0], "sigma": 2.0}
    told = np.zeros((8, 6))
    told[4:, 2] = 6.0  # variance 9, deviation 3
    asked = []

    def foresee(actions):
        asked.append(actions)
        return told

    oracle = Oracle(8, foresee, label)
    going_on = np.ones((8, 2))
    assert oracle.calls(cycle(going_on=going_on)) == int(np.ceil(8 * np.tanh(3 / 2)))
    assert asked[0] is going_on
    assert Oracle(8, lambda actions: np.ones((8, 6)), label).calls(cycle()) == 1


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Fami(0), "most=0"),
        (lambda: Fami(2.5), "most=2.5"),
        (lambda: Static(0.5), "calls=0.5"),
        (lambda: Static(float("nan")), "calls=nan"),
        (lambda: Random(5, 4), "calls=5"),
        (lambda: Threshold(-1, 4), "force_n=-1"),
    ],
)
def test_numbers_out_of_range_are_named(make, name):
    with pytest.raises(ValueError, match=name):
        make()
