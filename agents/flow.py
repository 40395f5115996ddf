"""The flow-matching agent: a chunk of actions from noise, refined over a few evaluations of a network.

Options (``flow:schedule=has,steps=10,execute=6``): ``steps`` is how often the network is evaluated a plan; ``schedule``
is ``constant``, where all actions are final after the last step, or ``has``, where near ones are final first and a plan
ends when the needed ones are (with ``alpha``, see ``models.flow.schedules``); ``execute`` is how many actions of a
plan the agent wants executed before it looks again; ``guidance=rtc`` or ``identity`` steers a plan towards the one that
is running instead of continuing its committed actions (see ``models.flow.guidance``), up to the strength ``clip``, and
beyond the committed actions no further than ``reach`` of them (default: to the end of the running plan).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..models.checkpoint import Checkpoint
from ..models.data.demonstrations import TEXT_BYTES, flatten
from ..models.flow.action_flow import ActionFlow
from ..models.flow.guidance import Guidance, chunking_weights
from ..models.flow.imitation import Trainer
from ..models.flow.schedules import ConstantSchedule, Schedule, make_schedule
from ..models.flow.train import TRAINER
from .agent import ActionPart, Call, Episode
from .network import NetworkAgent, check_action_space, check_observation_space


@dataclass
class FlowMemory:
    """What an episode changes: its source of noise, and where guidance needs it, the last whole chunk [H, D] with the
    tick it was planned at.

    The action space is the episode's, for clipping, and the instruction what it said where observations do not.
    """

    generator: np.random.Generator
    action_space: spaces.Box
    instruction: str | None = None
    chunk: np.ndarray | None = None
    planned_at: int = 0


class Begun(NamedTuple):
    """What precedes the sampler's steps: the network's ``context`` for all jobs, for each job its ``noise`` [B, H, D],
    how many actions it ``needs`` and when it wants to look again, and the ``encodes`` that this took."""

    context: Any
    noise: np.ndarray
    needs: list[int]
    replan_in: list[int | None]
    encodes: list[int]
    extras: Sequence[Mapping[str, np.ndarray]]


class Flow(NetworkAgent):
    """Plans chunks of actions by flow matching, from noise in a few steps.

    The network is a :class:`FlowPolicy`, evaluated for one episode or for many at once.

    ``steps`` >= 1; ``execute`` in 1..horizon; both default to the checkpoint's card, and so do ``schedule`` and
    ``alpha``. Raises ``ValueError`` when out of range.
    """

    name: ClassVar[str] = "flow"
    trainer: ClassVar[Trainer] = TRAINER
    max_delay: int

    def __init__(
        self,
        policy: ActionFlow,
        *,
        schedule: Schedule,
        execute: int,
        guidance: str = "none",
        clip: float = 5.0,
        reach: int | None = None,
        samples: Mapping[str, Any] | None = None,
    ) -> None:
        horizon = policy.config.horizon
        if type(execute) is not int or not 1 <= execute <= horizon:
            raise ValueError(f"execute={execute!r}, expected 1 <= execute <= horizon={horizon} of this checkpoint")
        if guidance not in _GUIDANCE:
            raise ValueError(f"guidance={guidance!r} is not known; choose one of {', '.join(_GUIDANCE)}")
        if guidance != "none" and not isinstance(schedule, ConstantSchedule):
            raise ValueError(f"guidance={guidance!r} needs whole chunks, which schedule='constant' makes")
        if isinstance(clip, str | bool) or not clip > 0:
            raise ValueError(f"clip={clip}, expected a strength above 0")
        if reach is not None and (not isinstance(reach, int) or reach < 0):
            raise ValueError(f"reach={reach}, expected 0 or more actions")
        self.networks = {"policy": policy}
        self.config = policy.config
        self.schedule = schedule
        self.execute = execute
        self.guidance = guidance
        self.remembers = guidance != "none"  # the last whole chunk of each episode
        self.max_delay = policy.config.max_delay if guidance == "none" else horizon - 1
        self.clip = clip
        self.reach = horizon if reach is None else reach
        self._samples = samples
        self._warned = False

    @classmethod
    def from_checkpoint(  # type: ignore[override]  # its options
        cls,
        checkpoint: Checkpoint,
        *,
        steps: int | None = None,
        execute: int | None = None,
        schedule: str | None = None,
        alpha: float | None = None,
        guidance: str = "none",
        clip: float = 5.0,
        reach: int | None = None,
    ) -> Flow:
        """The agent of a checkpoint, whose tensors are ``policy.*`` and, for calibration, ``samples.*``."""
        policy = cls.trainer.read(checkpoint.config, policy_tensors(checkpoint))
        horizon, sampling = policy.config.horizon, checkpoint.card.get("sampling", {})
        return cls(
            policy,
            schedule=sampling_schedule(checkpoint.card, horizon, steps, schedule, alpha),
            execute=sampling.get("execute", max(1, horizon // 2)) if execute is None else execute,
            guidance=guidance,
            clip=clip,
            reach=reach,
            samples=samples_of(checkpoint),
        )

    @property
    def inputs(self) -> Mapping[str, tuple[int, ...]]:
        """What it reads of an observation: key to the shape of its array."""
        return self.config.inputs

    @property
    def policy(self) -> Any:
        """The network, as the backend left it."""
        return self.networks["policy"]

    def calibration(self, n: int) -> Mapping[str, Any] | None:
        """Up to ``n`` training samples that the checkpoint carries."""
        if not self._samples:
            return None
        observation = {key: value[:n] for key, value in self._samples["observation"].items()}
        rest = {key: value[:n] for key, value in self._samples.items() if key != "observation"}
        return {"observation": observation, **rest}

    def reset(self, episode: Episode) -> FlowMemory:
        """Check the spaces against the checkpoint; the memory draws its noise from the episode's seed alone."""
        seen = episode.observation_space
        if episode.instruction is not None and isinstance(seen, spaces.Dict) and "instruction" not in seen.spaces:
            seen = spaces.Dict({**seen.spaces, "instruction": spaces.Text(TEXT_BYTES)})
        check_observation_space(seen, self.inputs, self.name)
        space = check_action_space(episode.action_space, self.config.action_size, self.name)
        generator = episode.generator()
        return FlowMemory(generator, space, episode.instruction)

    def plan(self, memory: FlowMemory, call: Call) -> Iterator[ActionPart]:
        """One part an evaluation; the actions come with the step that makes them final."""
        for _, part in self.plan_many([(memory, call)]):
            yield part

    def plan_many(self, jobs: Sequence[tuple[FlowMemory, Call]]) -> Iterator[tuple[int, ActionPart]]:
        """Plan for several episodes with one network call a step. Stops once every job has what it needs.

        Raises ``ValueError`` when a job's committed actions exceed what the policy was trained to continue; warns
        when one needs more actions than the chunk holds.
        """
        device = self.policy.device
        committed = [
            np.array(call.committed, dtype=np.float32).reshape(len(call.committed), self.config.action_size)
            for _, call in jobs
        ]
        sent = [len(given) for given in committed]
        guidance = None
        if self.guidance == "none":
            prefixes = [torch.from_numpy(given).to(device) for given in committed]
        else:
            prefixes = []
            guidance = self._pull(jobs, committed)
        # Guidance goes back through the network, which inference mode would forbid for good.
        mode = torch.inference_mode if guidance is None else torch.no_grad
        with mode():
            begun = self._begin(jobs)
            noise = torch.from_numpy(begun.noise).to(device)
            stream = self.policy.stream(begun.context, noise, self.schedule, prefixes, guidance)
        ends = [len(given) + need for given, need in zip(committed, begun.needs, strict=True)]
        while True:
            with mode():  # entered anew each time: a generator must not leave it on for its reader
                evaluation = next(stream, None)
            if evaluation is None:
                return
            final = evaluation.newly_final.tolist()
            actions = evaluation.actions.cpu().numpy() if any(map(any, final)) else None
            for job, (memory, call) in enumerate(jobs):
                start = sent[job]
                sent[job] = max(start, _run_end(final[job]))
                part: Any = ()
                if actions is not None and sent[job] > start:
                    space = memory.action_space
                    chunk = np.clip(actions[job], space.low, space.high).astype(space.dtype)
                    part = chunk[start : sent[job]]
                    if self.remembers:
                        memory.chunk, memory.planned_at = chunk, call.tick
                yield (
                    job,
                    ActionPart(
                        start=start,
                        actions=part,
                        encodes=0 if evaluation.step else begun.encodes[job],
                        evaluations=1,
                        replan_in=begun.replan_in[job],
                        extras={} if evaluation.step else begun.extras[job],
                    ),
                )
            if all(done >= end for done, end in zip(sent, ends, strict=True)):
                return

    def _begin(self, jobs: Sequence[tuple[Any, Call]]) -> Begun:
        """Encode what is observed, and draw the noise of every job."""
        return self._begun(jobs, self.policy.encode(self._batch(jobs, self.inputs)))

    def _begun(self, jobs: Sequence[tuple[Any, Call]], context: Any) -> Begun:
        """What precedes the steps, with the context that they share."""
        needs = [self._need(call, self.execute) for _, call in jobs]
        noise = np.stack([self._noise(memory) for memory, _ in jobs])
        return Begun(context, noise, needs, list(needs), [1] * len(jobs), [{}] * len(jobs))

    def _batch(self, jobs: Sequence[tuple[Any, Call]], keys: Iterable[str]) -> dict[str, Tensor]:
        """The observations of several calls as one batch, with the instruction of an episode whose world is silent."""
        observations = [
            ({} if memory.instruction is None else flatten({"instruction": memory.instruction}))
            | flatten(call.observation)
            for memory, call in jobs
        ]
        return {key: torch.from_numpy(np.stack([o[key] for o in observations])).to(self.policy.device) for key in keys}

    def _noise(self, memory: FlowMemory) -> np.ndarray:
        return memory.generator.standard_normal((self.config.horizon, self.config.action_size), dtype=np.float32)

    def _pull(self, jobs: Sequence[tuple[FlowMemory, Call]], committed: Sequence[np.ndarray]) -> Guidance:
        """Towards what is left of each episode's last chunk, in which its committed actions say where it stands."""
        horizon, size = self.config.horizon, self.config.action_size
        target = np.zeros((len(jobs), horizon, size), np.float32)
        weights = torch.zeros(len(jobs), horizon)
        for row, ((memory, call), given) in enumerate(zip(jobs, committed, strict=True)):
            last, d = memory.chunk, len(given)
            if last is None or not d:
                continue
            # As many ticks on as have passed, less those at which the robot held.
            furthest = min(call.tick - memory.planned_at, horizon - d)
            begin = next((k for k in range(furthest, -1, -1) if np.array_equal(last[k : k + d], given)), None)
            if begin is not None:
                target[row, : horizon - begin] = last[begin:]
                weights[row] = chunking_weights(horizon, d, min(horizon - begin, d + self.reach))
        device = self.policy.device
        exact = self.guidance == "rtc"
        return Guidance(torch.from_numpy(target).to(device), weights.to(device), self.clip, exact)

    def _need(self, call: Call, wanted: int) -> int:
        """How many actions after the committed ones: what the call says, else what is ``wanted``, if there are any."""
        d, horizon = len(call.committed), self.config.horizon
        if d > self.max_delay:
            raise ValueError(
                f"{d} actions are committed, but this checkpoint was trained to continue at most "
                f"max_delay={self.max_delay}; plan earlier, or train with a larger max_delay"
            )
        need = call.need or min(wanted, horizon - d)
        if d + need > horizon and not self._warned:
            self._warned = True
            warnings.warn(
                f"need={need} actions after {d} committed ones, but this checkpoint plans chunks of {horizon}; where "
                "they run out the robot holds, which is counted as stalls",
                stacklevel=2,
            )
        return min(need, horizon - d)


_GUIDANCE = ("none", "rtc", "identity")


def _run_end(final: Sequence[bool]) -> int:
    """One past the last action that became final: near ones come first, so a run has no gaps."""
    return max((index + 1 for index, now in enumerate(final) if now), default=0)


def policy_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The weights of a checkpoint's policy."""
    return {n.removeprefix("policy."): t for n, t in checkpoint.tensors.items() if n.startswith("policy.")}


def sampling_schedule(
    card: Mapping[str, Any], horizon: int, steps: int | None, schedule: str | None, alpha: float | None
) -> Schedule:
    """The schedule that the options ask for; where they say nothing, that of a checkpoint's card."""
    sampling: dict[str, Any] = {"steps": 10, "schedule": "constant", "alpha": 0.6, **card.get("sampling", {})}
    given = {"steps": steps, "schedule": schedule, "alpha": alpha}
    sampling |= {name: value for name, value in given.items() if value is not None}
    return make_schedule(sampling["schedule"], horizon, sampling["steps"], sampling["alpha"])


def samples_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The training samples that a checkpoint carries, as a batch."""
    prefix, tensors = "samples.", checkpoint.tensors
    samples: dict[str, Any] = {}
    for name in (n.removeprefix(prefix) for n in tensors if n.startswith(prefix)):
        head, _, key = name.partition(".")
        if key:
            samples.setdefault(head, {})[key] = tensors[prefix + name]
        else:
            samples[name] = tensors[prefix + name]
    return samples
