"""What a FAVLA policy foresees: its forecasts and gates on demonstrations, and the diary of one episode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...agents.agent import ActionPart, Agent, Call, Episode
from ..clock import Lockstep
from ..executor import Executor
from ..registry import make_agent, make_env

RISEN = 0.25  # of a forecast that asks for a second plan of four
TOUCHES_N = 0.5


class Foresight(NamedTuple):
    """Of demonstrations, one value an episode: the correlation of forecasts and labels; how many ticks before the first
    touch each rises above a quarter, to stay there until it; and how much more the gates feel in contact than without
    (0: sees, 1: feels). ``gates`` are the mean gates, free and touching."""

    correlation: np.ndarray
    label_lead: np.ndarray
    forecast_lead: np.ndarray
    gate_rise: np.ndarray
    gates: tuple[float, float]


def foresight(env_id: str, checkpoint: Path, seeds: range) -> Foresight:
    """Measure a policy on undisturbed demonstrations of these seeds, with contexts that are fresh at every tick."""
    import torch

    from ...models.checkpoint import load
    from ...models.data.demonstrations import collect
    from ...models.favla.train import TRAINER
    from ...models.favla.variance import FRESH, variance_label

    config, tensors, card = load(checkpoint)
    of_policy = {name.removeprefix("policy."): t for name, t in tensors.items() if name.startswith("policy.")}
    policy = TRAINER.read(config, of_policy).eval()
    env = make_env(env_id)
    shown = collect(env, seeds, noise=0.0, undisturbed=1.0)
    env.close()
    wrench, scale = shown.observations["wrench"], card["label"]
    weights, sigma = np.array(scale["weights"]), scale["sigma"]
    label, _, _ = variance_label(wrench, shown.lengths, scale["window"], scale["ema"], weights, sigma)
    seen = {key: torch.from_numpy(shown.observations[key]) for key in policy.config.inputs}
    with torch.inference_mode():
        slow = policy.encode_slow(seen)
        gate = policy.context(slow, seen).gate
    gates = np.full(len(label), np.nan) if gate is None else gate.mean(dim=(1, 2)).numpy()
    touching = np.linalg.norm(wrench[:, -FRESH:, :3].mean(1), axis=1) > TOUCHES_N
    ends = np.cumsum(shown.lengths)[:-1]
    kept = (label, slow.y_hat.numpy(), touching, gates)
    episodes = list(zip(*(np.split(values, ends) for values in kept), strict=True))
    return Foresight(
        np.array([np.corrcoef(y, y_hat)[0, 1] for y, y_hat, _, _ in episodes]),
        np.array([_lead(y, touches) for y, _, touches, _ in episodes]),
        np.array([_lead(y_hat, touches) for _, y_hat, touches, _ in episodes]),
        np.array([_rise(g, touches) for _, _, touches, g in episodes]),
        (float(gates[~touching].mean()), float(gates[touching].mean())),
    )


def _rise(gate: np.ndarray, touching: np.ndarray) -> float:
    """How much more a gate feels in contact; NaN where there is only the one or the other."""
    if touching.all() or not touching.any():
        return float("nan")
    return float(gate[touching].mean() - gate[~touching].mean())


def _lead(y: np.ndarray, touching: np.ndarray) -> int:
    """For how many ticks before the first touch ``y`` has risen without a break; all of them where it never was low."""
    touch = int(np.argmax(touching))
    low = np.flatnonzero(y[:touch] <= RISEN)
    return touch - 1 - int(low[-1]) if len(low) else touch


class Diary(NamedTuple):
    """One episode in lockstep: the force along z at 200 Hz, forecast and number of plans of each cycle, what came, the
    time of each plan and its gates [plans, layers]."""

    sample_s: np.ndarray
    force_n: np.ndarray
    asked_n: float
    tick_s: np.ndarray
    label: np.ndarray
    cycle_s: list[float]
    y_hat: list[float]
    calls: list[int]
    call_s: list[float]
    gate: np.ndarray


class _Noted(Agent):
    """Passes everything on, and keeps the extras of every plan."""

    def __init__(self, agent: Agent):
        self._agent = agent
        self.encode_every, self.interface, self.max_delay = agent.encode_every, agent.interface, agent.max_delay
        self.notes: list[tuple[int, dict[str, Any]]] = []

    def reset(self, episode: Episode) -> Any:
        return self._agent.reset(episode)

    def encode(self, memory: Any, observation: Any) -> Any:
        return self._agent.encode(memory, observation)

    def plan(self, memory: Any, call: Call) -> Iterator[ActionPart]:
        for part in self._agent.plan(memory, call):
            if part.extras:
                self.notes.append((call.tick, dict(part.extras)))
            yield part


class _Feels:
    """A watcher that keeps the wrench of every tick."""

    def __init__(self) -> None:
        self.windows: list[np.ndarray] = []
        self.instruction = ""

    def reset(self, env: Any, observation: Any) -> None:
        self.windows.append(observation["wrench"])
        self.instruction = observation["instruction"]

    def step(self, step: Any, info: dict[str, Any]) -> None:
        self.windows.append(step.next_observation["wrench"])

    def close(self, outcome: Any) -> None:
        pass


def diary(env_id: str, checkpoint: Path, seed: int) -> Diary:
    """Run one episode of FAMI, and note what is felt, foreseen and planned."""
    from ...models.checkpoint import load_card
    from ...models.favla.variance import variance_label

    path = str(checkpoint).removesuffix(".safetensors")
    noted, felt = _Noted(make_agent(f"favla:checkpoint={path}.safetensors", env_id)), _Feels()
    env = make_env(env_id)
    interface = env.unwrapped.interface  # type: ignore[attr-defined]
    tick_s, period = 1.0 / interface.control_hz, noted.encode_every
    episode = Episode(seed, env_id, env.observation_space, env.action_space, interface, interface.control_hz)
    (outcome,) = Executor(noted, Lockstep()).run([(env, episode)], [felt])
    env.close()
    if outcome.failed:
        raise RuntimeError(f"the episode for the picture: {outcome.reason}")
    windows = np.stack(felt.windows[:-1])
    scale = load_card(checkpoint)["label"]
    label, _, _ = variance_label(
        windows, np.array([len(windows)]), scale["window"], scale["ema"], np.array(scale["weights"]), scale["sigma"]
    )
    # Each window holds the last ten samples; the newest at most 4 ms before its tick.
    newest = np.floor(np.arange(len(windows)) * tick_s / 0.005 + 1e-6)
    times = 0.005 * (newest[:, None] + np.arange(-9, 1))
    first = [
        note
        for note, before in zip(noted.notes, [(-period, {}), *noted.notes], strict=False)
        if note[0] // period > before[0] // period
    ]
    return Diary(
        times[2:].ravel(),
        windows[2:, :, 2].ravel(),
        float(felt.instruction.split()[-2]),
        np.arange(len(windows)) * tick_s,
        label,
        [tick * tick_s for tick, _ in first],
        [extras["y_hat"].item() for _, extras in first],
        [int(extras["calls"]) for _, extras in first],
        [tick * tick_s for tick, _ in noted.notes],
        np.stack([extras["gate"].mean(axis=1) for _, extras in noted.notes]),
    )
