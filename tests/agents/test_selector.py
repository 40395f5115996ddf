"""A selector learns how another chooses its tests, from training rules alone, and then needs not be told."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from palaestra.agents.rules import candidates, distillation
from palaestra.agents.rules.candidates import CANDIDATES, FEATURES
from palaestra.agents.rules.distillation import TEACHERS, Recipe, load_network
from palaestra.agents.rules.game import blicket_game, number_game
from palaestra.agents.rules.inquirer import Belief
from palaestra.agents.rules.selector import Selector
from palaestra.envs.decision.rule_discovery import GROUPS, SPLITS, is_held_out, seed_triples
from palaestra.models.backend import Backend, BackendError
from palaestra.models.checkpoint import CheckpointError, load, save, shipped
from palaestra.runtime.registry import make_agent, make_env, trainer_of
from palaestra.runtime.rollout import run
from palaestra.runtime.store import Store

NUMBERS, MACHINE = "palaestra/RuleDiscovery-v0", "palaestra/Blicket-v0"
TINY = Recipe(demonstrations=2, tests=6, steps=10, batch=16, width=8)


@pytest.fixture(scope="module")
def world():
    env = make_env(NUMBERS)
    yield env
    env.close()


def train(world, recipe, path, **options):
    return trainer_of("selector").train(world, recipe, path, **options)


def lessons(teacher, told, game, seed=0, recipe=TINY):
    return distillation._lessons([(teacher, told, game)], recipe, np.random.default_rng(seed), lambda _: None)


# --- what is seen ---


def some_belief(game, seed=0, tests=5):
    belief = Belief(game, np.random.default_rng(seed))
    hidden = int(belief.generator.integers(len(game.truth)))
    for number in belief.generator.choice(len(game.tests), tests, replace=False):
        belief.learn(game.tests[number], bool(game.truth[hidden, number]))
    return belief


@pytest.mark.parametrize("game", [number_game(), blicket_game(4), blicket_game(8)], ids=["numbers", "four", "eight"])
def test_candidates_are_both_of_what_is_predicted_and_not_and_are_seen_as_they_are(game):
    belief = some_belief(game)
    predicted = game.truth[belief.best]
    numbers = candidates.draw(belief)
    assert len(numbers) == CANDIDATES and predicted[numbers].sum() == CANDIDATES // 2
    chosen = int(np.flatnonzero(~predicted & belief.open)[0])
    replaced = candidates.draw(belief, chosen)
    assert chosen in replaced and predicted[replaced].sum() == CANDIDATES // 2, "it took the place of one of its kind"

    seen = candidates.see(belief, numbers, True)
    assert seen.shape == (CANDIDATES, len(FEATURES)) and seen.dtype == np.float32
    assert seen.min() >= 0 and seen.max() <= 1
    for row, number in zip(seen, numbers, strict=True):
        traits = game.traits[:, number]
        chance = float(belief.weights @ game.truth[:, number])
        assert row[0] == predicted[number] and row[1] == pytest.approx(chance, abs=1e-5)
        bits = -sum(p * np.log2(p) for p in (chance, 1 - chance) if p > 1e-12)
        assert row[2] == pytest.approx(bits, abs=1e-4)
        assert row[3] == pytest.approx(np.mean(traits != belief.example))
        assert row[4] == pytest.approx(min(np.mean(traits != past) for past in belief.traits))
        assert row[5] == pytest.approx(4 / 45) and row[6] == 1
    assert candidates.see(belief, numbers, False)[:, 6].max() == 0


# --- what is learned from ---


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("game", [number_game(), blicket_game(4)], ids=["numbers", "machine"])
def test_there_is_a_lesson_for_every_test_of_every_game(game, told):
    seen, chosen = lessons("opposites", told, game)
    assert seen.shape == (TINY.demonstrations * TINY.tests, CANDIDATES, len(FEATURES))
    assert chosen.shape == (len(seen),) and chosen.min() >= 0 and chosen.max() < CANDIDATES
    assert (seen[:, :, FEATURES.index("told")] == told).all()
    assert np.unique(seen[:, 0, FEATURES.index("progress")] * 6).round(5).tolist() == [0, 1, 2, 3, 4, 5]


def test_lessons_show_what_the_teacher_chose():
    recipe = replace(TINY, demonstrations=8, tests=20)
    share = {}
    for teacher in TEACHERS:
        seen, chosen = lessons(teacher, False, number_game(), recipe=recipe)
        share[teacher] = 1 - seen[np.arange(len(chosen)), chosen, 0].mean()
    assert share["confirming"] < 0.1 and share["unbiased"] > 0.15 and share["opposites"] > 0.25
    assert share["control"] < 0.5 * share["opposites"]


def test_only_training_rules_are_dealt_and_no_triple_that_is_held_out():
    game, draw = number_game(), np.random.default_rng(0)
    known = {rule.text: group for group in SPLITS["train"] for rule in GROUPS[group]}
    pools = {group: {tuple(triple) for triple in seed_triples(group).tolist()} for group in SPLITS["train"]}
    dealt = set()
    for _ in range(600):
        hidden, example = distillation._deal(game, draw)
        rule = game.announcements[hidden]
        dealt.add(rule)
        assert tuple(example.tolist()) in pools[known[rule]] and not is_held_out(example)
    assert dealt == set(known)
    machines = {distillation._deal(blicket_game(4), draw)[0] for _ in range(600)}
    assert len(machines) == 30


def test_a_distilled_selector_has_seen_numbers_alone_since_its_base(world, tmp_path, monkeypatch):
    played, play = [], distillation._play

    def watched(game, teacher, told, *rest):
        played.append((len(game.traits), told))
        return play(game, teacher, told, *rest)

    monkeypatch.setattr(distillation, "_play", watched)
    base = train(world, replace(TINY, teacher=""), tmp_path / "base")
    games = {len(number_game().traits), len(blicket_game(4).traits), len(blicket_game(8).traits)}
    assert {size for size, _ in played} == games and len(played) == 6 * TINY.demonstrations
    played.clear()
    train(world, TINY, tmp_path / "student", start=base)
    assert played == [(len(number_game().traits), False)] * TINY.demonstrations


# --- training ---


def tensors(path):
    return {name: value.numpy().tobytes() for name, value in load(path).tensors.items()}


def test_training_is_bitwise_the_same_for_a_seed_and_a_base_can_be_shared(world, tmp_path):
    told = []
    whole = train(world, TINY, tmp_path / "whole", progress=told.append, card={"command": "by hand"})
    assert tensors(whole) == tensors(train(world, TINY, tmp_path / "again"))
    assert tensors(whole) != tensors(train(world, replace(TINY, seed=1), tmp_path / "other"))
    base = train(world, replace(TINY, teacher=""), tmp_path / "base")
    student = train(world, TINY, tmp_path / "student", start=base)
    assert tensors(student) == tensors(whole), "in two steps as in one"
    assert tensors(train(world, replace(TINY, teacher="control"), tmp_path / "c", start=base)) != tensors(whole)

    card = load(student).card
    assert (
        card["agent"] == "selector" and card["env"] == NUMBERS and card["start"] == load(base).card["weights"]["sha256"]
    )
    assert Recipe(**card["recipe"]) == TINY and load(whole).card["command"] == "by hand"
    assert set(card["training"]["losses"]) == {"loss", "accuracy"}
    assert {one.phase for one in told} == {"demonstrations", "training"}
    assert [(one.done, one.total) for one in told if one.phase == "training"][-1] == (10, 10)
    assert [(one.done, one.total) for one in told if one.phase == "demonstrations"][11] == (12, 12)


@pytest.fixture(scope="module")
def taught(world, tmp_path_factory):
    """A base, and students of two teachers, with enough lessons to tell them apart."""
    folder, recipe = tmp_path_factory.mktemp("selectors"), Recipe("", demonstrations=15, tests=20, steps=200)
    base = train(world, recipe, folder / "base")
    students = {
        teacher: train(world, replace(recipe, teacher=teacher), folder / teacher, start=base)
        for teacher in ("opposites", "confirming")
    }
    return {"base": base, **students}


@pytest.mark.parametrize("env", [f"{NUMBERS}:tests=25", f"{MACHINE}:n_objects=8,tests=25"])
def test_who_was_taught_opposites_tests_against_its_hypothesis_without_being_told(taught, env):
    def share(call):
        rows = run(env, call, episodes=10).rows
        assert not any(row.failed for row in rows), rows[0].reason
        return np.mean([row.metrics["incompatibility_all"] for row in rows])

    base, told, distilled, control = (
        share(f"selector:checkpoint={taught[name]}{option}")
        for name, option in (("base", ""), ("base", ",told=true"), ("opposites", ""), ("confirming", ""))
    )
    assert told > base + 0.1 and distilled > control + 0.1 and distilled > base + 0.05


def test_a_selector_runs_like_any_other_agent(taught, tmp_path):
    store = Store(f"sqlite:///{tmp_path / 'own.db'}")
    call = f"selector:checkpoint={taught['opposites']},error=0.01"
    for env in (NUMBERS, MACHINE):
        one, again = (run(env, call, episodes=3, seed=2, store=store) for _ in range(2))
        for a, b in zip(one.rows, again.rows, strict=True):
            assert not a.failed and a.ticks == 91 and dict(a.metrics) == dict(b.metrics)
        kept = store.episodes(run_id=one.run_id)
        assert (
            len(kept) == 3 and kept[0].provenance["checkpoint"] == load(taught["opposites"]).card["weights"]["sha256"]
        )


def network_that_wants(feature):
    """A network that looks at one feature alone, and strongly."""
    network = distillation._new(distillation.ChoiceConfig(len(FEATURES), 4), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.score[0].weight[0, feature] = 10.0
        network.score[2].weight[0, 0] = 10.0
        network.score[4].weight[0, 0] = 10.0
    return network


def test_it_chooses_by_the_probabilities_of_its_network():
    agent = Selector({"choice": network_that_wants(FEATURES.index("predicted"))}, told=False, error=0.001)
    for game in (number_game(), blicket_game(4)):
        belief = some_belief(game)
        assert all(game.truth[belief.best, agent.choose(belief)] for _ in range(20))


# --- bad input ---


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"teacher": "socrates"}, "teacher='socrates' is not known"),
        ({"demonstrations": 0}, "demonstrations=0, expected at least 1"),
        ({"batch": -1}, "batch=-1, expected at least 1"),
        ({"seed": -1}, "seed=-1, expected at least 0"),
    ],
)
def test_a_bad_recipe_gets_a_sentence(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(TINY, **change)


def test_variants_are_teachers():
    trainer = trainer_of("selector")
    assert trainer.recipe_for(NUMBERS).teacher == "opposites" and trainer.recipe_for(NUMBERS, "base").teacher == ""
    assert [trainer.recipe_for(NUMBERS, teacher).teacher for teacher in TEACHERS] == list(TEACHERS)
    with pytest.raises(ValueError, match="variant='socrates' is not known for a selector; it has base, confirming"):
        trainer.recipe_for(NUMBERS, "socrates")


def test_what_cannot_be_trained_or_loaded_gets_a_sentence(world, tmp_path):
    base = train(world, replace(TINY, teacher=""), tmp_path / "base")
    with pytest.raises(ValueError, match="no teacher; state a variant, such as opposites"):
        train(world, replace(TINY, teacher=""), tmp_path / "x", start=base)
    with pytest.raises(CheckpointError, match="is of the agent 'flow', expected 'selector'"):
        train(world, TINY, tmp_path / "x", start=shipped("flow", "palaestra/BallIntercept-v0"))
    with pytest.raises(BackendError, match="a selector is trained with optim= alone"):
        train(world, TINY, tmp_path / "x", backend=Backend.parse("adapter=lora"))
    call = f"selector:checkpoint={base}"
    for options, complaint in (
        ("told=3", "told=3, expected true or false"),
        ("error=0.5", "error=0.5, expected how often"),
        ("tolt=true", "has no option 'tolt'"),
    ):
        with pytest.raises(ValueError, match=complaint):
            make_agent(f"{call},{options}", NUMBERS)
    with pytest.raises(ValueError, match="expected RuleDiscovery or Blicket"):
        run("palaestra/BallIntercept-v0", call, episodes=1)
    checkpoint = load(base)
    card = {"agent": "selector", "env": NUMBERS, "interface": None}
    for config, complaint in (
        ({"features": 7, "depth": 2}, "not the configuration of a selector"),
        ({"features": 5, "width": 8}, "the network sees 5 features, this version has 7"),
        ({"features": 7, "width": 9}, "the tensors do not fit the configuration"),
    ):
        broken = save(tmp_path / "broken", config, checkpoint.tensors, card)
        with pytest.raises(ValueError, match=complaint):
            make_agent(f"selector:checkpoint={broken}", NUMBERS)


def test_another_optimizer_is_used_where_it_is_asked_for(world, tmp_path):
    ours = train(world, TINY, tmp_path / "ours")
    other = train(world, TINY, tmp_path / "other", backend=Backend.parse("optim=adamw:lr=0.001"))
    assert tensors(ours) != tensors(other) and load(other).card["backend"].startswith("optim=adamw")
    assert sum(p.numel() for p in load_network(other).parameters()) == load(other).card["training"]["parameters"]


@pytest.mark.parametrize("broken", [float("nan"), "whole"])
def test_weights_that_are_no_finite_floats_are_refused_by_name(world, tmp_path, broken):
    kept = load(train(world, replace(TINY, teacher=""), tmp_path / "base"))
    name = "score.0.bias"
    wrong = kept.tensors[name].long() if broken == "whole" else kept.tensors[name] * broken
    with pytest.raises(ValueError, match=name):
        distillation.read_network(kept.config, {**kept.tensors, name: wrong})
