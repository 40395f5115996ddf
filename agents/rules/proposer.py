"""The door for language models: whatever turns a conversation into a reply plays a game of questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import printable

import numpy as np
from gymnasium import spaces

from ...envs.decision.blicket import write_objects
from ...envs.decision.inquiry import ANNOUNCE, ANNOUNCEMENT
from ...envs.decision.rule_discovery import write_triple
from ..agent import Episode, Observation, StepAgent
from .interventions import INTERVENTIONS, WORDS, Words, announcement, answers, first_message

Conversation = Sequence[Mapping[str, str]]
"""Messages, each with ``role`` ("user" or "assistant") and ``content``; the last is a user's."""

Propose = Callable[[Conversation, np.random.Generator], str]
"""Continues a conversation. The generator is the episode's chance, for whoever samples."""


@dataclass
class Dialogue:
    """What was said in one episode. ``messages`` holds single lines, ``replies`` what was really answered, in full."""

    instruction: str
    key: str
    words: Words
    generator: np.random.Generator
    messages: list[dict[str, str]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    line: str = ""


class Proposer(StepAgent):
    """Plays by asking ``propose`` for each turn; of a reply the last line in one of the two forms counts.

    What else was said, such as reasoning, is dropped from the conversation and kept in the memory's ``replies``; a
    reply that is refused is asked for again and leaves no trace in the conversation. A reply without such a line goes
    to the world on one line, of which it gets as much as it takes, and is refused. ``intervention`` is one of
    :data:`~.interventions.INTERVENTIONS`. The world must take ``actions="text"``. Raises ``ValueError`` for an unknown
    intervention, and from ``reset`` for another world; ``TypeError`` from ``act`` where ``propose`` returns no text.
    """

    def __init__(self, propose: Propose, intervention: str = "plain") -> None:
        if intervention not in INTERVENTIONS:
            raise ValueError(f"intervention={intervention!r}, expected one of {', '.join(INTERVENTIONS)}")
        self._propose, self._intervention = propose, intervention

    def reset(self, episode: Episode) -> Dialogue:
        """The memory is the conversation."""
        seen = episode.observation_space
        keys = [key for key in WORDS if isinstance(seen, spaces.Dict) and key in seen.spaces]
        if not keys or not isinstance(episode.action_space, spaces.Text):
            raise ValueError(
                f"{episode.env_id} is no game of questions that takes text; make RuleDiscovery or Blicket with "
                "actions='text'"
            )
        return Dialogue(episode.instruction or "", keys[0], WORDS[keys[0]], episode.generator())

    def act(self, memory: Dialogue, observation: Observation) -> str:
        """The line that ``propose`` comes to."""
        if not observation["refused"]:
            self._listen(memory, observation)
        asked = list(memory.messages)
        if observation["refused"]:
            asked[-1] = {"role": "user", "content": f"{asked[-1]['content']}\n{observation['message']}"}
        reply = self._propose(tuple(asked), memory.generator)
        if not isinstance(reply, str):
            raise TypeError(f"propose returned {reply!r:.80}, expected the text of a reply")
        memory.replies.append(reply)
        memory.line = _counts(reply, memory.words)
        return _sent(memory.line)

    def _listen(self, memory: Dialogue, observation: Observation) -> None:
        """Put the last line, which was accepted, and what the world says now into the conversation."""
        words = memory.words
        announcing = observation["turn"] == ANNOUNCE
        form = announcement(self._intervention, words)
        ask = f"Now say what you believe: {form}" if announcing else f"Now test: `{words.test}`"
        test = observation[memory.key]
        on = frozenset(np.flatnonzero(test).tolist())
        shown = write_triple(test) if memory.key == "triple" else write_objects(on)
        answer = bool(observation["feedback"])
        if not memory.messages:
            said = first_message(self._intervention, memory.instruction, words, shown, answer)
        else:
            memory.messages.append({"role": "assistant", "content": memory.line})
            said = f"{shown}: {answers(self._intervention, words)[answer]}." if announcing else ""
        memory.messages.append({"role": "user", "content": f"{said}\n{ask}".strip()})


def _counts(reply: str, words: Words) -> str:
    """The line of a reply that counts: the last in a known form (of two announced rules the DAX one), else all."""
    form = rf"^[ \t`]*((?:Announce(?: DAX| MED)?|{words.test.partition(':')[0]})\s*:.*)$"
    lines = [match.replace("`", "").rstrip() for match in re.findall(form, reply, re.IGNORECASE | re.MULTILINE)]
    dax = [line for line in lines if re.match(r"announce dax", line, re.IGNORECASE)]
    if dax and re.match("announce", lines[-1], re.IGNORECASE):
        return dax[-1]
    return lines[-1] if lines else reply.strip()


def _sent(line: str) -> str:
    """The line as an action: of one announced rule of two what it says, printable, and no longer than is allowed."""
    line = re.sub(r"^announce (?:dax|med)\s*:", "Announce:", line, flags=re.IGNORECASE)
    return "".join(c if c in printable else "?" for c in " ".join(line.split()))[:ANNOUNCEMENT]
