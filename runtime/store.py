"""What was measured, kept: one database with the tables ``episodes``, ``measurements`` and ``artifacts``.

SQLite in the user's data folder by default, PostgreSQL by URL; many processes may write at once. What is promised:

- an episode that :meth:`Store.add_episode` reported as stored survives the death of any process, kill -9 included;
- a power cut may take the last commits of a SQLite file, never older ones, and the file opens (write-ahead log,
  ``synchronous=NORMAL``); PostgreSQL keeps what its own settings promise;
- a seed is stored once per run, whoever tries again.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import platformdirs
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from .provenance import from_json, to_json

SCHEMA = 1
"""Version of the tables below; a database of another version is refused with a sentence."""

ENVIRONMENT_VARIABLE = "PALAESTRA_DB"

_APPLICATION_ID = 0x504C5354  # "PLST" in the header of a SQLite file: this file is ours
_LOCK = 0x504C5354  # and the key of PostgreSQL's advisory lock while the tables are made
_BUSY_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_MAX_TEXT = 4_000
_MAX_JSON = 1_000_000
_MAX_INTEGER = 2**63 - 1

T = TypeVar("T")


class StoreError(ValueError):
    """The database cannot be opened, is not one of ours, or refused to work; the message says which and what to do."""


@dataclass(frozen=True)
class EpisodeRow:
    """One finished episode.

    ``position`` is its index within the run ``run_id``, ``seed`` its own; together with ``config_hash`` (of the
    run's configuration) they find an interrupted run. ``env_id``, ``agent`` and ``backend`` are names with their
    options, as the command line reads them. ``clock``, latency ``profile``, execution ``mode`` and ``lanes`` say how
    it was run; a ``privileged`` agent read the simulator's state. ``interface`` is ``Conversion.summary``.

    ``success`` and ``score`` are ``None`` where the task has none; a NaN ``score`` is stored as ``None``.
    ``episode_return`` is the sum of rewards over ``ticks``; ``seconds`` is wall time. A ``failed`` episode has a
    ``reason`` (cut after 4000 characters). ``metrics`` come from the environment; ``costs`` are what it took
    (``ttfa_ms``, ``evaluations``, ``stalls``). ``created_at`` is UTC.

    Raises ``ValueError`` or ``TypeError`` naming the field that cannot be stored.
    """

    run_id: str
    seed: int
    env_id: str
    agent: str
    position: int = 0
    config_hash: str = ""
    backend: str = ""
    clock: str = "lockstep"
    profile: str | None = None
    mode: str = "sync"
    lanes: int = 1
    privileged: bool = False
    success: bool | None = None
    score: float | None = None
    episode_return: float = 0.0
    ticks: int = 0
    seconds: float = 0.0
    failed: bool = False
    reason: str | None = None
    interface: str = "unchecked"
    metrics: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def __post_init__(self) -> None:
        # Environments report numpy scalars; a database takes Python's own.
        for name, kind in (("seed", int), ("position", int), ("lanes", int), ("ticks", int), ("seconds", float)):
            object.__setattr__(self, name, kind(getattr(self, name)))
        for name in ("episode_return", "score"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))
        for name in ("failed", "privileged", "success"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else bool(value))
        if self.score != self.score:
            object.__setattr__(self, "score", None)
        if not self.run_id:
            raise ValueError("run_id is empty, expected the name of the run that the episode belongs to")
        for name in ("seed", "position", "ticks"):
            value = getattr(self, name)
            if not 0 <= value <= _MAX_INTEGER:
                raise ValueError(f"{name}={value}, expected 0 to 2^63-1, which is what a database holds")
        if self.created_at.tzinfo is None:
            raise ValueError(f"created_at={self.created_at} has no time zone, expected UTC")
        for name in ("metrics", "costs"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))


@dataclass(frozen=True)
class RunSummary:
    """The stored episodes of one run in numbers.

    ``success`` is the share of successes among all its ``episodes``, ``None`` where the task knows none; ``score``
    is the mean over the episodes that have one. ``seconds`` and ``ticks`` are sums; ``began`` and ``ended`` are when
    the first and the last of them were finished.
    """

    run_id: str
    config_hash: str
    env_id: str
    agent: str
    backend: str
    clock: str
    profile: str | None
    mode: str
    lanes: int
    privileged: bool
    interface: str
    episodes: int
    successes: int
    success: float | None
    score: float | None
    failed: int
    ticks: int
    seconds: float
    began: datetime
    ended: datetime


@dataclass(frozen=True)
class Measurement:
    """A number with its interval: a claim of a study, a finding, a cost. ``data`` is whatever belongs to it."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    data: Any
    created_at: datetime


@dataclass(frozen=True)
class Artifact:
    """What a SHA-256 stands for: a checkpoint, a track, the provenance of episodes. ``card`` describes it."""

    sha256: str
    kind: str
    card: Any
    created_at: datetime


class _Utc(sa.TypeDecorator[datetime]):
    """A time in UTC; SQLite forgets the zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value and value.astimezone(timezone.utc)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


_key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite counts up in INTEGER keys only
_metadata = sa.MetaData()

_artifacts = sa.Table(
    "artifacts",
    _metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("card", sa.JSON, nullable=False),
    sa.Column("created_at", _Utc, nullable=False),
)
_measurements = sa.Table(
    "measurements",
    _metadata,
    sa.Column("id", _key, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Double),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("data", sa.JSON),
    sa.Column("created_at", _Utc, nullable=False),
    sa.Index("measurements_by_name", "name", "id"),
)
_episodes = sa.Table(
    "episodes",
    _metadata,
    sa.Column("id", _key, primary_key=True),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("config_hash", sa.Text, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("env_id", sa.Text, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("backend", sa.Text, nullable=False),
    sa.Column("clock", sa.Text, nullable=False),
    sa.Column("profile", sa.Text),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("lanes", sa.Integer, nullable=False),
    sa.Column("privileged", sa.Boolean, nullable=False),
    sa.Column("interface", sa.Text, nullable=False),
    sa.Column("success", sa.Boolean),
    sa.Column("score", sa.Double),
    sa.Column("episode_return", sa.Double),  # NULL for NaN, which SQLite does not know
    sa.Column("ticks", sa.BigInteger, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("costs", sa.JSON, nullable=False),
    # Hundreds of episodes share one provenance, so it stands once among the artifacts.
    sa.Column("provenance", sa.String(64), sa.ForeignKey(_artifacts.c.sha256), nullable=False),
    sa.Column("created_at", _Utc, nullable=False),
    sa.UniqueConstraint("run_id", "seed", name="episodes_once_per_run"),
    sa.Index("episodes_by_config", "config_hash", "id"),
    sa.Index("episodes_by_arm", "env_id", "agent", "id"),
)


class Store:
    """The database. Cheap to open; safe to share between threads, and to use in a process forked from this one.

    ``url`` is any SQLAlchemy URL of SQLite or PostgreSQL, or the path of a SQLite file; ``None`` takes the
    environment variable ``PALAESTRA_DB``, else ``palaestra.db`` in the user's data folder. A new database is made,
    with its folder. ``duplicates`` counts the episodes that were offered again and not stored twice.

    Raises :class:`StoreError` when the database cannot be opened, belongs to something else, or is of another
    version.
    """

    def __init__(self, url: str | os.PathLike[str] | None = None) -> None:
        self.url = _resolve(url)
        self.duplicates = 0
        self._known: set[str] = set()
        self._pid = os.getpid()
        self._engine = _engine(self.url)
        dialect = sqlite if self._engine.dialect.name == "sqlite" else postgresql
        self._insert = {  # a row comes back for what was not there yet
            table: dialect.insert(table).on_conflict_do_nothing().returning(*table.primary_key)
            for table in (_artifacts, _episodes)
        }
        with self._explained():
            self._retried(self._prepare)

    @staticmethod
    def location(url: str | os.PathLike[str] | None = None) -> str:
        """Where ``Store(url)`` keeps its data, for a person to read: a path, or a URL without its password."""
        return _shown(_resolve(url))

    def close(self) -> None:
        """Give the connections back. Nothing is lost without it; a closed store opens itself again."""
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- episodes ---

    def add_episode(self, row: EpisodeRow) -> bool:
        """Store an episode; when this returns, it is stored. False if its run has this seed already.

        A second attempt changes nothing and is counted in ``duplicates``, so that a retry after a lost
        connection, and two processes that resume one run, are harmless.
        """
        return self.add_episodes([row]) == 1

    def add_episodes(self, rows: Iterable[EpisodeRow]) -> int:
        """Store several episodes, all or none (one commit); returns how many were not there before."""
        rows = list(rows)
        records = [_record(row) for row in rows]
        cards = {record["provenance"]: row.provenance for record, row in zip(records, rows, strict=True)}

        def write(connection: sa.Connection) -> int:
            for digest in cards.keys() - self._known:
                connection.execute(self._insert[_artifacts], _artifact(digest, "provenance", cards[digest]))
            insert = self._insert[_episodes]
            return sum(connection.execute(insert, record).first() is not None for record in records)

        stored = self._write(write)
        self._known |= cards.keys()
        self.duplicates += len(records) - stored
        return stored

    def episodes(
        self,
        env_id: str | None = None,
        agent: str | None = None,
        run_id: str | None = None,
        newest_first: bool = True,
        limit: int | None = None,
    ) -> list[EpisodeRow]:
        """Stored episodes that match, in the order in which they were stored, the newest first unless told."""
        query: sa.Select[Any] = sa.select(_episodes, _artifacts.c.card.label("card")).join(_artifacts)
        query = _where(query, env_id=env_id, agent=agent, run_id=run_id)
        query = query.order_by(_episodes.c.id.desc() if newest_first else _episodes.c.id).limit(_limit(limit))
        return [_episode(row) for row in self._read(query)]

    def runs(
        self,
        env_id: str | None = None,
        agent: str | None = None,
        run_id: str | None = None,
        newest_first: bool = True,
        limit: int | None = None,
    ) -> list[RunSummary]:
        """A summary of each stored run that matches, the one that was last written to first unless told."""
        c = _episodes.c
        shared = (
            c.run_id,
            c.config_hash,
            c.env_id,
            c.agent,
            c.backend,
            c.clock,
            c.profile,
            c.mode,
            c.lanes,
            c.privileged,
        )
        last = sa.func.max(c.id)
        query: sa.Select[Any] = sa.select(
            *shared,
            sa.func.min(c.interface).label("interface"),
            sa.func.count().label("episodes"),
            sa.func.coalesce(sa.func.sum(sa.case((c.success.is_(True), 1), else_=0)), 0).label("successes"),
            sa.func.count(c.success).label("judged"),
            sa.func.avg(c.score).label("score"),
            sa.func.sum(sa.case((c.failed.is_(True), 1), else_=0)).label("failed"),
            sa.func.sum(c.ticks).label("ticks"),
            sa.func.sum(c.seconds).label("seconds"),
            sa.type_coerce(sa.func.min(c.created_at), _Utc).label("began"),
            sa.type_coerce(sa.func.max(c.created_at), _Utc).label("ended"),
        ).group_by(*shared)
        query = _where(query, env_id=env_id, agent=agent, run_id=run_id)
        query = query.order_by(last.desc() if newest_first else last).limit(_limit(limit))
        return [_summary(row) for row in self._read(query)]

    def finished_seeds(self, run_id: str) -> set[int]:
        """Seeds of a run that are stored, those of failed episodes among them."""
        return {row.seed for row in self._read(sa.select(_episodes.c.seed).where(_episodes.c.run_id == run_id))}

    def latest_run(self, config_hash: str) -> str | None:
        """The run of this configuration that was last written to, to be resumed; ``None`` if there is none."""
        query = sa.select(_episodes.c.run_id).where(_episodes.c.config_hash == config_hash)
        rows = self._read(query.order_by(_episodes.c.id.desc()).limit(1))
        return rows[0].run_id if rows else None

    # --- measurements and artifacts ---

    def add_measurement(
        self,
        name: str,
        value: float | None,
        low: float | None = None,
        high: float | None = None,
        data: Any = None,
    ) -> None:
        """Store a measured number with its interval; NaN is stored as ``None``. ``data`` is plain JSON data."""
        _bounded(to_json(data), "data")
        record = {
            "name": _text(name),
            **{key: _real(number) for key, number in (("value", value), ("low", low), ("high", high))},
            "data": data,
            "created_at": datetime.now(timezone.utc),
        }
        self._write(lambda connection: connection.execute(sa.insert(_measurements), record))

    def measurements(
        self, name: str | None = None, newest_first: bool = True, limit: int | None = None
    ) -> list[Measurement]:
        """Stored measurements, all or those of one name."""
        c = _measurements.c
        query = sa.select(_measurements).order_by(c.id.desc() if newest_first else c.id).limit(_limit(limit))
        rows = self._read(query if name is None else query.where(c.name == name))
        return [Measurement(r.name, r.value, r.low, r.high, r.data, r.created_at) for r in rows]

    def add_artifact(self, sha256: str, kind: str, card: Mapping[str, Any]) -> bool:
        """Remember what a hash stands for; false, and no change, if it is known already.

        Raises ``ValueError`` if ``sha256`` is not 64 lower-case hex digits.
        """
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(f"sha256={sha256!r}, expected 64 lower-case hex digits")
        _bounded(to_json(card), "card")
        record = _artifact(sha256, kind, card)
        insert = self._insert[_artifacts]
        return self._write(lambda connection: connection.execute(insert, record).first()) is not None

    def artifact(self, sha256: str) -> Artifact | None:
        """What a hash stands for, ``None`` if it is not known."""
        rows = self._read(sa.select(_artifacts).where(_artifacts.c.sha256 == sha256))
        return Artifact(**rows[0]._mapping) if rows else None

    # --- how it works ---

    def _read(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        def read() -> Sequence[sa.Row[Any]]:
            with self._engine.connect() as connection:
                return connection.execute(query).all()

        with self._explained():
            return self._retried(read)

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        def write() -> T:
            with self._engine.connect().execution_options(palaestra_writes=True) as connection, connection.begin():
                return work(connection)

        with self._explained():
            return self._retried(write)

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Once more when another process was faster or the connection was lost; every write may be repeated."""
        if os.getpid() != self._pid:  # forked: a connection of the parent must not be used here, nor closed
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        for tried in range(1, _ATTEMPTS + 1):
            try:
                return attempt()
            except sa.exc.DBAPIError as error:
                busy = "locked" in str(error.orig) or "busy" in str(error.orig)
                if tried == _ATTEMPTS or not (busy or error.connection_invalidated):
                    raise
            # Not the seeded kind of chance: two writers that wait must not wake together.
            time.sleep(random.SystemRandom().uniform(0.01, 0.1) * 2**tried)
        raise AssertionError("unreachable")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what a driver says into a sentence."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            said = " ".join(str(error.orig).split())
            raise StoreError(f"the database {_shown(self.url)} {_advice(said)}") from error
        except OSError as error:
            raise StoreError(f"the database {_shown(self.url)} cannot be opened: {error}") from error

    def _prepare(self) -> None:
        """Make the tables of a new database, or see that an old one is ours."""
        if self._engine.dialect.name == "sqlite":
            self._prepare_sqlite()
        else:
            self._prepare_postgresql()

    def _prepare_sqlite(self) -> None:
        path = self.url.database
        if path and path != ":memory:":
            Path(path).parent.mkdir(parents=True, exist_ok=True)

        def header(connection: sa.Connection) -> tuple[int, int]:
            return (
                connection.exec_driver_sql("PRAGMA application_id").scalar_one(),
                connection.exec_driver_sql("PRAGMA user_version").scalar_one(),
            )

        with self._engine.connect() as connection:
            application, version = header(connection)
        if application == 0:
            with self._engine.connect() as connection:
                # Outside of any transaction, and kept by the file from then on.
                raw = connection.connection.dbapi_connection
                assert raw is not None
                raw.execute("PRAGMA journal_mode=WAL")
            with self._engine.connect().execution_options(palaestra_writes=True) as connection, connection.begin():
                application, version = header(connection)  # now that nobody else can write
                if application == 0 and not sa.inspect(connection).get_table_names():
                    _metadata.create_all(connection)
                    connection.exec_driver_sql(f"PRAGMA application_id={_APPLICATION_ID}")
                    connection.exec_driver_sql(f"PRAGMA user_version={SCHEMA}")
                    return
        if application != _APPLICATION_ID:
            raise StoreError(
                f"the database {_shown(self.url)} belongs to another program; name another file in "
                f"{ENVIRONMENT_VARIABLE}"
            )
        self._check_version(version)

    def _prepare_postgresql(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            inspector = sa.inspect(connection)
            present = set(inspector.get_table_names()) & set(_metadata.tables)
            if not present:
                _metadata.create_all(connection)
                connection.exec_driver_sql(f"COMMENT ON TABLE episodes IS 'palaestra schema {SCHEMA}'")
                return
            comment = inspector.get_table_comment("episodes")["text"] if "episodes" in present else None
        name, _, version = (comment or "").rpartition(" ")
        if name != "palaestra schema" or not version.isdecimal():
            raise StoreError(
                f"the database {_shown(self.url)} has tables {', '.join(sorted(present))} of another program; name "
                f"another database in {ENVIRONMENT_VARIABLE}"
            )
        self._check_version(int(version))

    def _check_version(self, version: int) -> None:
        if version != SCHEMA:
            age = "a newer" if version > SCHEMA else "an older"
            advice = "update palaestra" if version > SCHEMA else "name another database, or read it with that version"
            raise StoreError(
                f"the database {_shown(self.url)} was made by {age} palaestra (schema {version}, this one has "
                f"{SCHEMA}); {advice}"
            )


# Where -------------------------------------------------------------------------------------------------------------


def _resolve(url: str | os.PathLike[str] | None) -> sa.URL:
    """A SQLAlchemy URL from a URL, a path, the environment variable or nothing."""
    text = os.fspath(url) if url is not None else os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not text:
        text = os.path.join(platformdirs.user_data_dir("palaestra"), "palaestra.db")
    if "://" not in text:
        path = text if text == ":memory:" else str(Path(text).expanduser().resolve())
        return sa.URL.create("sqlite", database=path)
    try:
        resolved = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise StoreError(f"{ENVIRONMENT_VARIABLE} or url is not a database URL: {error}") from error
    backend, _, driver = resolved.drivername.partition("+")
    if backend in ("postgres", "postgresql"):
        return resolved.set(drivername=f"postgresql+{driver or 'psycopg'}")
    if backend != "sqlite":
        raise StoreError(f"database {_shown(resolved)}: {backend} is not supported; use sqlite:/// or postgresql://")
    return resolved


def _shown(url: sa.URL) -> str:
    return (url.database or ":memory:") if url.drivername == "sqlite" else url.render_as_string(hide_password=True)


def _engine(url: sa.URL) -> sa.Engine:
    arguments: dict[str, Any] = {"json_serializer": to_json, "json_deserializer": from_json}
    if url.drivername.startswith("sqlite"):
        arguments["connect_args"] = {"timeout": _BUSY_TIMEOUT_S}
    else:
        arguments["pool_pre_ping"] = True
    try:
        engine = sa.create_engine(url, **arguments)
    except ModuleNotFoundError as error:
        raise StoreError(
            f"database {_shown(url)} needs the driver {error.name!r}; pip install 'palaestra[postgres]'"
        ) from error
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _configure_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # or Python begins transactions by itself, and never the writing kind
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that will write takes its turn at once; one that finds out later cannot wait and fails.
    writes = connection.get_execution_options().get("palaestra_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _advice(said: str) -> str:
    """The rest of a sentence that begins with the database, for what its driver said."""
    if "not a database" in said:
        return f"is not a SQLite file; name another in {ENVIRONMENT_VARIABLE}, or move it away"
    if "malformed" in said or "disk image" in said:
        return f"is damaged ({said}); `sqlite3 FILE .recover` may save most of it"
    if "unable to open" in said:
        return f"cannot be opened ({said}); see that it is a file in a folder that may be written to"
    if "readonly" in said or "read-only" in said:
        return f"may not be written to ({said})"
    if "locked" in said or "busy" in said:
        return f"was locked by another program for {_BUSY_TIMEOUT_S * _ATTEMPTS:.0f} s ({said})"
    if "connection" in said:
        return f"cannot be reached: {said}"
    if "no such table" in said or "no such column" in said or "does not exist" in said:
        return f"is not as palaestra left it ({said})"
    return f"did not do its work: {said}"


# Rows --------------------------------------------------------------------------------------------------------------


def _record(row: EpisodeRow) -> dict[str, Any]:
    """A row as the table has it; its provenance by hash."""
    record = {f.name: getattr(row, f.name) for f in fields(row)}
    for name, value in record.items():
        if isinstance(value, str):
            record[name] = _text(value)
    record["episode_return"] = _real(row.episode_return)
    for name in ("metrics", "costs"):
        _bounded(to_json(record[name]), name)
    text = _bounded(to_json(row.provenance), "provenance")
    record["provenance"] = sha256(text.encode()).hexdigest()
    return record


def _episode(row: sa.Row[Any]) -> EpisodeRow:
    values = {f.name: getattr(row, f.name) for f in fields(EpisodeRow)}
    if row.episode_return is None:
        values["episode_return"] = float("nan")
    return EpisodeRow(**{**values, "provenance": row.card})


def _summary(row: sa.Row[Any]) -> RunSummary:
    values = dict(row._mapping)
    judged = values.pop("judged")
    for name in ("episodes", "successes", "failed", "ticks"):
        values[name] = int(values[name])  # PostgreSQL sums integers to decimals
    return RunSummary(**values, success=values["successes"] / values["episodes"] if judged else None)


def _artifact(digest: str, kind: str, card: Mapping[str, Any]) -> dict[str, Any]:
    return {"sha256": digest, "kind": _text(kind), "card": card, "created_at": datetime.now(timezone.utc)}


def _where(query: sa.Select[Any], **wanted: str | None) -> sa.Select[Any]:
    return query.where(*(_episodes.c[name] == value for name, value in wanted.items() if value is not None))


def _limit(limit: int | None) -> int | None:
    if limit is not None and limit < 0:
        raise ValueError(f"limit={limit}, expected the number of rows to return, or None for all")
    return limit


def _numbers(name: str, values: Mapping[str, Any]) -> dict[str, float]:
    try:
        return {str(key): float(value) for key, value in values.items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise TypeError(f"{name}={values!r}, expected a mapping from names to numbers") from error


def _real(value: float | None) -> float | None:
    return None if value is None or value != value else float(value)


def _text(value: str) -> str:
    """Text that every database takes: bounded, without NUL and lone surrogates."""
    value = value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…"


def _bounded(text: str, name: str) -> str:
    if len(text) > _MAX_JSON:
        raise ValueError(
            f"{name} takes {len(text)} bytes as JSON, expected at most {_MAX_JSON}; keep large data in files"
        )
    return text
