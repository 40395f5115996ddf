"""Keeps what happened as a Minari data set.

A data set is Gymnasium's own format: ``MINARI_DATASETS_PATH=DIR python -c "import minari; ..."`` loads what
:class:`Recorder` wrote to DIR. What it writes is put in place by renaming, so whoever looks finds something whole.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image

from .provenance import provenance

_MAIN = "main_data.hdf5"
_METADATA = "metadata.json"
_PIECES = "episodes"
_COMPRESS_FROM_BYTES = 16_384  # below this, compression costs more than it saves


class Step(Protocol):
    """What of a step is recorded; ``agents.agent.Transition`` is one."""

    @property
    def action(self) -> Any: ...  # noqa: D102
    @property
    def reward(self) -> float: ...  # noqa: D102
    @property
    def next_observation(self) -> Any: ...  # noqa: D102
    @property
    def terminated(self) -> bool: ...  # noqa: D102
    @property
    def truncated(self) -> bool: ...  # noqa: D102


@dataclass
class EpisodeRecord:
    """One episode while it happens: T+1 observations, T steps. It copies what it is given.

    ``success`` has T+1 entries, the first for the moment after reset, and is meaningless where the task has none
    (``judged`` is False).
    """

    seed: int | None = None
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminations: list[bool] = field(default_factory=list)
    truncations: list[bool] = field(default_factory=list)
    success: list[bool] = field(default_factory=lambda: [False])
    judged: bool = False

    @classmethod
    def begin(cls, observation: Any, seed: int | None = None) -> EpisodeRecord:
        """A record that starts with the observation after reset."""
        return cls(seed, [_copied(observation)])

    def add(self, step: Step, info: dict[str, Any]) -> None:
        """One step. Of ``info``, only ``success`` (or ``is_success``) is kept."""
        self.observations.append(_copied(step.next_observation))
        self.actions.append(_copied(step.action))
        self.rewards.append(float(step.reward))
        self.terminations.append(bool(step.terminated))
        self.truncations.append(bool(step.truncated))
        success = info.get("success", info.get("is_success"))
        self.judged |= success is not None
        self.success.append(bool(success))

    @property
    def steps(self) -> int:
        """Number of steps so far."""
        return len(self.rewards)


class Recorder:
    """Writes episodes to a Minari data set below ``directory``, each as soon as it is added.

    The data set is named ``ENV/AGENT-vN`` with the next free N (see ``dataset_id``); ``env`` gives the spaces and the
    spec, ``env_id`` and ``agent`` the names. It exists from the first episode on, and is whole at any time: a process
    that dies, kill -9 included, leaves the episodes that were added. With ``run`` (the id of a run), a data set that
    an earlier, interrupted process wrote for the same run is continued; a seed that it has already is left out.

    Images (uint8 [H, W, C], 32 pixels or more) are stored as PNG, without loss. ``close`` gathers the episodes in one
    file; without it, they stay in files of their own, which Minari reads as well.

    Raises ``ValueError`` if Minari is not installed, or the folder cannot be written to.
    """

    def __init__(
        self, directory: str | os.PathLike[str], env: gymnasium.Env, env_id: str, agent: str, run: str | None = None
    ) -> None:
        self._minari = _import_minari()
        self._directory = Path(directory).expanduser()
        self._env, self._env_id, self._agent, self._run = env, env_id, agent, run
        self.seeds: set[int] = set()  # of the episodes that the data set has
        self.dataset_id = self._choose()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"directory={str(directory)!r} cannot be made: {error}") from error
        self._data = self._directory / self.dataset_id / "data"
        self._ours = self._data.exists()
        if self._ours:
            self._continue()

    def add(self, record: EpisodeRecord) -> bool:
        """Write an episode; when this returns, the data set has it. False if the run had its seed already.

        Raises ``ValueError`` for an episode that does not fit the spaces of the environment, or has no steps.
        """
        if record.seed is not None and record.seed in self.seeds:
            return False
        if not record.steps:
            raise ValueError(f"the episode of seed {record.seed} has no steps, expected at least one")
        if not self._ours:
            self._create()
        self._append(record)
        if record.seed is not None:
            self.seeds.add(record.seed)
        return True

    def close(self) -> None:
        """Gather the episodes in one file. A recorder that got no episode leaves nothing behind."""
        pieces = self._data / _PIECES
        if not (self._ours and pieces.exists()):
            return
        h5py = self._minari.h5py
        gathered = self._data / f".{_MAIN}"
        with h5py.File(self._data / _MAIN, "r") as source, h5py.File(gathered, "w", track_order=True) as target:
            for index in range(len(source)):
                source.copy(source[f"episode_{index}"], target, f"episode_{index}", expand_external=True)
        os.replace(gathered, self._data / _MAIN)
        shutil.rmtree(pieces)
        metadata = json.loads((self._data / _METADATA).read_text())
        metadata["dataset_size"] = round((self._data / _MAIN).stat().st_size / 1e6, 1)  # in MB
        _replace_text(self._data / _METADATA, json.dumps(metadata))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # An episode becomes a file, then a link to it in a copy of the main file, then that copy replaces the main file,
    # then the count in the metadata grows. A reader that comes between finds what the count says.

    def _append(self, record: EpisodeRecord) -> None:
        h5py = self._minari.h5py
        metadata = json.loads((self._data / _METADATA).read_text())
        index = metadata["total_episodes"]
        piece = self._data / _PIECES / f"{index}.hdf5"
        piece.parent.mkdir(exist_ok=True)
        with h5py.File(piece, "w", track_order=True) as file:
            self._write(file.create_group(f"episode_{index}"), index, record)
        changed = self._data / f".{_MAIN}"
        shutil.copyfile(self._data / _MAIN, changed)
        with h5py.File(changed, "a", track_order=True) as file:
            file.pop(f"episode_{index}", None)  # left by a process that died before it could count it
            file[f"episode_{index}"] = h5py.ExternalLink(f"{_PIECES}/{index}.hdf5", f"episode_{index}")
        os.replace(changed, self._data / _MAIN)
        metadata["total_episodes"] = index + 1
        metadata["total_steps"] += record.steps
        _replace_text(self._data / _METADATA, json.dumps(metadata))

    def _write(self, group: Any, index: int, record: EpisodeRecord) -> None:
        group.attrs["id"] = index
        group.attrs["total_steps"] = record.steps
        if record.seed is not None:
            group.attrs["seed"] = record.seed
        self._write_space(group, "observations", self._env.observation_space, record.observations)
        self._write_space(group, "actions", self._env.action_space, record.actions)
        self._write_array(group, "rewards", np.asarray(record.rewards, np.float64))
        self._write_array(group, "terminations", np.asarray(record.terminations))
        self._write_array(group, "truncations", np.asarray(record.truncations))
        if record.judged:
            group.attrs["success"] = any(record.success)
            self._write_array(group.create_group("infos"), "success", np.asarray(record.success))

    def _write_space(self, group: Any, name: str, space: spaces.Space, values: Sequence[Any]) -> None:
        """One member of the space per step, laid out as Minari reads it back."""
        h5py = self._minari.h5py
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            inner = group.create_group(name)
            named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
            for key, part in named:
                try:
                    column = [value[key] for value in values]
                except (KeyError, IndexError, TypeError) as error:
                    raise ValueError(f"{name}: {key!r} is in the space {space} but not in every value") from error
                self._write_space(inner, key if isinstance(key, str) else f"_index_{key}", part, column)
        elif isinstance(space, spaces.Text):
            group.create_dataset(name, data=list(values), dtype=h5py.string_dtype("utf-8"), maxshape=(None,))
        elif self._minari.is_image_space(space):
            column = group.create_dataset(name, (len(values),), h5py.vlen_dtype(np.uint8), maxshape=(None,))
            for step, value in enumerate(values):
                column[step] = _png(value)
        else:
            try:
                array = np.stack([np.asarray(value, space.dtype) for value in values])
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}: the values do not fit the space {space}: {error}") from error
            if space.shape is not None and array.shape[1:] != space.shape:
                raise ValueError(f"{name}: a value has shape {array.shape[1:]}, the space is {space}")
            self._write_array(group, name, array)

    def _write_array(self, group: Any, name: str, array: np.ndarray) -> None:
        packed = {"compression": "gzip", "compression_opts": 1} if array.nbytes >= _COMPRESS_FROM_BYTES else {}
        group.create_dataset(name, data=array, chunks=True, maxshape=(None, *array.shape[1:]), **packed)

    def _choose(self) -> str:
        """The data set of this run if it has one, else the next free version."""
        name = f"{_slug(self._env_id, '/')}/{_slug(self._agent)}"
        folder = (self._directory / name).parent
        taken: list[int] = []
        for found in folder.glob(f"{Path(name).name}-v*"):
            version = found.name.rpartition("-v")[2]
            if version.isdecimal():
                if self._run is not None and self._run == _run_of(found / "data"):
                    return f"{name}-v{version}"
                taken.append(int(version))
        return f"{name}-v{max(taken, default=-1) + 1}"

    def _create(self) -> None:
        """Make the empty data set beside its place, then move it there."""
        self._data.parent.parent.mkdir(parents=True, exist_ok=True)
        new = self._data.parent.with_name(f".{self._data.parent.name}.{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        data = new / "data"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a spec cannot be written as JSON is no news to whoever has one
            spec = self._env.unwrapped.spec
            self._minari.storage.new(data, self._env.observation_space, self._env.action_space, spec)
        origin = provenance()
        metadata = {
            **json.loads((data / _METADATA).read_text()),
            "dataset_id": self.dataset_id,
            "dataset_size": 0.0,
            "minari_version": self._minari.version,
            "algorithm_name": self._agent,
            "description": f"Episodes of {self._agent} in {self._env_id}, recorded by palaestra.",
            "requirements": [f"palaestra=={origin['palaestra']}"],
            "palaestra": {"env": self._env_id, "agent": self._agent, "run": self._run, "provenance": origin},
        }
        (data / _METADATA).write_text(json.dumps(metadata))
        with self._minari.h5py.File(data / _MAIN, "w", track_order=True):
            pass  # Minari leaves an empty file, which is no HDF5 file yet
        try:
            os.rename(new, self._data.parent)
            self._ours = True
        except OSError:  # another recorder was faster; take the next version
            shutil.rmtree(new)
            self.dataset_id = self._choose()
            self._data = self._directory / self.dataset_id / "data"
            self._create()

    def _continue(self) -> None:
        """Pick up a data set of the same run where another process left it."""
        h5py = self._minari.h5py
        metadata = json.loads((self._data / _METADATA).read_text())
        pieces = self._data / _PIECES
        with h5py.File(self._data / _MAIN, "r") as file:
            groups = [file[f"episode_{index}"] for index in range(metadata["total_episodes"])]
            self.seeds = {int(group.attrs["seed"]) for group in groups if "seed" in group.attrs}
        if groups and not pieces.exists():  # gathered: what was one file becomes the first of the pieces
            pieces.mkdir()
            base = pieces / "base.hdf5"
            shutil.copyfile(self._data / _MAIN, base)
            changed = self._data / f".{_MAIN}"
            with h5py.File(changed, "w", track_order=True) as file:
                for index in range(len(groups)):
                    file[f"episode_{index}"] = h5py.ExternalLink(f"{_PIECES}/{base.name}", f"episode_{index}")
            os.replace(changed, self._data / _MAIN)


@dataclass(frozen=True)
class _Minari:
    """What is used of the optional libraries."""

    h5py: Any
    storage: Any
    is_image_space: Any
    version: str


def _import_minari() -> _Minari:
    try:
        import h5py
        import minari
        from minari.dataset.minari_storage import MinariStorage, is_image_space
    except ImportError as error:
        raise ValueError(
            f"recording a data set needs {error.name or 'minari'}, which is not installed; pip install "
            f"'palaestra[record]'"
        ) from error
    return _Minari(h5py, MinariStorage, is_image_space, minari.__version__)


def _run_of(data: Path) -> str | None:
    try:
        return json.loads((data / _METADATA).read_text())["palaestra"]["run"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _slug(text: str, keep: str = "") -> str:
    """A name that Minari takes: letters, digits, ``-`` and ``_``."""
    return re.sub(rf"[^\w{keep}]+", "-", text, flags=re.ASCII).strip("-/") or "unnamed"


def _replace_text(path: Path, text: str) -> None:
    changed = path.with_name(f".{path.name}")
    changed.write_text(text)
    os.replace(changed, path)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_copied(part) for part in value)
    return value.copy() if isinstance(value, np.ndarray) else value


def _png(image: np.ndarray) -> np.ndarray:
    buffer = io.BytesIO()
    squeezed = image[..., 0] if image.shape[-1:] == (1,) else image
    try:
        Image.fromarray(squeezed).save(buffer, format="PNG", compress_level=1)
    except TypeError as error:
        raise ValueError(f"observation of shape {image.shape}: as an image it needs 1, 3 or 4 channels") from error
    return np.frombuffer(buffer.getvalue(), np.uint8)
