"""The flow-matching agent: a chunk of actions from noise, refined over a few evaluations of a transformer.

Options (``flow:checkpoint=PATH,steps=4,execute=8``): ``steps`` is how often the network is evaluated a plan,
``execute`` how many actions of a plan the agent wants executed before it looks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ..models.checkpoint import Checkpoint
from ..models.data.demonstrations import flatten
from ..models.flow.policy import FlowConfig, FlowPolicy
from ..models.flow.schedules import ConstantSchedule
from .agent import ActionPart, Call, Episode
from .network import NetworkAgent, check_action_space, check_observation_space


@dataclass
class FlowMemory:
    """What an episode changes: its source of noise. The action space is the episode's, for clipping."""

    generator: np.random.Generator
    action_space: spaces.Box


class Flow(NetworkAgent):
    """Plans chunks with a :class:`FlowPolicy`, alone or for many episodes at once.

    ``steps`` >= 1; ``execute`` in 1..horizon. Both default to the checkpoint's card. Raises ``ValueError`` when out of
    range.
    """

    name: ClassVar[str] = "flow"

    def __init__(
        self, policy: FlowPolicy, *, steps: int, execute: int, samples: Mapping[str, Any] | None = None
    ) -> None:
        horizon = policy.config.horizon
        if not 1 <= execute <= horizon:
            raise ValueError(f"execute={execute}, expected 1 <= execute <= horizon={horizon} of this checkpoint")
        self.networks = {"policy": policy}
        self.config = policy.config
        self.schedule = ConstantSchedule(horizon, steps)
        self.execute = execute
        self._samples = samples

    @classmethod
    def from_checkpoint(  # type: ignore[override]  # its options
        cls, checkpoint: Checkpoint, *, steps: int | None = None, execute: int | None = None
    ) -> Flow:
        """The agent of a checkpoint, whose tensors are ``policy.*`` and, for calibration, ``samples.*``."""
        config, tensors, card = checkpoint
        weights = {n.removeprefix("policy."): t for n, t in tensors.items() if n.startswith("policy.")}
        policy = FlowPolicy.from_tensors(FlowConfig.from_json(config), weights)
        sampling = card.get("sampling", {})
        return cls(
            policy,
            steps=sampling.get("steps", 10) if steps is None else steps,
            execute=sampling.get("execute", max(1, policy.config.horizon // 2)) if execute is None else execute,
            samples=_samples(tensors),
        )

    @property
    def policy(self) -> FlowPolicy:
        """The network, as the backend left it."""
        return self.networks["policy"]  # type: ignore[return-value]

    def calibration(self, n: int) -> Mapping[str, Any] | None:
        """Up to ``n`` training samples that the checkpoint carries."""
        if not self._samples:
            return None
        observation = {key: value[:n] for key, value in self._samples["observation"].items()}
        rest = {key: value[:n] for key, value in self._samples.items() if key != "observation"}
        return {"observation": observation, **rest}

    def reset(self, episode: Episode) -> FlowMemory:
        """Check the spaces against the checkpoint; the memory draws its noise from the episode's seed alone."""
        wanted = {**self.config.state, **self.config.pictures}
        check_observation_space(episode.observation_space, wanted, self.name)
        space = check_action_space(episode.action_space, self.config.action_size, self.name)
        # A stream of its own: the environment makes default_rng(seed) for itself.
        generator = np.random.default_rng(np.random.SeedSequence(episode.seed, spawn_key=(2,)))
        return FlowMemory(generator, space)

    def plan(self, memory: FlowMemory, call: Call) -> Iterator[ActionPart]:
        """One part an evaluation; the actions come with the step that makes them final."""
        for _, part in self.plan_many([(memory, call)]):
            yield part

    def plan_many(self, jobs: Sequence[tuple[FlowMemory, Call]]) -> Iterator[tuple[int, ActionPart]]:
        """Plan for several episodes with one network call a step. Stops once every job has what it needs.

        Raises ``ValueError`` when a job's committed actions exceed what the policy was trained to continue, or it
        needs more actions than the chunk holds.
        """
        config, device = self.config, self.policy.velocity.position.device
        needs = [self._need(call) for _, call in jobs]
        shape = (config.horizon, config.action_size)
        noise = np.stack([memory.generator.standard_normal(shape, dtype=np.float32) for memory, _ in jobs])
        observations = [flatten(call.observation) for _, call in jobs]
        batch = {
            key: torch.from_numpy(np.stack([o[key] for o in observations])).to(device)
            for key in (*config.state, *config.pictures)
        }
        prefixes = [
            torch.from_numpy(
                np.asarray(call.committed, dtype=np.float32).reshape(len(call.committed), config.action_size)
            ).to(device)
            for _, call in jobs
        ]
        ends = [len(call.committed) + need for (_, call), need in zip(jobs, needs, strict=True)]
        sent = [len(call.committed) for _, call in jobs]
        with torch.inference_mode():
            context = self.policy.encode(batch)
            stream = self.policy.stream(context, torch.from_numpy(noise).to(device), self.schedule, prefixes)
        while True:
            with torch.inference_mode():  # entered anew each time: a generator must not leave it on for its reader
                evaluation = next(stream, None)
            if evaluation is None:
                return
            counts = evaluation.newly_final.sum(-1).tolist()
            actions = evaluation.actions.cpu().numpy() if any(counts) else None
            for job, (memory, _) in enumerate(jobs):
                start, k = sent[job], counts[job]
                space = memory.action_space
                part = () if actions is None or not k else actions[job, start : start + k]
                yield (
                    job,
                    ActionPart(
                        start=start,
                        actions=np.clip(part, space.low, space.high).astype(space.dtype) if k else part,
                        encodes=int(evaluation.step == 0),
                        evaluations=1,
                        replan_in=needs[job],
                    ),
                )
                sent[job] += k
            if all(done >= end for done, end in zip(sent, ends, strict=True)):
                return

    def _need(self, call: Call) -> int:
        d, horizon = len(call.committed), self.config.horizon
        if d > self.config.max_delay:
            raise ValueError(
                f"{d} actions are committed, but this checkpoint was trained to continue at most "
                f"max_delay={self.config.max_delay}; plan earlier, or train with a larger max_delay"
            )
        need = call.need or min(self.execute, horizon - d)
        if d + need > horizon:
            raise ValueError(
                f"need={need} actions after {d} committed ones, but this checkpoint plans chunks of {horizon}; "
                f"ask for at most {horizon - d}"
            )
        return need


def _samples(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    prefix = "samples."
    samples: dict[str, Any] = {}
    for name in (n.removeprefix(prefix) for n in tensors if n.startswith(prefix)):
        head, _, key = name.partition(".")
        if key:
            samples.setdefault(head, {})[key] = tensors[prefix + name]
        else:
            samples[name] = tensors[prefix + name]
    return samples
