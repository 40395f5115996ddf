"""What a language model is told before a game of questions: the plain task, and ways against its confirmation bias.

After the interventions of "Failing to Falsify" (arXiv 2604.02485), which took them from experiments with people: Dual
Goal, and Think in Opposites. Counter-examples is a third, and the control has the length of the second and says nothing
about refuting anything, so that a gain over it is not that of more instructions. The words are our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_OPPOSITES = (
    "Before each test, look at a {thing} you know the answer to and name one feature it has. Imagine a {thing} that is "
    "the opposite in that feature and like it in all others, and test that one. If the answer stays the same, the "
    "feature probably does not matter; if it changes, it may. Test what confirms your idea as well as what "
    "contradicts it."
)
_COUNTER_EXAMPLES = (
    "Before each test, look at the rule you believe in and at what it forbids. Ask yourself which forbidden {thing} "
    "might turn out to be allowed after all, because another rule explains every answer so far just as well, and test "
    "that one. If it is allowed, your rule is wrong; if not, the other rule is. A rule that nothing could refute says "
    "nothing."
)
_CONTROL = (
    "Before each test, look at a {thing} you know the answer to and name one feature it has. Take your time, and "
    "write the feature down in a few words before you go on. Then choose the next {thing} with care and see that it "
    "is in the form that is asked for. Use what you have seen so far, and go on like this until all tests are made."
)
_DUAL_GOAL = (
    "Two rules share all there is: a {thing} is DAX (so far called {yes}) or it is MED ({no}), and never both. Find "
    "both rules, the one that makes a {thing} DAX and the one that makes it MED; neither matters more than the other. "
    "Answers to your tests are DAX or MED. Announce both each time, on two lines."
)

INTERVENTIONS: Mapping[str, str] = MappingProxyType(
    {
        "plain": "",
        "control": _CONTROL,
        "opposites": _OPPOSITES,
        "counterexamples": _COUNTER_EXAMPLES,
        "dual_goal": _DUAL_GOAL,
    }
)
"""What is added to the task, by name; ``{thing}`` is what is tested, ``{yes}`` and ``{no}`` are the answers."""


class Words(NamedTuple):
    """How a game is put into words: what is tested, the line that tests one, and the answers no and yes."""

    thing: str
    test: str
    announcement: str
    answers: tuple[str, str]


WORDS: Mapping[str, Words] = MappingProxyType(
    {
        "triple": Words("triple", "Check: [a, b, c]", "Announce: <one short sentence>", ("NO", "YES")),
        "objects": Words(
            "set of objects",
            "Test: [object 0, object 3]",
            "Announce: blickets=[object 0, object 3]; rule=<disjunctive, conjunctive or xor>",
            ("OFF", "ON"),
        ),
    }
)
"""By what is tested, as the observations of the games name it."""


def answers(intervention: str, words: Words) -> tuple[str, str]:
    """The words for no and yes."""
    return ("MED", "DAX") if intervention == "dual_goal" else words.answers


def announcement(intervention: str, words: Words) -> str:
    """How an announcement is written, in backticks; in Dual Goal on two lines, each with the rule of one answer."""
    names = ("Announce DAX", "Announce MED") if intervention == "dual_goal" else ("Announce",)
    return " and ".join(f"`{words.announcement.replace('Announce', name)}`" for name in names)


def first_message(intervention: str, instruction: str, words: Words, example: str, answer: bool) -> str:
    """The first message of a game: task, intervention, forms, example. Raises ``ValueError`` for an unknown one."""
    if intervention not in INTERVENTIONS:
        raise ValueError(f"intervention={intervention!r}, expected one of {', '.join(INTERVENTIONS)}")
    parts = [
        instruction,
        INTERVENTIONS[intervention].format(thing=words.thing, no=words.answers[0], yes=words.answers[1]),
        "End each answer in the form that the message asks for, with nothing after it:",
        f"`{words.test}` to make a test, {announcement(intervention, words)} to say what you believe now.",
        f"The first {words.thing} is {example}: {answers(intervention, words)[answer]}.",
    ]
    return "\n".join(filter(None, parts))
