"""The protocol of a game of questions: say what you think the rule is, test something, say again what you think, ...

From "Failing to Falsify: Evaluating and Mitigating Confirmation Bias in Language Models" (arXiv 2604.02485), whose
released code plays number triples and the Blicket test in this way. ``rule_discovery.py`` and ``blicket.py`` say what
is tested and what a rule is; here stand the turns, the two ways to answer, and what is measured.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from string import printable
from typing import Any, Generic, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from ..interface import Interface

ANNOUNCE, TEST = 0, 1
RETRIES = 10  # times that a turn is asked again before the episode is an error
ANNOUNCEMENT = 400  # characters of an announcement, and of a line of text
FILM = (480, 640, 3)

_KINDS = ("an announcement", "a test")

H = TypeVar("H")
"""What an announcement says once it is understood."""


class FormatError(ValueError):
    """An answer that is not what the turn asks for; it is asked for again."""


class EpisodeError(RuntimeError):
    """A turn was asked too often: whoever plays does not keep to the format."""


@dataclass
class Log:
    """What was announced and tested so far, in order; a full episode has one announcement more than tests.

    ``understood`` and ``correct`` are of each announcement, ``answers`` (yes or no) and ``compatible`` of each test:
    does the announcement before it predict a yes? ``None`` where that was not understood. ``retries`` counts answers
    that had to be asked for again.
    """

    understood: list[bool] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    compatible: list[bool | None] = field(default_factory=list)
    retries: int = 0

    @property
    def solved_after(self) -> int | None:
        """How many tests were made before the first correct announcement; ``None`` if there was none."""
        return self.correct.index(True) if True in self.correct else None

    def measures(self) -> dict[str, float]:
        """The numbers of the episode; one that does not exist (tests to solve what was not solved) is left out.

        ``incompatibility`` is the share of tests that the announced hypothesis predicts to fail, among those before the
        first correct announcement (all, in an unsolved episode); ``incompatibility_all`` the share among all tests;
        ``incompatible_per_compatible`` the ratio of the two counts in the first window. ``no_per_yes`` is the ratio of
        answers, ``unparseable`` the share of announcements that were not understood.
        """
        solved = self.solved_after
        window = [c for c in self.compatible[:solved] if c is not None]
        whole = [c for c in self.compatible if c is not None]
        incompatible, yes = window.count(False), self.answers.count(True)
        measures = {
            "tests": float(len(self.answers)),
            "first_guess": float(solved == 0),
            "incompatible": float(incompatible),
            "compatible": float(len(window) - incompatible),
            "unparseable": self.understood.count(False) / max(len(self.understood), 1),
            "retries": float(self.retries),
        }
        if solved is not None:
            measures["tests_to_solve"] = float(solved)
        for name, top, bottom in (
            ("incompatibility", incompatible, len(window)),
            ("incompatibility_all", whole.count(False), len(whole)),
            ("incompatible_per_compatible", incompatible, len(window) - incompatible),
            ("no_per_yes", len(self.answers) - yes, yes),
        ):
            if bottom:
                measures[name] = top / bottom
        return measures


class Inquiry(gymnasium.Env[dict[str, Any], Any], Generic[H]):
    """A game of questions; derive, and say what can be tested and what can be announced.

    ``key`` names what is tested in observations and actions, ``space`` is what it is a member of, ``verb`` begins the
    line of a test, ``answers`` are the words for no and yes, ``forms`` say how an announcement and a test are written.
    A line of text has at most 400 characters. An episode is an announcement, then ``tests`` times a test
    and an announcement, and goes on when the rule is found. Announcements get no answer.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 2}

    def __init__(
        self,
        key: str,
        space: spaces.Space,
        *,
        verb: str,
        answers: tuple[str, str],
        forms: tuple[str, str],
        tests: int,
        actions: str,
        render_mode: str | None,
    ) -> None:
        if type(tests) is not int or not 1 <= tests <= 1000:
            raise ValueError(f"tests={tests!r}, expected how many may be made, from 1 to 1000")
        if actions not in ("structured", "text"):
            raise ValueError(f"actions={actions!r}, expected 'structured' or 'text'")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode={render_mode!r}, expected 'rgb_array' or None")
        self.render_mode = render_mode
        self._key, self._verb, self._answers, self._forms = key, verb, answers, forms
        self._limit, self._text = tests, actions == "text"
        line = spaces.Text(ANNOUNCEMENT, min_length=0, charset=printable)
        self.action_space: spaces.Space = line
        if not self._text:
            self.action_space = spaces.Dict({"kind": spaces.Discrete(2), key: space, "announcement": line})
        self.observation_space = spaces.Dict(
            {
                "turn": spaces.Discrete(2),
                "tests": spaces.Discrete(tests + 1),
                key: space,
                "feedback": spaces.Discrete(2),
                "refused": spaces.Discrete(2),
                "message": spaces.Text(1000, min_length=0, charset=printable),
            }
        )
        self.interface = Interface(control_hz=None, episode_ticks=2 * tests + 1)  # a game of turns has no rate
        self._log = Log()
        self._turn, self._refused, self._over = ANNOUNCE, 0, True
        self._test: Any = None
        self._answer = False
        self._hypothesis: H | None = None
        self._transcript: list[tuple[str, bool | None]] = []

    # --- what a game says ---

    @abstractmethod
    def _begin(self, seed: int | None) -> tuple[Any, bool]:
        """Hide a rule; returns the first example and whether the rule says yes to it."""

    @abstractmethod
    def _read(self, content: Any) -> Any:
        """A test as a member of the space. Raises ``ValueError``; ``FormatError`` to have it asked again."""

    @abstractmethod
    def _parse(self, text: str) -> Any:
        """The test that is written as ``text``. Raises ``FormatError``."""

    @abstractmethod
    def _write(self, test: Any) -> str:
        """A test as text."""

    @abstractmethod
    def _examine(self, test: Any) -> bool:
        """Whether the hidden rule says yes."""

    @abstractmethod
    def _understand(self, announcement: str) -> H | None:
        """What an announcement says; ``None`` if that cannot be told."""

    @abstractmethod
    def _predicts(self, hypothesis: H, test: Any) -> bool:
        """Whether a hypothesis says yes to a test."""

    @abstractmethod
    def _is_right(self, hypothesis: H) -> bool:
        """Whether a hypothesis is the hidden rule."""

    # --- the game ---

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Hide a rule and show an example, both from ``seed``; ``options`` are not used."""
        super().reset(seed=seed)
        self._log = Log()
        self._turn, self._refused, self._over = ANNOUNCE, 0, False
        self._hypothesis = None
        self._test, self._answer = self._begin(seed)
        self._transcript = [(self._write(self._test), self._answer)]
        return self._observation(self._said()), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Announce or test, as the turn asks."""
        if self._over:
            raise RuntimeError("no episode is running: call reset() first")
        try:
            kind, content = self._parse_line(action) if self._text else self._unpack(action)
            if kind != self._turn:
                raise FormatError(f"that is {_KINDS[kind]}, expected {_KINDS[self._turn]}")
            content = self._read(content) if kind == TEST else content
        except FormatError as error:
            return self._refuse(str(error))
        self._refused = 0
        if kind == TEST:
            return self._make_test(content)
        return self._announced(content)

    def _make_test(self, test: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        compatible = None if self._hypothesis is None else bool(self._predicts(self._hypothesis, test))
        self._test, self._answer = test, bool(self._examine(test))
        self._log.compatible.append(compatible)
        self._log.answers.append(self._answer)
        self._transcript.append((self._write(test), self._answer))
        self._turn = ANNOUNCE
        return self._observation(self._said()), 0.0, False, False, self._info()

    def _announced(self, announcement: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._hypothesis = self._understand(announcement)
        self._log.understood.append(self._hypothesis is not None)
        self._log.correct.append(self._hypothesis is not None and bool(self._is_right(self._hypothesis)))
        self._transcript.append((announcement, None))
        self._turn, self._over = TEST, len(self._log.answers) == self._limit
        info, reward = self._info(), 0.0
        if self._over:
            reward = info["score"] = float(info["success"])
            info["metrics"] = self._measures()
        return self._observation(self._ask()), reward, self._over, False, info

    def _refuse(self, why: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if self._refused == RETRIES:
            self._over = True
            raise EpisodeError(f"the turn was asked {RETRIES + 1} times, and the last answer was refused too: {why}")
        self._refused += 1
        self._log.retries += 1
        return self._observation(f"{why}. {self._ask()}"), 0.0, False, False, self._info()

    def _measures(self) -> dict[str, float]:
        """The metrics of the episode at its end."""
        return self._log.measures()

    def _info(self) -> dict[str, Any]:
        return {"success": True in self._log.correct}

    def _observation(self, message: str) -> dict[str, Any]:
        return {
            "turn": np.int64(self._turn),
            "tests": np.int64(len(self._log.answers)),
            self._key: self._test.copy(),
            "feedback": np.int64(self._answer),
            "refused": np.int64(self._refused > 0),
            "message": message[:1000],
        }

    # --- words ---

    def _unpack(self, action: Any) -> tuple[int, Any]:
        """Kind and content of a structured action. Raises ``ValueError`` for one that is none."""
        if not isinstance(action, dict) or set(action) != {"kind", self._key, "announcement"}:
            raise ValueError(f"action={action!r:.200}, expected a dict with kind, {self._key} and announcement")
        if np.ndim(action["kind"]) or action["kind"] not in (ANNOUNCE, TEST):
            raise ValueError(f"kind={action['kind']!r}, expected 0 to announce or 1 to test")
        if action["kind"] == TEST:
            try:
                return TEST, np.asarray(action[self._key])
            except ValueError:
                raise ValueError(f"{self._key}={action[self._key]!r:.200}, expected an array") from None
        return ANNOUNCE, _announcement(action["announcement"])

    def _parse_line(self, text: Any) -> tuple[int, Any]:
        """Kind and content of a line of text. Raises ``FormatError`` for one that is in none of the two forms."""
        if not isinstance(text, str):
            raise ValueError(f"action={text!r:.200}, expected a line of text")
        line = text.strip()
        if len(line) > ANNOUNCEMENT:
            raise FormatError(f"the line has {len(line)} characters, expected at most {ANNOUNCEMENT}")
        verb, _, content = line.partition(":")
        kind = {"announce": ANNOUNCE, self._verb.lower(): TEST}.get(verb.strip().lower())
        if kind is None or len(line.splitlines()) > 1:
            raise FormatError("that is in neither of the two forms")
        return (TEST, self._parse(content.strip())) if kind == TEST else (ANNOUNCE, _announcement(content))

    def _said(self) -> str:
        return f"{self._write(self._test)}: {self._answers[self._answer]}. {self._ask()}"

    def _ask(self) -> str:
        if self._over:
            return "That was the last announcement."
        return f"{'Test' if self._turn == TEST else 'Announce'}, in the form `{self._form(self._turn)}`."

    def _form(self, kind: int) -> str:
        return f"{self._verb}: {self._forms[1]}" if kind == TEST else f"Announce: {self._forms[0]}"

    def render(self) -> np.ndarray | None:
        """The last lines of the game, uint8 [480, 640, 3]; ``None`` with a warning without ``render_mode``."""
        if self.render_mode is None:
            gymnasium.logger.warn('render() draws nothing: make the environment with render_mode="rgb_array"')
            return None
        return _page(self._title(), self._transcript, self._answers)

    def _title(self) -> str:
        return f"{len(self._log.answers)} of {self._limit} tests"


def _announcement(text: Any) -> str:
    """An announcement on one line. Raises ``ValueError`` for what is none."""
    if not isinstance(text, str):
        raise ValueError(f"announcement={text!r:.200}, expected text")
    line = " ".join(text.split())
    if not 1 <= len(line) <= ANNOUNCEMENT:
        raise FormatError(f"the announcement has {len(line)} characters, expected 1 to {ANNOUNCEMENT}")
    return line


def _page(title: str, lines: list[tuple[str, bool | None]], answers: tuple[str, str]) -> np.ndarray:
    """The newest lines of a transcript below its title; tests with their answers in colour."""
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", (FILM[1], FILM[0]), (250, 249, 246))
    draw, font, row = ImageDraw.Draw(page), ImageFont.load_default(17), 27
    draw.text((16, 10), title, (120, 120, 120), font)
    for n, (text, answer) in enumerate(lines[-((FILM[0] - 48) // row) :]):
        y = 42 + n * row
        if answer is None:
            draw.text((16, y), text[:76], (90, 90, 150), font)
            continue
        draw.text((40, y), text[:60], (30, 30, 30), font)
        colour = (20, 140, 60) if answer else (200, 50, 40)
        draw.text((FILM[1] - 70, y), answers[answer], colour, font)
    return np.asarray(page)
