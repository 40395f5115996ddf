"""Does an agent fit an environment? Compare their cards, convert what converts without loss, refuse the rest.

:func:`reconcile` compares the :class:`Interface` an agent was trained on with the one of an environment, before
the first step. What would silently score zero (a delta read as absolute, a state that is not sent, a control
rate that does not divide) raises :class:`InterfaceMismatch` with every problem at once. What has an exact
equivalent (a rotation convention, a gripper's range, a unit, a rate that divides) becomes part of the
:class:`Conversion`, with a note for the result rows::

    conversion = reconcile(agent.interface, interface_of(env), horizon=8)
    env = conversion.wrap(env)          # the agent's numbers on both sides from here on
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from .interface import Component, Interface, InterfaceMismatch, Rotation
from .rotations import ANGLED, convert_rotation, rotation_bound
from .units import parse_unit, to_radians

# A rate that is off by less than this is the same rate (29.97 Hz and 30 Hz): half a tick in 250 ticks.
_RATE_TOLERANCE = 0.002
# What an environment may report at a single tick, and would be lost between two actions.
_MOMENTARY = ("event", "success", "is_success")


def reconcile(agent: Interface | None, env: Interface | None, *, horizon: int | None = None) -> Conversion:
    """Compare what an agent was trained on with what an environment means, and say how to convert.

    ``agent`` and ``env`` are their cards; ``None`` is unknown, and what is unknown on a side is not checked but
    noted. ``horizon`` is the number of actions of each chunk that will be executed (``None`` or 0: the agent decides).
    Components are matched by name; their order may differ. Numbers that an environment sends in addition to
    those the agent knows are left out for the agent.

    Raises :class:`InterfaceMismatch` listing all problems, each with both sides and what to do about it;
    ``ValueError`` for a negative ``horizon``.
    """
    horizon = horizon or 0
    if horizon < 0:
        raise ValueError(f"horizon={horizon}, expected the number of actions executed per plan, or 0")
    comparison = _Comparison()
    if agent is not None and agent.chunk is not None and horizon > agent.chunk:
        comparison.problems.append(
            f"chunk length: {horizon} actions are to be executed per plan, but the agent was trained to plan "
            f"{agent.chunk}; execute at most {agent.chunk}, or take an agent with a longer chunk"
        )
    if agent is None or env is None:
        sides = [side for side, card in (("agent", agent), ("environment", env)) if card is None]
        comparison.unknown.append(f"no interface card of the {' and the '.join(sides)}")
        return comparison.conclude(interface=env)

    repeat = comparison.rate(agent, env)
    action = comparison.action(agent, env)
    maps = comparison.observation(agent, env)
    comparison.length(agent, env)
    card = replace(
        env,
        control_hz=env.control_hz and env.control_hz / repeat,
        action=agent.action if action else env.action,
        observation={k: agent.observation[k] if k in maps else v for k, v in env.observation.items()},
        episode_ticks=env.episode_ticks and math.ceil(env.episode_ticks / repeat),
    )
    return comparison.conclude(
        interface=card, repeat=repeat, needs=tuple(agent.observation), _action=action, _observation=maps
    )


@dataclass(frozen=True, eq=False)
class Conversion:
    """What lies between an agent and an environment; made by :func:`reconcile`, stored with every result.

    ``notes`` has one sentence for each thing that could not be checked and then for each conversion; ``checked`` is
    False when there is any of the former. ``interface`` is the environment's card as the agent meets it.
    ``repeat`` is how many ticks of the environment one action lasts; ``needs`` are the observation keys that
    the agent cannot do without.
    """

    notes: tuple[str, ...] = ()
    checked: bool = True
    interface: Interface | None = None
    repeat: int = 1
    needs: tuple[str, ...] = ()
    _action: _Map | None = field(default=None, repr=False)
    _observation: Mapping[str, _Map] = field(default_factory=dict, repr=False)

    @property
    def identity(self) -> bool:
        """Whether agent and environment already mean the same by their numbers."""
        return self._action is None and not self._observation and self.repeat == 1

    @property
    def summary(self) -> str:
        """One line for a result row: ``checked`` and the notes, or the notes alone, ``unchecked: ...`` first."""
        return "; ".join(("checked", *self.notes) if self.checked else self.notes)

    def act(self, action: np.ndarray) -> np.ndarray:
        """The agent's action [..., A] as the environment takes it for each of ``repeat`` ticks, float64 [..., E]."""
        action = np.asarray(action, np.float64)
        return action if self._action is None else self._action(action)

    def observe(self, observation: Any) -> Any:
        """The environment's observation as the agent knows it; arrays that need no conversion are not copied."""
        if not self._observation:
            return observation
        converted = dict(observation)
        for key, mapping in self._observation.items():
            value = np.asarray(observation[key])
            converted[key] = mapping(value).astype(value.dtype if value.dtype.kind == "f" else np.float32)
        return converted

    def wrap(self, env: gym.Env) -> gym.Env:
        """The environment as the agent knows it: ``env`` itself where nothing has to be converted.

        Raises :class:`InterfaceMismatch` when the spaces contradict the environment's card, or when an
        observation key that the agent needs is on the card and not in the space.
        """
        space = env.observation_space
        sent = set(space.spaces) if isinstance(space, spaces.Dict) else set(self.needs)
        if absent := [key for key in self.needs if key not in sent]:
            raise InterfaceMismatch(
                f"observation {_names(absent)}: the agent was trained with it, this environment sends only "
                f"{_names(sorted(sent))}; make it with arguments that add {_names(absent)}"
            )
        return env if self.identity else Converted(env, self)


class Converted(gym.Wrapper):
    """An environment in an agent's units: observations converted on the way out, actions on the way in.

    One step applies an action for ``conversion.repeat`` ticks of the environment and adds up the rewards; it
    stops at the tick that ends the episode. The ``info`` is that of the last tick, with the earliest ``event``
    among them and a ``success`` at any of them. A converted action that leaves the environment's bounds
    (possible where a rotation convention changed) is clipped, as a controller would; an episode's count of such
    steps is the metric ``clipped_actions``. ``interface`` is the card of what comes out here, so read cards by
    :func:`interface_of`, not from ``unwrapped``.

    Raises :class:`InterfaceMismatch` when the spaces of ``env`` contradict its card.
    """

    def __init__(self, env: gym.Env, conversion: Conversion) -> None:
        super().__init__(env)
        self.conversion = conversion
        self.interface = conversion.interface
        self._clipped = 0
        if conversion._action is not None:
            self.action_space = conversion._action.source_space(env.action_space, "the action space")
        if conversion._observation:
            if not isinstance(env.observation_space, spaces.Dict):
                raise InterfaceMismatch(
                    f"the environment's card names observation keys, its space is {env.observation_space}; "
                    f"a card describes the keys of a Dict observation"
                )
            converted = {
                key: mapping.target_space(env.observation_space[key], f"observation {key!r}")
                for key, mapping in conversion._observation.items()
            }
            self.observation_space = spaces.Dict({**env.observation_space.spaces, **converted})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the observation is converted."""
        self._clipped = 0
        observation, info = self.env.reset(seed=seed, options=options)
        return self.conversion.observe(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action for ``repeat`` ticks. Raises ``ValueError`` for an action of the wrong shape."""
        if self.conversion._action is not None:
            action = self._to_env(action)
        total = 0.0
        kept: dict[str, Any] = {}
        for _ in range(self.conversion.repeat):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            kept = {**{key: info[key] for key in _MOMENTARY if info.get(key) not in (None, False)}, **kept}
            if terminated or truncated:
                break
        if kept:
            info = {**info, **kept}
        if self._clipped and (terminated or truncated):
            info = {**info, "metrics": {**info.get("metrics", {}), "clipped_actions": float(self._clipped)}}
        return self.conversion.observe(observation), total, terminated, truncated, info

    def _to_env(self, action: Any) -> np.ndarray:
        action = np.asarray(action)
        if action.shape != self.action_space.shape:
            raise ValueError(f"action has shape {action.shape}, expected {self.action_space.shape}")
        space = self.env.action_space
        assert isinstance(space, spaces.Box)
        converted = self.conversion.act(action)
        inside = np.clip(converted, space.low, space.high)
        # Rounding is not clipping: a gripper mapped onto its bound may miss it by the last bit.
        self._clipped += bool(np.any(np.abs(inside - converted) > 1e-5 * np.maximum(1, np.abs(converted))))
        return inside.astype(space.dtype)


def interface_of(env: gym.Env) -> Interface | None:
    """The outermost card of an environment and its wrappers, or ``None`` where there is none."""
    try:
        card = env.get_wrapper_attr("interface")
    except AttributeError:
        return None
    return card if isinstance(card, Interface) else None


# Vectors ------------------------------------------------------------------------------------------------------


class _Angles(NamedTuple):
    """How one rotation becomes another: conventions, units and how much of it."""

    source: Rotation
    target: Rotation
    scale: float  # of the source's unit to rad
    out_scale: float  # of rad to the target's unit
    fraction: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return convert_rotation(values * self.scale, self.source, self.target, self.fraction) * self.out_scale


class _Turn(NamedTuple):
    """A rotation inside a vector: where it stands on both sides."""

    angles: _Angles
    at: slice
    out: slice


@dataclass(frozen=True, eq=False)
class _Map:
    """A vector [..., S] to a vector [..., T]: ``v[index] * scale + offset``, then the rotations."""

    size: int
    index: np.ndarray
    scale: np.ndarray
    offset: np.ndarray
    turns: tuple[_Turn, ...] = ()

    @property
    def identity(self) -> bool:
        return (
            not self.turns
            and np.array_equal(self.index, np.arange(self.size))
            and bool((self.scale == 1).all() and (self.offset == 0).all())
        )

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        vector = np.asarray(vector, np.float64)
        if vector.shape[-1:] != (self.size,):
            raise ValueError(f"vector has shape {vector.shape}, the card says {self.size} numbers")
        out = vector[..., self.index] * self.scale + self.offset
        for turn in self.turns:
            out[..., turn.out] = turn.angles(vector[..., turn.at])
        return out

    def source_space(self, space: spaces.Space, name: str) -> spaces.Box:
        """The space of what comes in, given that of what goes out. Each number that comes in is used."""
        space = _box(space, len(self.index), name)
        low, high = (np.full((*space.shape[:-1], self.size), x) for x in (-np.inf, np.inf))
        ends = np.stack([(space.low - self.offset) / self.scale, (space.high - self.offset) / self.scale])
        low[..., self.index], high[..., self.index] = ends.min(axis=0), ends.max(axis=0)
        for turn in self.turns:
            bound = rotation_bound(turn.angles.source) / turn.angles.scale
            low[..., turn.at], high[..., turn.at] = -bound, bound
        return _rounded_box(low, high, space.dtype)

    def target_space(self, space: spaces.Space, name: str) -> spaces.Box:
        """The space of what goes out, given that of what comes in."""
        space = _box(space, self.size, name)
        ends = np.stack([space.low[..., self.index], space.high[..., self.index]]) * self.scale + self.offset
        low, high = ends.min(axis=0), ends.max(axis=0)
        for turn in self.turns:
            bound = rotation_bound(turn.angles.target) * turn.angles.out_scale
            low[..., turn.out], high[..., turn.out] = -bound, bound
        return _rounded_box(low, high, space.dtype if np.dtype(space.dtype).kind == "f" else np.float32)


def _box(space: spaces.Space, size: int, name: str) -> spaces.Box:
    if not isinstance(space, spaces.Box) or space.shape[-1:] != (size,):
        raise InterfaceMismatch(
            f"{name} is {space}, but the environment's card describes {size} numbers; correct one of the two"
        )
    return space


def _rounded_box(low: np.ndarray, high: np.ndarray, dtype: Any) -> spaces.Box:
    """A Box whose bounds, rounded to ``dtype``, still hold every value that rounds to ``dtype`` within them."""
    return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype)


# Comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sides:
    """How a sentence speaks of the two sides of a vector; numbers go from the source to the target."""

    place: str
    source: str
    target: str
    remedy: str

    def say(self, component: str, what: str, source: object, target: object) -> str:
        return f"{self.place}{component!r}: {what}: the {self.source} {source}, the {self.target} {target}"


_ACTION = _Sides(
    "action ",
    "agent gives",
    "environment takes",
    "make the environment with the controller that the agent was trained on",
)


def _observation_sides(key: str) -> _Sides:
    return _Sides(
        f"observation {key!r}, ",
        "environment sends",
        "agent expects",
        "make the environment with the observation that the agent was trained on",
    )


class _Comparison:
    """Two cards side by side: what is wrong, what is converted, and what nobody could check."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.unknown: list[str] = []
        self.repeat = 1

    def conclude(self, **conversion: Any) -> Conversion:
        if self.problems:
            count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
            listed = "\n".join(f"- {problem}" for problem in self.problems)
            raise InterfaceMismatch(f"the agent does not fit this environment ({count}):\n{listed}")
        notes = (*(f"unchecked: {reason}" for reason in self.unknown), *self.notes)
        return Conversion(notes=notes, checked=not self.unknown, **conversion)

    def rate(self, agent: Interface, env: Interface) -> int:
        """How many ticks of the environment one action of the agent lasts."""
        ours, theirs = _hz(agent.control_hz), _hz(env.control_hz)
        if agent.control_hz is None or env.control_hz is None:
            if agent.control_hz != env.control_hz:
                self.unknown.append(f"control rate: the agent was trained at {ours}, the environment runs at {theirs}")
            return 1
        ratio = env.control_hz / agent.control_hz
        repeat = round(ratio)
        if repeat < 1 or abs(ratio - repeat) > _RATE_TOLERANCE * repeat:
            self.problems.append(
                f"control rate: the agent was trained at {ours}, the environment runs at {theirs}, which is no whole "
                f"multiple; make it with a control rate of {ours}"
            )
            return 1
        if repeat > 1:
            self.notes.append(
                f"control rate: each action of the agent at {ours} lasts {repeat} ticks of the environment at "
                f"{theirs}; a delta is shared out, anything else is held"
            )
        elif agent.control_hz != env.control_hz:
            self.notes.append(f"control rate: {theirs} of the environment taken for {ours}")
        self.repeat = repeat
        return repeat

    def length(self, agent: Interface, env: Interface) -> None:
        if agent.episode_ticks is None:
            return
        shown = f"the agent's demonstrations lasted {agent.episode_ticks} ticks"
        if env.episode_ticks is None:
            self.unknown.append(f"episode length: {shown}, the environment states no limit")
        elif env.episode_ticks < agent.episode_ticks * self.repeat:
            if self.repeat > 1:
                shown += f", which are {agent.episode_ticks * self.repeat} of the environment"
            self.problems.append(
                f"episode length: {shown}, the environment ends after {env.episode_ticks}; make it with a longer "
                f"time limit"
            )

    def action(self, agent: Interface, env: Interface) -> _Map | None:
        if agent.action and env.action:
            return self.vector(_ACTION, agent.action, env.action)
        if agent.action or env.action:
            silent = "environment" if agent.action else "agent"
            self.unknown.append(f"the {silent}'s card does not describe the action")
        return None

    def observation(self, agent: Interface, env: Interface) -> dict[str, _Map]:
        maps: dict[str, _Map] = {}
        if bool(agent.observation) != bool(env.observation):
            silent = "environment" if agent.observation else "agent"
            self.unknown.append(f"the {silent}'s card does not describe the observation")
            return maps
        for key, wanted in agent.observation.items():
            if key not in env.observation:
                self.problems.append(
                    f"observation {key!r}: the agent was trained with it, the environment does not send it (it sends "
                    f"{_names(env.observation)}); make the environment with {key!r}, or take an agent without it"
                )
            elif mapping := self.vector(_observation_sides(key), env.observation[key], wanted):
                maps[key] = mapping
        return maps

    def vector(self, sides: _Sides, source: Sequence[Component], target: Sequence[Component]) -> _Map | None:
        """Pair components by name and say how the one vector becomes the other; ``None`` for: as it is."""
        have, want = {c.name: c for c in source}, {c.name: c for c in target}
        for components, distinct in ((source, have), (target, want)):
            if len(distinct) < len(components):
                self.problems.append(f"{sides.place}{_names(c.name for c in components)}: a name occurs twice")
        for name in (name for name in want if name not in have):
            self.problems.append(
                f"{sides.place}{name!r}: the {sides.target} it, the {sides.source} no such component (it has "
                f"{_names(have)}); {sides.remedy}"
            )
        # A number that an agent gives and no one takes is lost; one that it was not trained on, it can be spared. A
        # camera more or less changes the layout: one picture is an array, several are a dict.
        extra = [name for name in have if name not in want]
        numbers = not any(c.quantity in ("image", "text") for c in target)
        if extra and (sides is _ACTION or not numbers):
            self.problems.append(
                f"{sides.place}{_names(extra)}: the {sides.source} it, the {sides.target} no such component (it has "
                f"{_names(want)}); {sides.remedy}"
            )
        elif extra:
            self.notes.append(f"{sides.place}{_names(extra)}: left out, the agent was trained without")

        first = dict(zip(have, np.cumsum([0, *(c.size for c in have.values())]).tolist(), strict=False))
        size = sum(c.size for c in want.values())
        index, scale, offset = np.zeros(size, np.intp), np.ones(size), np.zeros(size)
        turns: list[_Turn] = []
        start = 0
        for name, taker in want.items():
            out = slice(start, start + taker.size)
            start = out.stop
            if name not in have:
                continue
            at = slice(first[name], first[name] + have[name].size)
            fit = self.component(sides, have[name], taker)
            if isinstance(fit, _Angles):
                turns.append(_Turn(fit, at, out))
            elif fit is not None:
                index[out] = np.arange(at.start, at.stop)
                scale[out], offset[out] = fit
        shared = [name for name in have if name in want]
        if shared != list(want) and numbers:
            self.notes.append(f"{sides.place}components: reordered from {_names(shared)} to {_names(want)}")
        mapping = _Map(sum(c.size for c in source), index, scale, offset, tuple(turns))
        return mapping if numbers and not mapping.identity else None

    def component(self, sides: _Sides, source: Component, target: Component) -> tuple[float, float] | _Angles | None:
        """How one component becomes the other: a scale and an offset, a rotation, or ``None`` for a problem."""
        before = len(self.problems)
        if source.quantity != target.quantity:
            self.refuse(sides, target, "quantity", source.quantity, target.quantity)
        if source.mode != target.mode:
            self.refuse(sides, target, "mode", source.mode, target.mode)
        if source.frame != target.frame and not {source.quantity, target.quantity} & {"gripper", "text"}:
            self.refuse(sides, target, "frame", source.frame, target.frame)
        if len(self.problems) > before:
            return None
        # A delta is shared out over the ticks that an action lasts; anything absolute is held.
        share = 1.0 / self.repeat if sides is _ACTION and target.mode == "delta" else 1.0
        if source.rotation and target.rotation:
            # A share of an axis-angle is that share of its numbers, of any other convention it is not.
            if source.rotation != target.rotation or (share != 1.0 and source.rotation != "axis_angle"):
                return self.rotation(sides, source, target, share)
        elif "orientation" in (source.quantity, target.quantity) or source.rotation or target.rotation:
            ours, theirs = source.rotation or "an unknown one", target.rotation or "an unknown one"
            self.unknown.append(sides.say(target.name, "rotation", ours, theirs))
        if source.size != target.size:
            self.refuse(sides, target, "size", f"{source.size} numbers", f"{target.size} numbers")
            return None
        if source.quantity == "gripper":
            return self.gripper(sides, source, target, share)
        return self.unit(sides, source, target, share)

    def rotation(self, sides: _Sides, source: Component, target: Component, share: float) -> _Angles | None:
        assert source.rotation is not None
        assert target.rotation is not None
        scale, out_scale = to_radians(source), to_radians(target)
        ours, theirs = (f"{c.rotation} in {c.unit or 'an unknown unit'}" for c in (source, target))
        if scale is None or out_scale is None:
            said = sides.say(target.name, "rotation", ours, theirs)
            self.problems.append(f"{said}; what a controller scales has no angle that could be used; {sides.remedy}")
            return None
        if any(c.rotation in ANGLED and not c.unit for c in (source, target)):
            self.unknown.append(f"{sides.say(target.name, 'rotation', ours, theirs)}; taken for rad")
        if source.rotation != target.rotation:
            said = sides.say(target.name, "rotation", source.rotation, target.rotation)
            self.notes.append(f"{said}; converted")
        return _Angles(source.rotation, target.rotation, scale, 1 / out_scale, share)

    def gripper(self, sides: _Sides, source: Component, target: Component, share: float) -> tuple[float, float]:
        ends = [c for side in (source, target) for c in (side.closed, side.open) if c is not None]
        closed, opened, to_closed, to_opened = ends
        scale = (to_opened - to_closed) / (opened - closed)
        if (closed, opened) != (to_closed, to_opened):
            ours, theirs = f"closed={closed:g}, open={opened:g}", f"closed={to_closed:g}, open={to_opened:g}"
            said = sides.say(target.name, "gripper", ours, theirs)
            self.notes.append(f"{said}; {'inverted' if scale < 0 else 'rescaled'}")
        if target.mode == "delta":
            return scale * share, 0.0
        return scale, to_closed - closed * scale

    def unit(self, sides: _Sides, source: Component, target: Component, share: float) -> tuple[float, float] | None:
        without = source.quantity == "text" or source.rotation not in (None, *ANGLED)
        if source.unit == target.unit or without:
            return share, 0.0
        if not source.unit or not target.unit:
            said = sides.say(target.name, "unit", source.unit or "unknown", target.unit or "unknown")
            self.unknown.append(said)
            return share, 0.0
        ours, theirs = parse_unit(source.unit), parse_unit(target.unit)
        if ours is None or theirs is None or ours[1] != theirs[1]:
            self.refuse(sides, target, "unit", source.unit, target.unit)
            return None
        scale = ours[0] / theirs[0]
        if scale != 1.0:
            self.notes.append(f"{sides.say(target.name, 'unit', source.unit, target.unit)}; times {scale:.6g}")
        return scale * share, 0.0

    def refuse(self, sides: _Sides, target: Component, what: str, ours: object, theirs: object) -> None:
        self.problems.append(f"{sides.say(target.name, what, ours, theirs)}; {sides.remedy}")


def _names(names: Any) -> str:
    return ", ".join(repr(str(n)) for n in names) or "nothing"


def _hz(rate: float | None) -> str:
    return "an unknown rate" if rate is None else f"{rate:g} Hz"
