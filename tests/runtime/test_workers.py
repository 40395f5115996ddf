"""Workers lose nothing when one of them is killed, and do not outlive their parent."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from palaestra.runtime.workers import WorkerDied, Workers


def square(group):
    return [n * n for n in group]


def make_square():
    return square


def die_once(folder, group):
    """Kills its process the first time it meets group 3, and every time it meets group 5."""
    mark = Path(folder) / "died"
    if group == [5] or (group == [3] and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(group)


def make_die_once(folder):
    return partial(die_once, folder)


def make_impossible():
    raise ValueError("no such environment")


def test_every_group_comes_back_with_its_result():
    pool = Workers(2, make_square)
    try:
        assert sorted(pool.results([[n] for n in range(6)])) == [([n], [n * n]) for n in range(6)]
    finally:
        pool.close()


def test_a_killed_worker_loses_nothing_and_a_deadly_group_is_reported(tmp_path):
    pool = Workers(2, partial(make_die_once, str(tmp_path)))
    try:
        results = {group[0]: result for group, result in pool.results([[n] for n in range(7)])}
    finally:
        pool.close()
    assert isinstance(results.pop(5), WorkerDied)
    assert results == {n: [n * n] for n in (0, 1, 2, 3, 4, 6)}


def test_what_cannot_be_made_is_raised_to_the_caller():
    pool = Workers(2, make_impossible)
    try:
        with pytest.raises(ValueError, match="no such environment"):
            list(pool.results([[1], [2]]))
    finally:
        pool.close()


def make_sleeper():
    return sleep


def sleep(group):
    print(os.getpid(), file=sys.stderr, flush=True)
    time.sleep(60)


PARENT = """
import sys; sys.path.insert(0, {root!r})
from palaestra.runtime.workers import Workers
from tests.runtime.test_workers import make_sleeper
if __name__ == "__main__":
    list(Workers(2, make_sleeper).results([[1], [2]]))
"""


def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(root=str(Path(__file__).parents[2])))
    parent = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    assert parent.stderr is not None
    workers = [int(parent.stderr.readline()) for _ in range(2)]
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(_alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_alive(pid) for pid in workers)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc").exists() else True
