"""Teaches a selector to choose tests as another agent does, and to go on doing so when nobody tells it to.

Symbolic distillation after "Failing to Falsify" (arXiv 2604.02485): the behaviour that an intervention brings about is
learned without the intervention. A selector is first fitted to a teacher that confirms (told nothing) and to one that
thinks in opposites (told to). That is the base. It is then distilled: told nothing, it learns what a teacher does with
number triples, and only with those. The teacher that thinks in opposites is the method; the one that confirms, and one
that confirms less, are the controls, for a student may gain from any better teacher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...envs.decision.rule_discovery import GROUPS, SPLITS, is_held_out, seed_triples
from ...models.backend import Backend, BackendError
from ...models.checkpoint import CheckpointError, load, save, versions
from ...models.choice import Choice, ChoiceConfig
from ...models.optim.adamw import AdamW
from ...models.spec import nearest
from ...models.training import CosineSchedule, Progress, steps
from .candidates import FEATURES, draw, see
from .game import Game, blicket_game, number_game
from .hypothesis import Hypothesis
from .inquirer import Belief, Inquirer

_CONFIRMS = 0.03  # how often the teacher that confirms makes a test that its hypothesis excludes
_AS_OPPOSITES = 0.29  # and how often the one that thinks in opposites does, with number triples
TEACHERS: dict[str, Callable[[], Inquirer]] = {
    "confirming": lambda: Hypothesis(_CONFIRMS),
    "opposites": lambda: Hypothesis(_CONFIRMS, "opposites"),
    "control": lambda: Hypothesis(_CONFIRMS, "control"),
    "unbiased": lambda: Hypothesis(_AS_OPPOSITES),
}
"""Whom a selector may learn from: one that confirms, with an intervention or its control, and one without any that
tests against its hypothesis as often as the one that thinks in opposites."""


_GAMES: dict[str, Callable[[], list[Game]]] = {
    "all": lambda: [number_game(), blicket_game(4), blicket_game(8)],
    "numbers": lambda: [number_game()],
}


@dataclass(frozen=True)
class Recipe:
    """How to train; ``seed`` decides everything that chance decides.

    ``teacher`` is one of :data:`TEACHERS`, or empty for the base alone. ``demonstrations`` games of ``tests`` tests are
    played by each teacher in each kind of game; ``steps`` batches of ``batch`` choices are fitted in each of the two
    stages, with AdamW at the rate ``lr`` where no backend says otherwise, by a network of ``width`` units a layer.
    The base learns from ``games`` of all kinds (``"all"``), or of number triples alone (``"numbers"``).
    """

    teacher: str = "opposites"
    games: str = "all"
    demonstrations: int = 150
    tests: int = 45
    steps: int = 1500
    batch: int = 256
    lr: float = 3e-3
    width: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for argument in ("demonstrations", "tests", "steps", "batch", "width"):
            if getattr(self, argument) < 1:
                raise ValueError(f"{argument}={getattr(self, argument)}, expected at least 1")
        if self.games not in _GAMES:
            raise ValueError(f"games={self.games!r}, expected one of {', '.join(_GAMES)}")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}, expected at least 0")
        if self.teacher and self.teacher not in TEACHERS:
            raise ValueError(f"teacher={self.teacher!r} is not known; {nearest(self.teacher, TEACHERS)}")


class Distillation:
    """The trainer of the agent ``selector``, see :class:`~palaestra.models.training.Trainer`.

    A variant is the name of a teacher, or ``base`` for what all of them start from. The world only decides the
    checkpoint's name: the games that are learned from are played here, by their rules, with the training rules and
    their seed triples, and with Blicket machines of 4 and 8 objects.
    """

    def recipe_for(self, env_id: str, variant: str = "") -> Recipe:
        """The recipe of a variant. Raises ``ValueError`` for an unknown one."""
        if variant not in ("", "base", *TEACHERS):
            raise ValueError(f"variant={variant!r} is not known for a selector; it has base, {', '.join(TEACHERS)}")
        return Recipe(teacher={"": Recipe.teacher, "base": ""}.get(variant, variant))

    def train(
        self,
        env: Any,
        recipe: Recipe,
        out: Path,
        *,
        backend: Backend | None = None,
        start: Path | None = None,
        progress: Callable[[Progress], None] | None = None,
        card: Mapping[str, Any] | None = None,
    ) -> Path:
        """Train a selector and write the checkpoint ``out``; returns its path.

        With ``start`` that checkpoint is the base. Raises ``BackendError`` for methods that do not train,
        ``CheckpointError`` for a bad ``start``, ``ValueError`` for one without a teacher to learn from, and
        ``NonFiniteLoss`` when training diverges.
        """
        backend, tell = backend or Backend(), progress or (lambda _: None)
        if str(backend) and not backend.optim:
            raise BackendError(f"backend={str(backend)!r}: a selector is trained with optim= alone")
        if start is not None and not recipe.teacher:
            raise ValueError("a base is given to go on from, and no teacher; state a variant, such as opposites")
        began = time.perf_counter()
        seeds = np.random.SeedSequence(recipe.seed).spawn(4)
        if start is None:
            base = [(teacher, told, game) for teacher, told in _BASE for game in _GAMES[recipe.games]()]
            lessons = _lessons(base, recipe, np.random.default_rng(seeds[0]), tell)
            torch_seed = int(seeds[1].generate_state(1)[0])
            network = _new(ChoiceConfig(len(FEATURES), recipe.width), torch.Generator().manual_seed(torch_seed))
            losses = _fit(network, lessons, recipe, backend, np.random.default_rng(seeds[1]), tell)
        else:
            network, losses = load_network(start), {}
        if recipe.teacher:
            lessons = _lessons([(recipe.teacher, False, number_game())], recipe, np.random.default_rng(seeds[2]), tell)
            losses = _fit(network, lessons, recipe, backend, np.random.default_rng(seeds[3]), tell)
        return save(
            out,
            network.config.to_json(),
            network.state_dict(),
            {
                "agent": "selector",
                "env": env.spec.id if env.spec else type(env.unwrapped).__name__,
                "interface": None,
                "recipe": asdict(recipe),
                "backend": str(backend),
                "start": None if start is None else load(start).card["weights"]["sha256"],
                "training": {
                    "seconds": round(time.perf_counter() - began, 1),
                    "parameters": sum(p.numel() for p in network.parameters()),
                    "losses": {name: round(loss, 5) for name, loss in losses.items()},
                },
                "versions": versions("palaestra", "torch", "numpy"),
                **(card or {}),
            },
        )


_BASE = (("confirming", False), ("opposites", True))  # teachers of the base, and whether the student is told


def load_network(path: Path) -> Choice:
    """The network of a selector's checkpoint. Raises ``CheckpointError``."""
    checkpoint = load(path)
    if checkpoint.card.get("agent") != "selector":
        raise CheckpointError(path, f"is of the agent {checkpoint.card.get('agent')!r}, expected 'selector'")
    return read_network(checkpoint.config, checkpoint.tensors)


def read_network(config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Choice:
    """A network from what a checkpoint holds. Raises ``ValueError`` for what does not fit together."""
    try:
        known = ChoiceConfig(**config)
    except TypeError as error:
        raise ValueError(f"not the configuration of a selector: {error}") from None
    if known.features != len(FEATURES):
        raise ValueError(f"the network sees {known.features} features, this version has {len(FEATURES)}")
    network = Choice(known)
    try:
        network.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError(f"the tensors do not fit the configuration: {error}") from None
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() and bool(tensor.isfinite().all())):
            raise ValueError(f"the tensor {name!r} holds what is no finite float; copy or train the checkpoint again")
    return network


def _new(config: ChoiceConfig, generator: torch.Generator) -> Choice:
    network = Choice(config)
    for parameter in network.parameters():  # torch's own initialisation, from a generator of ours
        if parameter.dim() == 2:
            bound = parameter.shape[1] ** -0.5
        torch.nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return network


Lessons = tuple[np.ndarray, np.ndarray]
"""What was seen, float32 [n, K, F], and which was chosen, int [n]."""


def _lessons(
    courses: list[tuple[str, bool, Game]], recipe: Recipe, generator: np.random.Generator, tell: Callable[..., None]
) -> Lessons:
    """Every choice of ``recipe.demonstrations`` games of each course: a teacher, whether the student is told, a
    game."""
    seen, chosen = [], []
    total = len(courses) * recipe.demonstrations
    for course, (teacher, told, game) in enumerate(courses):
        asks = TEACHERS[teacher]()
        for played in range(recipe.demonstrations):
            for candidates, choice in _play(game, asks, told, recipe.tests, generator):
                seen.append(candidates)
                chosen.append(choice)
            tell(Progress("demonstrations", course * recipe.demonstrations + played + 1, total))
    return np.stack(seen), np.array(chosen)


def _play(
    game: Game, teacher: Inquirer, told: bool, tests: int, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, int]]:
    """One game: at each test what was seen of the candidates, and which of them the teacher chose."""
    hidden, example = _deal(game, generator)
    belief = Belief(game, generator, limit=tests)
    belief.learn(example, bool(game.foretell(example[None])[hidden, 0]))
    for _ in range(min(tests, len(game.tests) - 1)):  # when all were made, what is asked teaches nothing
        number = teacher.choose(belief)
        numbers = draw(belief, number)
        yield see(belief, numbers, told), int(np.flatnonzero(numbers == number)[0])
        belief.learn(game.tests[number], bool(game.truth[hidden, number]))


def _deal(game: Game, generator: np.random.Generator) -> tuple[int, np.ndarray]:
    """The number of a hidden hypothesis, and a first example: of the training rules, or of any Blicket machine."""
    if game.key != "triple":
        return int(generator.integers(len(game.announcements))), game.tests[generator.integers(len(game.tests))]
    group = str(generator.choice(SPLITS["train"]))
    rule = GROUPS[group][generator.integers(4)]
    pool = seed_triples(group)
    while is_held_out(example := pool[generator.integers(len(pool))]):
        pass
    return game.announcements.index(rule.text), example


def _fit(
    network: Choice,
    lessons: Lessons,
    recipe: Recipe,
    backend: Backend,
    generator: np.random.Generator,
    tell: Callable[..., None],
) -> dict[str, float]:
    """Fit the choices; returns the smoothed losses at the end."""
    seen, chosen = (torch.from_numpy(part) for part in lessons)

    def batches() -> Iterator[dict[str, torch.Tensor]]:
        while True:
            picked = torch.from_numpy(generator.integers(len(chosen), size=recipe.batch))
            yield {"seen": seen[picked], "chosen": chosen[picked]}

    optimizer = backend.optimizer(network) or AdamW(recipe.lr).build(network)
    schedule = CosineSchedule(recipe.steps, warmup=min(50, recipe.steps // 10))
    smooth: dict[str, float] = {}
    for step in steps(network, batches(), optimizer, schedule, torch.Generator().manual_seed(recipe.seed)):
        smooth = {name: 0.98 * smooth.get(name, loss) + 0.02 * loss for name, loss in step.losses.items()}
        tell(Progress("training", step.index + 1, recipe.steps, smooth))
    return smooth
