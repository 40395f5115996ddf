"""What agents have scored in worlds, as a table of rewards for whoever is to learn which agent to send where.

``palaestra episodes --rewards FILE`` writes one from stored episodes, and ``palaestra/MatchingBandit-v0`` with
``instance=dispatcher,rewards=FILE`` draws from it: its users are the agents, its items the environments, and a reward
is the score of an episode. It is plain data::

    {"users": {"names": [...M], "features": [[...d1], ...M], "feature_names": [...d1]},
     "items": {"names": [...N], "features": [[...d2], ...N], "feature_names": [...d2]},
     "rewards": [[[score of an episode, ...], ...N], ...M],
     "made_by": {what the episodes were run with}}

Features are read off the names alone, so that any stored episodes will do; see :func:`features`.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..models.spec import Spec, Value, format_value, parse_spec, split_outside_quotes
from .store import EpisodeRow

MAX_BYTES = 16 << 20  # of a file that is read
MAX_NAMES, MAX_FEATURES, MAX_SCORES = 4096, 64, 1_000_000
LEAST_EPISODES = 5  # of each pair
_DECADE = 10.0  # numbers that are spread this far count by their logarithm
_DIGITS = 6  # that are kept of a number

Table = dict[str, Any]


# From stored episodes ----------------------------------------------------------------------------------------------


def reward_table(rows: Iterable[EpisodeRow], least: int = LEAST_EPISODES) -> Table:
    """The table of these episodes: every agent (with its backend) among them, and every environment.

    An episode that was run again, with the same agent, environment and seed, counts once, as it was stored last. One
    that failed or has no score is left out and counted. ``made_by`` says what all have in common, and the seeds.

    Raises ``ValueError`` when a pair has fewer than ``least`` episodes with a score, when there are more agents than
    environments (each takes one of its own), and when the episodes differ in what a score depends on: clock, latency
    profile, execution mode, version of the package.
    """
    if least < 1:
        raise ValueError(f"least={least}, expected at least 1 episode a pair")
    ordered = sorted(rows, key=lambda row: row.created_at)
    if not ordered:
        raise ValueError("no stored episodes match, so there is no table to make; `palaestra run` makes some")
    common = _common(ordered)
    newest = {(_user(row), row.env_id, row.seed): row for row in ordered}
    scores: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    unscored = 0
    for (user, item, seed), row in newest.items():
        if row.failed or row.score is None or not math.isfinite(row.score):
            unscored += 1
        else:
            scores[user, item][seed] = round(row.score, _DIGITS)
    users, items = sorted({user for user, _, _ in newest}), sorted({item for _, item, _ in newest})
    _require_pairs(users, items, scores, least)
    seeds = {frozenset(found) for found in scores.values()}
    return {
        "users": _described(users, [_user_attributes(name) for name in users]),
        "items": _described(items, [_item_attributes(name) for name in items]),
        "rewards": [[[scores[u, i][seed] for seed in sorted(scores[u, i])] for i in items] for u in users],
        "made_by": {
            **common,
            "episodes": sum(map(len, scores.values())),
            "episodes_without_score": unscored,
            "run_again": len(ordered) - len(newest),
            "same_seeds": len(seeds) == 1,
            "seeds": sorted(set().union(*seeds)) if len(seeds) == 1 else None,
            "privileged": sorted({_user(row) for row in ordered if row.privileged}),
        },
    }


def _user(row: EpisodeRow) -> str:
    return f"{row.agent} --backend {row.backend}" if row.backend else row.agent


def _common(rows: Sequence[EpisodeRow]) -> dict[str, Any]:
    """What all rows share and a score depends on. Raises ``ValueError`` where two of them differ."""
    common: dict[str, Any] = {}
    for name, read in (
        ("clock", lambda row: row.clock),
        ("profile", lambda row: row.profile),
        ("mode", lambda row: row.mode),
        ("palaestra", lambda row: row.provenance.get("palaestra")),
    ):
        found = {read(row): row for row in rows}
        if len(found) > 1:
            (one, first), (other, second) = list(found.items())[:2]
            what = "version of palaestra" if name == "palaestra" else name
            raise ValueError(
                f"the episodes differ in their {what}: {one!r} in run {first.run_id} and {other!r} in run "
                f"{second.run_id}, and their scores do not compare; select those that agree, or run the others again"
            )
        common[name] = next(iter(found))
    for name in ("commit", "dirty", "libraries"):  # may differ, but not unseen
        versions = {json.dumps(row.provenance.get(name), sort_keys=True) for row in rows}
        common[name] = [json.loads(version) for version in sorted(versions)]
    common["lanes"] = sorted({row.lanes for row in rows})
    return common


def _require_pairs(users: list[str], items: list[str], scores: Mapping[Any, Any], least: int) -> None:
    few = [(u, i, len(scores.get((u, i), ()))) for u in users for i in items]
    few = [pair for pair in few if pair[2] < least]
    if few:
        user, item, n = few[0]
        raise ValueError(
            f"{len(few)} of {len(users) * len(items)} pairs have fewer than {least} episodes with a score, the first "
            f"with {n}: {user!r} in {item!r}; run more of them (`palaestra run`), or select other episodes"
        )
    if len(users) > len(items):
        raise ValueError(
            f"{len(users)} agents and {len(items)} environments: each agent takes one of its own, so there must be at "
            f"least as many environments; select fewer agents"
        )


# Features ----------------------------------------------------------------------------------------------------------


def features(attributes: Sequence[Mapping[str, Value]]) -> tuple[list[str], np.ndarray]:
    """Numbers [n, d] that stand for named attributes, and the names of the columns.

    First a constant 1. A word is one column for each value that occurs; a number is standardised over those that have
    it, as its logarithm where all are positive and spread over a decade, and 0 for those that lack it, which one more
    column marks; true and false are 1 and 0. A column that the ones before it determine is left out. Then all rows are
    divided by the length of the longest, so that none is longer than 1.

    Raises ``ValueError`` for more than 64 columns.
    """
    names, columns = ["1"], [np.ones(len(attributes))]
    for key in sorted({key for row in attributes for key in row}):
        values = [row.get(key) for row in attributes]
        for name, column in _columns(key, values):
            if np.linalg.matrix_rank(np.stack([*columns, column])) > len(columns):
                names.append(name)
                columns.append(column)
            if len(columns) > MAX_FEATURES:
                raise ValueError(
                    f"the {len(attributes)} names differ in more than {MAX_FEATURES - 1} ways, so their features would "
                    f"be too many; select fewer agents or environments"
                )
    rows = np.stack(columns, axis=1)
    return names, rows / np.linalg.norm(rows, axis=1).max()


def _columns(key: str, values: Sequence[Value | None]) -> list[tuple[str, np.ndarray]]:
    """Candidates for columns of one attribute."""
    given = np.array([value is not None for value in values])
    marked = [(f"{key} given", given.astype(float))]
    if any(isinstance(value, str) for value in values):
        words = ["" if value is None else format_value(value) for value in values]
        return [(f"{key}={word}", np.array([float(w == word) for w in words])) for word in sorted({*words} - {""})]
    numbers = np.array([0.0 if value is None else float(value) for value in values])
    if not np.isfinite(numbers).all():
        words = ["" if value is None else format_value(value) for value in values]
        return _columns(key, [word or None for word in words])
    known = numbers[given]
    if any(isinstance(value, bool) for value in values):
        return [*marked, (key, numbers)]
    name = key
    if known.min() > 0 and known.max() >= _DECADE * known.min():
        known, name = np.log(known), f"log {key}"
    spread = known.std()
    standard = np.zeros(len(values))
    standard[given] = (known - known.mean()) / spread if spread > 1e-9 * np.abs(known).max() else 0.0
    return [*marked, (name, standard)]


def _user_attributes(name: str) -> dict[str, Value]:
    agent, _, backend = name.partition(" --backend ")
    spec = parse_spec(agent)
    return {"agent": spec.name, **spec.options, **({"backend": backend} if backend else {})}


def _item_attributes(name: str) -> dict[str, Value]:
    """World, its options, and each perturbation with its numbers; one that a word tells apart is another one."""
    world, *perturbations = map(parse_spec, split_outside_quotes(name, "+"))
    found: dict[str, Value] = {"world": world.name, **world.options}
    for spec in perturbations:
        words = {key: value for key, value in spec.options.items() if isinstance(value, str)}
        label = f"+{Spec(spec.name, words)}"
        found[label] = True
        found |= {f"{label} {key}": value for key, value in spec.options.items() if key not in words}
    return found


def _described(names: list[str], attributes: Sequence[Mapping[str, Value]]) -> dict[str, Any]:
    feature_names, rows = features(attributes)
    return {"names": names, "features": np.round(rows, _DIGITS).tolist(), "feature_names": feature_names}


# What a table says -------------------------------------------------------------------------------------------------


def pair_means(table: Mapping[str, Any]) -> np.ndarray:
    """The mean score of each pair, [M, N]."""
    return np.array([[np.mean(scores) for scores in row] for row in table["rewards"]])


def bilinear_fit(table: Mapping[str, Any]) -> tuple[np.ndarray, float]:
    """The best bilinear fit x_i^T Theta y_j of the pair means: Theta [d1, d2], and its R².

    Least squares without penalty, over all pairs alike. R² is 1 where the model of the bandits is right, and NaN where
    all pairs have the same mean.
    """
    means = pair_means(table)
    users, items = (np.asarray(table[side]["features"], float) for side in ("users", "items"))
    theta = np.linalg.pinv(users) @ means @ np.linalg.pinv(items).T
    spread = ((means - means.mean()) ** 2).sum()
    left = ((means - users @ theta @ items.T) ** 2).sum()
    return theta, float(1 - left / spread) if spread > 0 else math.nan


# Files -------------------------------------------------------------------------------------------------------------


def write_table(path: str | os.PathLike[str], table: Mapping[str, Any]) -> None:
    """Write a table as JSON: one line a pair, so that two versions can be compared. All of it or nothing."""
    require_table(table, "table")
    where, path = f"rewards={str(path)!r}", Path(path).resolve()  # what a link points to is written, not the link
    try:
        there, fits = path.exists(), path.is_file()
    except OSError as error:
        raise ValueError(f"{where} cannot be written: {error.strerror}") from None
    if not path.parent.is_dir():
        raise ValueError(f"{where}: {str(path.parent)!r} is no folder; make it first")
    if there and not fits:
        raise ValueError(f"{where} is a folder or a device, expected the name of a file to write")
    head = [f' "{key}": {json.dumps(table[key], ensure_ascii=False)},' for key in ("users", "items", "made_by")]
    pairs = [",\n   ".join(map(json.dumps, row)) for row in table["rewards"]]
    text = "\n".join(["{", *head, ' "rewards": [\n  [' + "],\n  [".join(pairs) + "]\n ]", "}", ""])
    try:
        with TemporaryDirectory(prefix=".rewards-", dir=path.parent) as scratch:
            made = Path(scratch) / "rewards.json"
            made.write_text(text, encoding="utf-8")
            os.replace(made, path)
    except OSError as error:
        raise ValueError(f"{where} cannot be written: {error.strerror}") from error


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read a table from a file that anybody may have written.

    Raises ``ValueError`` when it cannot be read, is larger than 16 MiB, or is no table; the sentence says why.
    """
    where = f"rewards={str(path)!r}"
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(
            f"{where} cannot be read: {error.strerror}; `palaestra episodes --rewards` writes one"
        ) from error
    if len(text) > MAX_BYTES:
        raise ValueError(f"{where} is larger than {MAX_BYTES >> 20} MiB, which no table of rewards needs to be")
    try:
        table = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON: {error}; `palaestra episodes --rewards` writes one") from None
    require_table(table, where)
    return table


def shipped_table() -> Table:
    """The table that comes with the package: admittance controllers, wiping and inserting, with noisy sensors."""
    return read_table(str(files("palaestra.assets") / "items" / "dispatcher.json"))


def bind_rewards(given: Value | None, options: Mapping[str, Value]) -> Table | None:
    """What ``palaestra/MatchingBandit-v0`` gets as ``rewards``: the file that is ``given``, else what ships.

    ``None``, which binds nothing, for an instance that has no table and was given none.
    """
    if given is None:
        return shipped_table() if options.get("instance") == "dispatcher" else None
    if not isinstance(given, str):
        raise ValueError(f"rewards={given!r}, expected the path of a table that `palaestra episodes --rewards` wrote")
    return read_table(given)


def require_table(table: Any, where: str) -> None:
    """Raise ``ValueError``, beginning with ``where``, unless ``table`` is one as this module describes."""
    if not isinstance(table, Mapping) or not {"users", "items", "rewards"} <= table.keys():
        raise ValueError(f"{where} is no table of rewards: expected an object with users, items, rewards and made_by")
    size: dict[str, int] = {}
    for side in ("users", "items"):
        part: Mapping[str, Any] = table[side] if isinstance(table[side], Mapping) else {}
        names, rows, columns = (part.get(key, ()) for key in ("names", "features", "feature_names"))
        if not _distinct_texts(names, MAX_NAMES):
            raise ValueError(f"{where}: {side}.names is not a list of 1 to {MAX_NAMES} different names")
        if not _distinct_texts(columns, MAX_FEATURES):
            raise ValueError(f"{where}: {side}.feature_names is not a list of 1 to {MAX_FEATURES} different names")
        if not (_is_list(rows, len(names)) and all(_numbers(row, len(columns)) for row in rows)):
            raise ValueError(f"{where}: {side}.features is not {len(names)} rows of {len(columns)} finite numbers")
        size[side] = len(names)
    if size["users"] > size["items"]:
        raise ValueError(f"{where} has {size['users']} users and {size['items']} items: each user takes one of its own")
    rewards = table["rewards"]
    if not (_is_list(rewards, size["users"]) and all(_is_list(row, size["items"]) for row in rewards)):
        raise ValueError(f"{where}: rewards is not {size['users']} rows of {size['items']} lists")
    for i, row in enumerate(rewards):
        for j, scores in enumerate(row):
            if not _numbers(scores) or not scores:
                raise ValueError(f"{where}: rewards of pair {i}, {j} are not a list of one or more finite numbers")
    if (n := sum(len(scores) for row in rewards for scores in row)) > MAX_SCORES:
        raise ValueError(f"{where} has {n} scores, expected at most {MAX_SCORES}")


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length


def _distinct_texts(value: Any, most: int) -> bool:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= most
        and all(isinstance(text, str) and text for text in value)
        and len(set(value)) == len(value)
    )


def _numbers(value: Any, length: int | None = None) -> bool:
    """Whether it is a list of finite numbers, of this length if one is given."""
    return (
        isinstance(value, list)
        and (length is None or len(value) == length)
        and all(isinstance(number, int | float) and not isinstance(number, bool) for number in value)
        and all(abs(number) <= 1e12 for number in value)
    )


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number that JSON knows")
