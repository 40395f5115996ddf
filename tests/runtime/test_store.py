"""The store keeps what it reported as stored, whoever else writes and whoever dies."""

import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palaestra.runtime import provenance as provenance_module
from palaestra.runtime.provenance import config_hash, from_json, provenance, to_json
from palaestra.runtime.store import EpisodeRow, Store, StoreError

ROW = EpisodeRow(
    run_id="run",
    seed=7,
    env_id="palaestra/BallIntercept-v0+sensor_noise:std=0.02",
    agent="flow:steps=4",
    position=2,
    config_hash="c" * 64,
    backend="adapter=lora:rank=8",
    clock="virtual",
    profile="xvla-4060",
    mode="prefix",
    lanes=4,
    success=True,
    score=0.5,
    episode_return=1.25,
    ticks=41,
    seconds=0.5,
    interface="checked; action 'gripper': inverted",
    metrics={"miss_m": 0.03},
    costs={"ttfa_ms": 12.5, "stalls": 0.0},
    provenance={"commit": "abc", "libraries": {"numpy": "1.26"}},
)


def databases():
    yield "sqlite"
    yield pytest.param("postgresql", marks=pytest.mark.skipif("PALAESTRA_TEST_POSTGRES" not in os.environ, reason=""))


@pytest.fixture(params=[*databases()])
def url(request, tmp_path):
    """A new database: a path, or a schema of its own on the server that PALAESTRA_TEST_POSTGRES names."""
    if request.param == "sqlite":
        yield str(tmp_path / "folder" / "palaestra.db")
        return
    import sqlalchemy as sa

    server = os.environ["PALAESTRA_TEST_POSTGRES"]
    engine = sa.create_engine(server.replace("postgresql://", "postgresql+psycopg://"))
    schema = f"test_{os.getpid()}_{random.randrange(10**9)}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
    yield f"{server}?options=-csearch_path%3D{schema}"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
    engine.dispose()


def test_a_row_comes_back_as_it_was(url):
    with Store(url) as store:
        assert store.add_episode(ROW)
    assert Store(url).episodes() == [ROW]


def test_what_an_environment_reports_is_taken(url):
    store = Store(url)
    reported: dict[str, Any] = {
        "success": np.bool_(True),
        "score": float("nan"),
        "episode_return": np.float32("nan"),
        "ticks": np.int64(3),
        "metrics": {"a": float("nan"), "b": float("inf"), "c": -np.inf, "d": np.float32(0.5)},
        "reason": "broken \0 \ud800 " + "x" * 10_000,
        "created_at": datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5))),
    }
    row = replace(ROW, **reported)
    store.add_episode(row)
    (back,) = store.episodes()
    assert (back.success, back.score, back.ticks) == (True, None, 3)
    assert math.isnan(back.episode_return)
    assert math.isnan(back.metrics["a"])
    assert (back.metrics["b"], back.metrics["c"], back.metrics["d"]) == (np.inf, -np.inf, 0.5)
    assert back.created_at == row.created_at
    assert back.reason is not None
    assert back.reason.startswith("broken \\0 \\ud800 xxx")
    assert len(back.reason) == 4000


def test_a_seed_is_stored_once_per_run(url):
    store = Store(url)
    assert store.add_episode(ROW)
    assert not store.add_episode(replace(ROW, score=0.0))
    assert store.add_episode(replace(ROW, run_id="other"))
    assert store.duplicates == 1
    assert store.add_episodes([replace(ROW, seed=seed) for seed in (7, 8, 9)]) == 2
    assert [row.score for row in store.episodes(run_id="run")] == [0.5, 0.5, 0.5]
    assert store.finished_seeds("run") == {7, 8, 9}
    assert store.finished_seeds("unknown") == set()


def test_questions(url):
    store = Store(url)
    for seed in range(4):
        store.add_episode(replace(ROW, seed=seed, success=seed < 3, score=float(seed), failed=seed == 3))
    store.add_episode(replace(ROW, run_id="later", agent="zero", success=None, score=None, privileged=True))
    assert [row.seed for row in store.episodes(agent="flow:steps=4", limit=2)] == [3, 2]
    assert [row.seed for row in store.episodes(env_id=ROW.env_id, newest_first=False)] == [0, 1, 2, 3, 7]
    assert store.episodes(env_id="unknown") == []

    later, run = store.runs()
    assert (later.run_id, later.episodes, later.success, later.score, later.privileged) == (
        "later",
        1,
        None,
        None,
        True,
    )
    assert (run.episodes, run.successes, run.success, run.score, run.failed) == (4, 3, 0.75, 1.5, 1)
    assert (run.ticks, run.seconds, run.interface) == (4 * 41, 2.0, ROW.interface)
    assert run.began <= run.ended <= datetime.now(timezone.utc)
    assert [summary.run_id for summary in store.runs(limit=1, newest_first=False)] == ["run"]

    assert store.latest_run(ROW.config_hash) == "later"
    store.add_episode(replace(ROW, seed=99))
    assert store.latest_run(ROW.config_hash) == "run"
    assert store.latest_run("d" * 64) is None


def test_measurements_and_artifacts(url):
    store = Store(url)
    store.add_measurement("study.claim", 0.9, 0.8, 0.95, {"n": 50, "values": [1.0, float("nan")]})
    store.add_measurement("study.claim", float("nan"))
    newest, first = store.measurements("study.claim")
    assert (newest.value, newest.low, newest.data) == (None, None, None)
    assert (first.value, first.low, first.high, first.data["n"]) == (0.9, 0.8, 0.95, 50)
    assert math.isnan(first.data["values"][1])
    assert store.measurements("other") == []

    digest = "0123456789abcdef" * 4
    assert store.add_artifact(digest, "checkpoint", {"agent": "flow"})
    assert not store.add_artifact(digest, "checkpoint", {"agent": "impostor"})
    artifact = store.artifact(digest)
    assert artifact is not None
    assert (artifact.kind, artifact.card) == ("checkpoint", {"agent": "flow"})
    assert store.artifact("f" * 64) is None
    with pytest.raises(ValueError, match="64 lower-case hex"):
        store.add_artifact("ABC", "checkpoint", {})


def test_provenance_is_kept_once_for_many_episodes(tmp_path):
    path = tmp_path / "palaestra.db"
    Store(path).add_episodes(replace(ROW, seed=seed) for seed in range(20))
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM artifacts WHERE kind='provenance'").fetchone() == (1,)
        # and whoever reads the file without us gets plain JSON
        (card,) = connection.execute("SELECT card FROM episodes JOIN artifacts ON provenance = sha256").fetchone()
        assert json.loads(card) == ROW.provenance


# Many, and mortal ---------------------------------------------------------------------------------------------------

WRITER = """
import sys
from palaestra.runtime.store import EpisodeRow, Store
url, writer, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store(url)
for seed in range(rows):
    assert store.add_episode(EpisodeRow(run_id=writer, seed=seed, env_id="e", agent="a", provenance={"by": writer}))
    print(seed, flush=True)
"""


def writer(url: str, name: str, rows: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WRITER, url, name, str(rows)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("writers", "rows"), [(4, 50), pytest.param(8, 200, marks=pytest.mark.slow)])
def test_many_writers_lose_nothing(url, writers, rows):
    running = [writer(url, f"w{i}", rows) for i in range(writers)]  # they also race to make the database
    for process in running:
        process.communicate(timeout=120)
        assert process.returncode == 0
    store = Store(url)
    for i in range(writers):
        assert store.finished_seeds(f"w{i}") == set(range(rows))
    assert len(store.episodes()) == writers * rows


@pytest.mark.parametrize("deaths", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_keeps_every_episode_that_was_reported(url, deaths):
    for death in range(deaths):
        process = writer(url, f"w{death}", 10_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        reported = {0, *(int(line) for line in process.stdout.read().splitlines())}
        process.wait()
        stored = Store(url).finished_seeds(f"w{death}")
        # one more may have been stored and its report cut off
        assert reported <= stored <= reported | {max(reported) + 1}
    if "://" not in url:
        with sqlite3.connect(url) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_store_survives_fork(tmp_path):
    store = Store(tmp_path / "palaestra.db")
    store.add_episode(ROW)
    child = os.fork()
    if child == 0:
        store.add_episode(replace(ROW, seed=8))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert store.add_episode(replace(ROW, seed=9))
    assert store.finished_seeds("run") == {7, 8, 9}


# Doors --------------------------------------------------------------------------------------------------------------


def test_where_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PALAESTRA_DB", str(tmp_path / "a.db"))
    assert Store.location() == str(tmp_path / "a.db")
    Store().add_episode(ROW)
    assert (tmp_path / "a.db").exists()
    assert Store(f"sqlite:///{tmp_path / 'a.db'}").episodes() == [ROW]
    monkeypatch.delenv("PALAESTRA_DB")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Store.location() == str(tmp_path / "palaestra" / "palaestra.db")
    assert Store.location("postgresql://user:secret@host/base") == "postgresql+psycopg://user:***@host/base"
    assert Store(":memory:").add_episode(ROW)


def prepare_foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE episodes (id)")


def prepare_newer(path: Path) -> None:
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: path.write_bytes(b"no database at all" * 100), "is not a SQLite file"),
        (lambda path: path.mkdir(), "cannot be opened"),
        (prepare_foreign, "belongs to another program"),
        (prepare_newer, "was made by a newer palaestra.*schema 99"),
    ],
)
def test_a_file_that_is_no_store(tmp_path, prepare, message):
    path = tmp_path / "some.db"
    prepare(path)
    with pytest.raises(StoreError, match=message) as caught:
        Store(path)
    assert str(path) in str(caught.value)


def test_a_damaged_store_is_named(tmp_path):
    path = tmp_path / "some.db"
    with Store(path) as store:
        store.add_episodes(replace(ROW, seed=seed) for seed in range(2000))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with pytest.raises(StoreError, match="damaged"):
        Store(path).episodes()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/base", "mysql is not supported"),
        ("://", "not a database URL"),
        ("/proc/nowhere/palaestra.db", "cannot be opened"),
    ],
)
def test_a_bad_url(url, message):
    with pytest.raises(StoreError, match=message):
        Store(url)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("run_id", "", "run_id is empty"),
        ("seed", -1, "seed=-1, expected 0"),
        ("seed", 2**63, "seed="),
        ("metrics", {"a": "fast"}, "metrics=.*numbers"),
        ("created_at", datetime(2026, 1, 1), "no time zone"),
    ],
)
def test_a_row_that_cannot_be_stored(field, value, message):
    with pytest.raises((ValueError, TypeError), match=message):
        replace(ROW, **{field: value})


def test_what_is_too_large_is_refused_before_it_is_written(tmp_path):
    store = Store(tmp_path / "some.db")
    with pytest.raises(ValueError, match=r"provenance takes .* bytes"):
        store.add_episode(replace(ROW, provenance={"log": "x" * 2_000_000}))
    assert store.episodes() == []


# Provenance ---------------------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(plain)
def test_json_keeps_everything(data):
    text = to_json(data)
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = from_json(text)
    assert to_json(back) == text
    np.testing.assert_equal(back, data)


def test_config_hash():
    config = {"env": "e", "horizon": 8, "path": Path("x"), "std": np.float64(0.5), "pair": (1, 2)}
    digest = config_hash(config)
    assert len(digest) == 64
    assert digest == config_hash({"pair": [1, 2], "std": 0.5, "path": "x", "horizon": np.int32(8), "env": "e"})
    assert digest != config_hash({**config, "horizon": 9})
    assert config_hash({"rows": [asdict(ROW) | {"created_at": ""}]})
    with pytest.raises(TypeError, match=r"data.a\[1\] is a set"):
        config_hash({"a": [1, {2}]})
    with pytest.raises(TypeError, match="key 1"):
        config_hash({"a": {1: 2}})


def test_provenance_says_what_runs():
    record = provenance(["pytest"])
    assert json.loads(json.dumps(record)) == record
    assert record["libraries"]["numpy"] == np.__version__
    assert record["libraries"]["pytest"] == pytest.__version__
    assert record["machine"]["cores"] >= 1
    record["libraries"].clear()
    assert provenance()["libraries"], "a caller must not change what the next one gets"


def test_the_commit_is_that_of_the_checkout_itself(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    commit = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert provenance_module._checkout(tmp_path) == (commit, False)
    (tmp_path / "file").write_text("2")
    assert provenance_module._checkout(tmp_path) == (commit, True)
    (tmp_path / "installed").mkdir()
    assert provenance_module._checkout(tmp_path / "installed") == (None, None)
    monkeypatch.setenv("PATH", "")
    assert provenance_module._checkout(tmp_path) == (None, None)
