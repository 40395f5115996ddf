"""Looks on while an episode runs, to film it and to keep it for a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ..agents.agent import ActionPart, Observation, Transition
from .executor import Outcome
from .imagination import Imagination
from .recording import EpisodeRecord
from .video import VideoWriter, as_picture


class Watch:
    """Films an episode, keeps it for a data set, or both; a :class:`~.executor.PlanWatcher`.

    ``film`` is the .mp4 to be (``None``: none), with ``caption`` and the tick below every picture, and beside it what
    the agent foresees if it ``imagines``, see :class:`~.imagination.Imagination`. A tick has one picture, of
    ``render``; a world in which much happens in a tick offers ``footage``, which gives the pictures of the last step
    (or of the reset) before that one. With ``record`` the episode is in ``self.record`` once it is over, unless it
    failed.
    """

    def __init__(
        self, caption: str, film: Path | None, record: bool, imagines: tuple[str, tuple[int, ...]] | None = None
    ) -> None:
        self._caption, self._film, self._keep = caption, film, record
        self._imagination = Imagination(*imagines) if film and imagines else None
        self._writer: VideoWriter | None = None
        self._env: gymnasium.Env | None = None
        self._picture: np.ndarray | None = None
        self._tick = 0
        self.record: EpisodeRecord | None = None

    def reset(self, env: gymnasium.Env, observation: Observation) -> None:
        """The episode begins."""
        self._env = env
        if self._film:
            self._writer = VideoWriter(self._film, fps=env.metadata.get("render_fps") or 30)
            self._shoot(observation)
        if self._keep:
            self.record = EpisodeRecord.begin(observation)

    def planned(self, tick: int, part: ActionPart) -> None:
        """A part of the plan that was asked for at ``tick`` has arrived."""
        if self._writer and self._imagination:
            self._imagination.foresee(tick, part.extras)

    def step(self, step: Transition, info: dict[str, Any]) -> None:
        """One tick is over."""
        if self._writer:
            self._develop()
        self._tick += 1
        if self._writer:
            self._shoot(step.next_observation)
        if self.record:
            self.record.add(step, info)

    def close(self, outcome: Outcome) -> None:
        """The episode is over."""
        if self._writer:
            self._develop()
            word = {True: "success", False: "no success", None: f"score {outcome.score}"}[outcome.success]
            for _ in range(10):  # hold the last picture with the result, long enough to be read
                self._develop(outcome.reason or word)
            self._writer.close()
        if self.record:
            self.record.seed = outcome.seed
            if outcome.failed:
                self.record = None

    # A picture is taken when its tick begins and put into the film when it is over: what is planned in between belongs
    # to it.

    def _shoot(self, observation: Observation) -> None:
        assert self._writer is not None and self._env is not None
        try:
            if self._imagination:
                self._imagination.see(self._tick, observation)
            for between in getattr(self._env.unwrapped, "footage", tuple)():
                self._picture = as_picture(between)
                self._develop()
            picture: Any = self._env.render()
            self._picture = as_picture(picture).copy()  # the world may draw the next one into the same array
        except BaseException:
            self._give_up()
            raise

    def _develop(self, word: str = "") -> None:
        assert self._writer is not None and self._picture is not None
        try:
            picture = self._imagination.beside(self._picture) if self._imagination else self._picture
            self._writer.add(picture, f"{self._caption} · tick {self._tick} {word}")
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """What cannot be filmed once is not asked again."""
        assert self._writer is not None
        self._writer.discard()
        self._writer = None
