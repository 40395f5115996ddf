"""The force-adaptive fast-slow agent: it sees seldom, feels often, and plans as often as the coming contact asks for.

"FAVLA: A Force-Adaptive Fast-Slow VLA model for Contact-Rich Robotic Manipulation" (arXiv 2602.23648). Every
``slow_every`` ticks a slow pass encodes pictures, words and the history of force, and foresees how much the force will
vary; in between, the fast expert plans anew from that context and the newest wrench. All plans of a cycle start from
the same noise. A new cycle begins with the plan that first uses a new context.

Options (``favla:rate=fami,most=4``, the defaults): ``rate`` is how the number of plans in a cycle is decided (see
``agents.inference_rate``): ``fami`` (by the forecast, up to ``most``), ``static`` (``calls`` in every cycle),
``random`` (1 or ``most``, ``calls`` in the mean), ``threshold`` (``most`` where more than ``force_n=1`` newtons are
felt as the cycle begins), ``oracle`` (told the future, so privileged). ``event`` adds a plan whenever the force has
changed since the last one by more than three of its usual changes from tick to tick, unless the cycle has had
``budget=8`` plans already; such an agent looks every tick. ``steps``, ``schedule`` and ``alpha`` are those of
``flow``: with ``schedule=has`` every plan streams. Average overlapping plans with ``--ensemble`` (a negative weight
favours the newest).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

import numpy as np
import torch

from ..models.checkpoint import Checkpoint
from ..models.favla.config import FavlaConfig
from ..models.favla.policy import FavlaPolicy
from ..models.favla.slow import SlowContext
from ..models.favla.train import TRAINER
from ..models.favla.variance import FRESH
from ..models.flow.imitation import Trainer
from ..models.flow.schedules import Schedule
from .agent import ActionPart, Call, Episode, Observation
from .flow import Begun, Flow, FlowMemory, policy_tensors, samples_of, sampling_schedule
from .inference_rate import Cycle, Fami, Oracle, Random, Rate, Static, Threshold, call_ticks

_READ = {  # the options that each rate reads
    "fami": ("most",),
    "static": ("calls",),
    "random": ("calls", "most"),
    "threshold": ("force_n", "most"),
    "oracle": ("most",),
}


@dataclass
class FavlaMemory(FlowMemory):
    """What an episode changes: its present slow cycle, and what was felt.

    ``context`` is the cycle's, and ``noise`` [H, D] that of all its plans; it began at tick ``began`` and is to have
    plans at the ticks ``due`` after that; ``phase`` in [0, 1) is the episode's own, for rates that alternate. ``ran``
    is the tick of the last plan, at which the force was ``felt`` [3].
    """

    rate: Rate = field(kw_only=True)
    phase: float = field(kw_only=True)
    context: SlowContext | None = None
    noise: np.ndarray | None = None
    number: int = -1
    began: int = 0
    due: tuple[int, ...] = ()
    plans: int = 0
    ran: int = 0
    rest: np.ndarray | None = None
    felt: np.ndarray = field(default_factory=lambda: np.zeros(3))


class Favla(Flow):
    """Sees slowly and plans fast with the force that is felt, more often where contact is foreseen.

    The network is a :class:`FavlaPolicy`: slow contexts by ``encode``, plans by ``plan``.

    ``rate`` is ``None`` for the oracle, which is made for each episode. ``event_n`` is the change of the force in N
    after which a plan is made at once (``None``: never). Raises ``ValueError`` when an option is out of range.
    """

    name: ClassVar[str] = "favla"
    trainer: ClassVar[Trainer] = TRAINER
    config: FavlaConfig

    def __init__(
        self,
        policy: FavlaPolicy,
        *,
        schedule: Schedule,
        rate: Rate | None,
        most: int = 4,
        event_n: float | None = None,
        budget: int = 8,
        label: Mapping[str, Any] | None = None,
        samples: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(policy, schedule=schedule, execute=policy.config.horizon, samples=samples)
        self.encode_every = period = policy.config.slow_every
        highest = most if rate is None else rate.most
        for name, value in (("calls" if isinstance(rate, Static) else "most", highest), ("budget", budget)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= period:
                raise ValueError(f"{name}={value!r} plans a slow cycle, expected 1 to slow_every={period}")
        self._rate, self._most, self._label = rate, most, dict(label or {})
        self.event_n, self.budget = event_n, budget
        if rate is None:
            self.privileged = True
            self.remembers = True
            if not label:
                raise ValueError("rate='oracle' needs the label's scale, which this checkpoint's card does not state")

    @classmethod
    def from_checkpoint(  # type: ignore[override]  # its options
        cls,
        checkpoint: Checkpoint,
        *,
        rate: str = "fami",
        most: int | None = None,
        calls: float | None = None,
        force_n: float | None = None,
        event: bool = False,
        budget: int | None = None,
        steps: int | None = None,
        schedule: str | None = None,
        alpha: float | None = None,
    ) -> Favla:
        """The agent of a checkpoint, whose tensors are ``policy.*`` and, for calibration, ``samples.*``."""
        if rate not in _READ:
            raise ValueError(f"rate={rate!r} is not known; choose one of {', '.join(_READ)}")
        for name, value in (("most", most), ("calls", calls), ("force_n", force_n)):
            if value is not None and name not in _READ[rate]:
                raise ValueError(f"{name}={value} is not read by rate={rate!r}, which reads {', '.join(_READ[rate])}")
            if isinstance(value, bool | str):
                raise ValueError(f"{name}={value!r}, expected a number")
        if "calls" in _READ[rate] and calls is None:
            raise ValueError(f"rate={rate!r} needs calls=NUMBER, how many plans a cycle has in the mean")
        if not isinstance(event, bool):
            raise ValueError(f"event={event!r}, expected true or false")
        if budget is not None and not event:
            raise ValueError(f"budget={budget} bounds the plans that events add; it needs event=true")
        most = 4 if most is None else most
        event_n = checkpoint.card.get("event_n")
        if event and not (_is_number(event_n) and event_n > 0):  # type: ignore[operator]
            raise ValueError(f"event=true, but the card says event_n={event_n!r}, expected a force in N above 0")
        if rate == "oracle":
            _check_label(checkpoint.card.get("label"))
        policy = TRAINER.read(checkpoint.config, policy_tensors(checkpoint))
        rates: dict[str, Callable[[], Rate | None]] = {
            "fami": lambda: Fami(most),
            "static": lambda: Static(calls),  # type: ignore[arg-type]  # checked above
            "random": lambda: Random(calls, most),  # type: ignore[arg-type]
            "threshold": lambda: Threshold(1.0 if force_n is None else force_n, most),
            "oracle": lambda: None,
        }
        return cls(
            policy,
            schedule=sampling_schedule(checkpoint.card, policy.config.horizon, steps, schedule, alpha),
            rate=rates[rate](),
            most=most,
            event_n=event_n if event else None,
            budget=8 if budget is None else budget,
            label=checkpoint.card.get("label") if rate == "oracle" else None,
            samples=samples_of(checkpoint),
        )

    def reset(self, episode: Episode) -> FavlaMemory:
        """Check the spaces against the checkpoint; the memory draws its noise from the episode's seed alone.

        Raises ``ValueError`` for the oracle in a world that cannot foresee.
        """
        memory = super().reset(episode)
        rate = self._rate
        if rate is None:
            foresee = episode.options.get("foresee")
            if foresee is None:
                raise ValueError(
                    f"rate='oracle' asks the world what is coming, and {episode.env_id} has no foresee() "
                    "(in real time no world has)"
                )
            rate = Oracle(self._most, foresee, self._label)
        phase = np.random.default_rng(np.random.SeedSequence(episode.seed, spawn_key=(3,))).random()
        return FavlaMemory(memory.generator, memory.action_space, memory.instruction, rate=rate, phase=phase)

    def encode(self, memory: FavlaMemory, observation: Observation) -> SlowContext:
        """The slow pass."""
        with torch.inference_mode():
            return self.policy.encode_slow(self._batch([(memory, Call(observation))], self.inputs))

    def plan_many(self, jobs: Sequence[tuple[Any, Call]]) -> Iterator[tuple[int, ActionPart]]:
        """Plan for the episodes whose turn it is, with one network call a step; the others go on as they do."""
        due = [index for index, (memory, call) in enumerate(jobs) if self._due(memory, call)]
        for index in range(len(jobs)):
            if index not in due:
                yield index, ActionPart(replan_in=1)
        if due:
            for position, part in super().plan_many([jobs[index] for index in due]):
                yield due[position], part

    def _due(self, memory: FavlaMemory, call: Call) -> bool:
        """Whether to plan; without ``event`` nobody asks before it is time."""
        if self.event_n is None or call.context is None or call.context is not memory.context:
            return True
        since = call.tick - memory.ran
        if since >= self.config.horizon - len(call.committed) - 1:
            return True
        first, last = (bisect_right(memory.due, tick - memory.began) for tick in (memory.ran, call.tick))
        jump = float(np.linalg.norm(_force(call.observation) - memory.felt))
        return last > first or (jump > self.event_n and memory.plans < self.budget)

    def _begin(self, jobs: Sequence[tuple[Any, Call]]) -> Begun:
        """Begin a cycle where the context is new, and read what is felt now."""
        needs, replan_in, encodes, noise, extras = [], [], [], [], []
        contexts = []
        for memory, call in jobs:
            own = call.context is None  # nobody runs the slow pass for us
            context = self.encode(memory, call.observation) if own else call.context
            if context is not memory.context:
                self._begin_cycle(memory, call, context)
            memory.ran, memory.felt = call.tick, _force(call.observation)
            memory.plans += 1
            elapsed = call.tick - memory.began
            later = [tick - elapsed for tick in memory.due if tick > elapsed]
            wanted = later[0] + self.config.max_delay if later else self.config.horizon
            needs.append(self._need(call, wanted))
            replan_in.append(1 if self.event_n is not None else later[0] if later else None)
            encodes.append(int(own))
            noise.append(memory.noise)
            contexts.append(context)
            extras.append({"y_hat": context.y_hat.numpy(), "calls": np.array(len(memory.due))})
        slow = contexts[0] if len(contexts) == 1 else SlowContext.stack(contexts)
        keys = (*self.config.fast, "wrench") if self.config.feels_now else self.config.fast
        context = self.policy.context(slow, self._batch(jobs, keys))
        if context.gate is not None:
            for row, gate in enumerate(context.gate.numpy()):
                extras[row]["gate"] = gate
        return Begun(context, np.stack(noise), needs, replan_in, encodes, extras)

    def _begin_cycle(self, memory: FavlaMemory, call: Call, context: SlowContext) -> None:
        force = _force(call.observation)
        if memory.rest is None:
            memory.rest = force
        memory.context, memory.noise = context, self._noise(memory)
        memory.number += 1
        memory.began, memory.plans = call.tick, 0
        going_on = np.zeros((self._label.get("window", 1), self.config.action_size), np.float32)
        if memory.chunk is not None:
            left = memory.chunk[min(call.tick - memory.planned_at, len(memory.chunk) - 1) :]
            going_on[:] = left[np.minimum(np.arange(len(going_on)), len(left) - 1)]
        pressed = float(np.linalg.norm(force - memory.rest))
        cycle = Cycle(memory.number, memory.phase, float(context.y_hat), pressed, memory.generator, going_on)
        memory.due = call_ticks(memory.rate.calls(cycle), self.config.slow_every)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _check_label(label: Any) -> None:
    """Raise ``ValueError`` where a card does not say how forecasts were labelled."""
    if not isinstance(label, Mapping):
        raise ValueError(f"rate='oracle' needs the label's scale, and the card says label={label!r}")
    weights = label.get("weights")
    for name, good, expected in (
        ("window", isinstance(label.get("window"), int) and 1 <= label["window"] <= 1000, "1 to 1000 ticks"),
        ("sigma", _is_number(label.get("sigma")) and label["sigma"] > 0, "a number above 0"),
        (
            "weights",
            isinstance(weights, list) and len(weights) == 6 and all(_is_number(w) and w >= 0 for w in weights),
            "six numbers of at least 0",
        ),
    ):
        if not good:
            raise ValueError(f"the card says label.{name}={label.get(name)!r}, expected {expected}")


def _force(observation: Mapping[str, Any]) -> np.ndarray:
    """The mean force of about the last tick [3], in N."""
    return observation["wrench"][-FRESH:, :3].mean(axis=0)
