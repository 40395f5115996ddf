import numpy as np
import pytest
from scipy.stats import binomtest

from palaestra.runtime.statistics import bounded_mean, paired_difference, rate


def test_a_mean_in_0_to_1_has_the_interval_of_a_rate_and_few_equal_values_leave_it_wide():
    for k, n in ((0, 5), (5, 5), (3, 10), (49, 50)):
        scipys = binomtest(k, n).proportion_ci(0.95, method="wilson")
        for ours in (bounded_mean([1.0] * k + [0.0] * (n - k)), rate([True] * k + [False] * (n - k))):
            assert (ours.mean, ours.low, ours.high) == pytest.approx((k / n, scipys.low, scipys.high), abs=1e-6)
    assert bounded_mean([0.5] * 4).high - bounded_mean([0.5] * 4).low > 0.6
    assert bounded_mean([]) is None


def test_a_paired_difference_does_not_see_what_episodes_have_in_common():
    draw = np.random.default_rng(0)
    hard = draw.normal(scale=10.0, size=(1, 400))
    ours, theirs = (hard + shift + draw.normal(scale=0.1, size=(1, 400)) for shift in (0.2, 0.0))
    estimate = paired_difference(ours, theirs)
    assert estimate.mean == pytest.approx(float(ours.mean() - theirs.mean()))
    spread = (ours - theirs).std() / np.sqrt(400)
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_a_paired_difference_between_trainings_is_as_sure_as_their_number_allows():
    one_good_run = np.repeat([[0.9], [0.0], [0.0]], 1000, axis=1)
    estimate = paired_difference(one_good_run, np.zeros_like(one_good_run))
    assert estimate.low == 0.0  # however many episodes there are
    assert estimate.mean == pytest.approx(0.3)


@pytest.mark.parametrize("k", [0, 1, 19, 20])
def test_the_bars_of_a_picture_are_never_negative(k):
    estimate = bounded_mean([1.0] * k + [0.0] * (20 - k))
    below, above = estimate.reach
    assert below >= 0 and above >= 0
    assert (estimate.mean - below, estimate.mean + above) == pytest.approx((estimate.low, estimate.high))
