"""Choosing one of several by what is seen of each."""

import numpy as np
import pytest
import torch

from palaestra.models.choice import Choice, ChoiceConfig
from palaestra.models.optim.adamw import AdamW
from palaestra.models.training import CosineSchedule, steps


@pytest.fixture
def network():
    torch.manual_seed(0)
    return Choice(ChoiceConfig(features=5, width=16))


def test_each_candidate_is_scored_by_itself(network):
    seen = torch.rand(3, 7, 5)
    scores, order = network(seen), torch.randperm(7)
    assert scores.shape == (3, 7)
    torch.testing.assert_close(network(seen[:, order]), scores[:, order])
    torch.testing.assert_close(network(seen[1, 4]), scores[1, 4])


def test_the_loss_is_the_surprise_at_what_was_chosen(network):
    seen, chosen = torch.rand(6, 7, 5), torch.tensor([0, 6, 3, 3, 1, 2])
    losses = network.loss({"seen": seen, "chosen": chosen}, torch.Generator())
    scores = network(seen).detach().double().numpy()
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert losses["loss"].item() == pytest.approx(-np.log(chances[np.arange(6), chosen]).mean(), rel=1e-5)
    assert losses["accuracy"].item() == pytest.approx(np.mean(chances.argmax(axis=1) == chosen.numpy()))


def test_it_learns_a_choice_that_others_make(network):
    """The demonstrator takes the candidate with the largest second feature."""
    generator = torch.Generator().manual_seed(1)

    def batch():
        seen = torch.rand(64, 8, 5, generator=generator)
        return {"seen": seen, "chosen": seen[..., 1].argmax(-1)}

    optimizer = AdamW(1e-2).build(network)
    for _ in steps(network, (batch() for _ in range(300)), optimizer, CosineSchedule(300), generator):
        pass
    assert network.loss(batch(), generator)["accuracy"].item() > 0.8


def test_its_configuration_is_plain_data_and_checked():
    config = ChoiceConfig(features=3, width=9)
    assert ChoiceConfig(**config.to_json()) == config
    for bad in ({"features": 0}, {"width": 1025}, {"width": 2.5}, {"features": True}):
        with pytest.raises(ValueError, match="expected 1 to 1024"):
            ChoiceConfig(**bad)
