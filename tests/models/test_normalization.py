import numpy as np
import pytest
import torch

from palaestra.models.normalization import STATISTICS, NormalizationError, Normalizer, check_statistics

SAMPLES = np.random.default_rng(0).gamma(2.0, [1.0, 50.0, 0.01], size=(5000, 3))


def test_statistics_are_numpys():
    expected = {
        "mean_std": (SAMPLES.mean(0), SAMPLES.std(0)),
        "min_max": (SAMPLES.min(0), SAMPLES.max(0)),
        "quantile": np.quantile(SAMPLES, [0.01, 0.99], axis=0),
    }
    for kind, values in expected.items():
        normalizer = Normalizer(kind, 3).double()
        normalizer.fit(torch.from_numpy(SAMPLES))
        for name, value in zip(STATISTICS[kind], values, strict=True):
            np.testing.assert_allclose(getattr(normalizer, name).numpy(), value, rtol=1e-12)


@pytest.mark.parametrize("kind", STATISTICS)
def test_inverse_undoes_and_the_scale_is_right(kind):
    normalizer = Normalizer(kind, 3).double()
    normalizer.fit(torch.from_numpy(SAMPLES))
    normal = normalizer(torch.from_numpy(SAMPLES))
    torch.testing.assert_close(normalizer.inverse(normal), torch.from_numpy(SAMPLES))
    if kind == "mean_std":
        np.testing.assert_allclose(normal.std(0, unbiased=False).numpy(), 1)
    else:
        inside = ((normal >= -1 - 1e-9) & (normal <= 1 + 1e-9)).double().mean(0)
        np.testing.assert_allclose(inside.numpy(), 1.0 if kind == "min_max" else 0.98, atol=2e-3)


@pytest.mark.parametrize("kind", STATISTICS)
def test_a_constant_dimension_is_shifted_and_an_outlier_clipped(kind):
    normalizer = Normalizer(kind, 2, limit=10.0)
    normalizer.fit(torch.tensor([[0.0, 7.0], [1.0, 7.0]]))
    assert normalizer(torch.tensor([0.5, 7.0]))[1] == 0
    assert normalizer(torch.tensor([1e9, 7.0]))[0] == 10


def test_quantiles_under_a_card_of_min_and_max_are_refused_naming_both():
    normalizer = Normalizer("quantile", 3)
    tensors = {f"normalize.agent_pos.{name}": value for name, value in normalizer.state_dict().items()}
    check_statistics("quantile", tensors, "normalize.agent_pos", 3)
    with pytest.raises(
        NormalizationError, match=r"states normalisation 'min_max'.*hold those of 'quantile' \(q01, q99\)"
    ):
        check_statistics("min_max", tensors, "normalize.agent_pos", 3)
    with pytest.raises(NormalizationError, match=r"needs the statistics min and max, .*only none"):
        check_statistics("min_max", {}, "normalize.agent_pos", 3)
    with pytest.raises(NormalizationError, match=r"shape \(3,\), expected \(4,\)"):
        check_statistics("quantile", tensors, "normalize.agent_pos", 4)


def test_bad_samples_are_refused():
    with pytest.raises(ValueError, match="NaN"):
        Normalizer("mean_std", 1).fit(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match=r"expected \[n, 2\]"):
        Normalizer("mean_std", 2).fit(torch.zeros(4, 3))
