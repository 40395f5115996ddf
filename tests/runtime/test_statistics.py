import numpy as np
import pytest

from palaestra.runtime.statistics import paired_difference


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
