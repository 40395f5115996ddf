"""The buffer never executes an action twice or out of order, whatever arrives when."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from palaestra.runtime.action_buffer import ActionBuffer, DelayEstimator

plans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 6), st.integers(1, 10)), min_size=1, max_size=20
)  # observed tick, ticks until it arrives, first tick of the part after the observation, actions in it


@given(plans)
def test_any_order_of_arrival_gives_each_tick_its_newest_plan_at_most_once(parts):
    buffer, newest, expected, executed = ActionBuffer(), -1, {}, {}
    for tick in range(60):
        for observed, late, start, count in parts:
            if observed + late == tick:
                buffer.put(observed + start, [(observed, observed + start + k) for k in range(count)], observed)
                if observed >= newest:
                    newest = observed
                    for k in range(count):
                        expected[observed + start + k] = observed
        planned = buffer.pop(tick)
        if planned:
            assert planned.action == (planned.observed_tick, tick), "an action meant for another tick"
            executed[tick] = planned.observed_tick
        assert executed.get(tick) == expected.get(tick)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True), st.sampled_from([0.01, 0.5, -0.3]))
def test_an_ensemble_is_the_weighted_mean_of_all_plans_for_a_tick(observed, weight):
    buffer, plans = ActionBuffer(ensemble=weight), sorted(observed)
    for tick in plans:
        buffer.put(tick, np.array([[tick, k] for k in range(20)], np.float32), tick)
    for tick in range(13, 20):
        actions = np.array([[seen, tick - seen] for seen in plans])  # oldest first
        weights = np.exp(-weight * np.arange(len(plans)))
        planned = buffer.pop(tick)
        assert planned.observed_tick == plans[-1]
        assert planned.action.dtype == np.float32
        np.testing.assert_allclose(planned.action, weights @ actions / weights.sum(), rtol=1e-5)


@given(st.integers(1, 10), st.integers(0, 10), st.integers(0, 5))
def test_committed_actions_are_the_ones_that_run(count, delay, tick):
    buffer = ActionBuffer()
    buffer.put(tick, [f"old{k}" for k in range(count)], 0)
    prefix = buffer.commit(tick, delay)
    assert prefix == [f"old{k}" for k in range(min(count, delay))]
    buffer.put(tick, ["new"] * 20, tick)
    assert [buffer.pop(tick + k).action for k in range(len(prefix))] == prefix
    assert buffer.pop(tick + len(prefix)).action == "new"


@given(st.lists(st.floats(1e-6, 2.0), min_size=1, max_size=100))
def test_the_delay_covers_at_least_95_percent_of_what_was_seen(latencies):
    estimator = DelayEstimator(1 / 30)
    for latency in latencies:
        estimator.observe(latency)
    covered = np.mean(np.array(latencies) <= estimator.ticks / 30 + 1e-9)
    assert covered >= 0.95
    assert estimator.ticks <= math.ceil(max(latencies) * 30)


def test_a_latency_of_whole_ticks_is_not_rounded_up():
    estimator = DelayEstimator(1 / 30)
    estimator.observe(3 / 30)
    assert estimator.ticks == 3
