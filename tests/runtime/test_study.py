"""Studies: the verdict follows from the claims, results are kept whole, and the command says what went wrong."""

import itertools
import json
import math
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from palaestra.runtime import study as house
from palaestra.runtime.cli.main import main
from palaestra.runtime.cli.study import data_folder
from palaestra.runtime.statistics import Estimate
from palaestra.runtime.store import Store
from palaestra.runtime.studies import serving
from palaestra.runtime.study import Claim, Lab, Study, Table, find, newest, perform, studies

TINY = '''"""One is one.

Source: everybody.
"""
import os

from palaestra.runtime.statistics import Estimate
from palaestra.runtime.study import Claim, Study, Table

SYSTEM = "arithmetic"
CLAIM = "One is one | always."


def run(scale, lab):
    os.write(1, b"a library that prints")
    lab.tell("counting", 0, 1)
    if (lab.folder / "break").exists():
        raise ValueError("the pencil broke")

    def picture(figure):
        if (lab.folder / "smear").exists():
            raise RuntimeError("the ink ran")
        figure.subplots().plot([0, 1], [0, 1])

    claims = (
        Claim.judge("one is at least one", Estimate(1.0, 1.0, 1.0, 3), at_least=1.0, paper="1"),
        Claim("one is two", 2, 1.0, holds=False),
        Claim("one is a unicorn", None, None, reason="no unicorn was found"),
    )
    rows = ((1, Estimate(1.0, 0.5, float("nan"), 3), None), ("two", 2.0, float("inf")))
    return Study("tiny", scale, claims, (Table("ones", ("a", "b", "c"), rows),), {"line": picture})
'''


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A study that another package brings."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tiny_study.py").write_text(TINY)
    (tmp_path / "code" / "broken_study.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path / "code")
    points = [EntryPoint(name, f"{name}_study", "palaestra.studies") for name in ("tiny", "broken")]
    monkeypatch.setattr(house, "entry_points", lambda group: points if group == "palaestra.studies" else [])
    yield tmp_path
    sys.modules.pop("tiny_study", None)


@pytest.fixture
def palaestra(monkeypatch, capfd):
    """Run the command; returns exit code, stdout and stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["palaestra", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return stop.value.code or 0, out, err

    return call


def claim(holds):
    return Claim("something", None, 1.0, holds=holds, reason="why not")


# --- the rules ---


def test_the_verdict_is_that_of_the_design_for_every_mixture():
    for judged in itertools.product((True, False, None), repeat=3):
        verdict = Study("any", "quick", tuple(map(claim, judged))).verdict
        if judged.count(True) == 3:
            assert verdict == "holds"
        elif True in judged:
            assert verdict == "holds in part"
        elif False in judged:
            assert verdict == "refuted"
        else:
            assert verdict == "not at this scale"


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(5.0, 6.0, True), (4.0, 6.0, None), (3.0, 4.9, False), (9.0, 11.0, None), (11, 12, False)],
)
def test_a_claim_is_judged_by_its_interval(low, high, holds):
    judged = Claim.judge("between five and ten", Estimate((low + high) / 2, low, high, 9), at_least=5.0, at_most=10.0)
    assert judged.holds is holds
    assert ("undecided" in judged.reason) == (holds is None)
    void = Claim.judge("five", Estimate(5, low, high, 9), at_least=5.0, at_most=10.0, void="nothing was learned")
    assert void.holds is None and void.reason == "nothing was learned" and void.measured == 5


def test_what_cannot_be_a_claim_a_table_or_a_study_is_refused():
    with pytest.raises(ValueError, match="nothing was measured"):
        Claim("x", 1.0, None, holds=True)
    with pytest.raises(ValueError, match="nothing was measured"):
        Claim("x", 1.0, math.nan, holds=False)
    with pytest.raises(ValueError, match="void without a reason"):
        Claim("x", 1.0, 1.0)
    with pytest.raises(ValueError, match=r"row 1 .* has 1 values, expected 2: a, b"):
        Table("t", ("a", "b"), ((1, 2), (3,)))
    with pytest.raises(ValueError, match="makes no claim"):
        Study("x", "quick", ())


# --- what there is ---


def test_ours_are_found_by_their_files_and_others_by_their_entry_points(tiny):
    assert {"serving", "tiny", "broken"} <= set(studies())
    for name in studies():
        if name != "broken":
            entry = find(name)
            assert entry.claim and "\n" not in entry.claim and entry.about, name
    with pytest.raises(ValueError, match=r"cannot be imported.*no_such_module_at_all"):
        find("broken")


def test_a_study_must_return_a_study(tiny, tmp_path):
    entry = find("tiny")
    lab = Lab(Store(), tmp_path)
    assert perform(entry, "quick", lab).seconds > 0
    with pytest.raises(TypeError, match="returned a list"):
        perform(replace(entry, run=lambda scale, lab: []), "quick", lab)  # type: ignore[return-value]


# --- the command ---


def test_json_is_one_document_with_the_promised_keys_and_it_is_kept(tiny, palaestra):
    code, out, err = palaestra("study", "run", "tiny", "--json", "--out", tiny / "out")
    document = json.loads(out)
    assert code == 0 and "a library that prints" in err
    assert {"study", "scale", "verdict", "claims", "seconds"} <= document.keys()
    assert [document[key] for key in ("study", "scale", "verdict")] == ["tiny", "quick", "holds in part"]
    assert [c["holds"] for c in document["claims"]] == [True, False, None]
    assert document["claims"][0].keys() >= {"text", "paper", "measured", "low", "high", "holds"}
    first, second = document["tables"][0]["rows"]
    assert first == [1, {"mean": 1.0, "low": 0.5, "high": None, "n": 3}, None] and second == ["two", 2.0, None]
    assert document["provenance"]["palaestra"]

    assert json.loads((tiny / "out" / "tiny.json").read_text()) == document
    assert (tiny / "out" / "tiny.line.png").read_bytes().startswith(b"\x89PNG")
    store = Store()
    assert newest(store, "tiny") == document
    rows = store.measurements("study/tiny", newest_first=False)
    assert [(row.value, row.data["holds"]) for row in rows] == [(1.0, True), (1.0, False), (None, None)]
    assert json.loads(palaestra("study", "show", "tiny", "--json")[1]) == document


def test_a_person_sees_verdict_claims_tables_and_files(tiny, palaestra):
    code, out, _ = palaestra("study", "run", "tiny", "--scale", "full")
    assert code == 0
    for words in ("holds in part", "at scale full", "one is two", "fails", "no unicorn was found", "1 [0.5, -]", "png"):
        assert words in out
    out = palaestra("study", "show", "tiny")[1]
    assert "Source: everybody." in out and "one is two" in out


def test_the_list_has_the_newest_verdict_and_hides_nothing(tiny, palaestra):
    rows = {row["study"]: row for row in json.loads(palaestra("study", "list", "--json")[1])}
    assert rows["tiny"] == {
        **dict.fromkeys(("verdict", "scale", "date")),
        "study": "tiny",
        "system": "arithmetic",
        "claim": "One is one | always.",
    }
    assert "cannot be imported" in rows["broken"]["claim"]
    palaestra("study", "run", "tiny")
    palaestra("study", "run", "tiny", "--scale", "full")
    row = {row["study"]: row for row in json.loads(palaestra("study", "list", "--json")[1])}["tiny"]
    assert (row["verdict"], row["scale"]) == ("holds in part", "full") and row["date"].startswith("20")
    out = palaestra("study", "list", "--markdown")[1]
    assert "| tiny | arithmetic | One is one \\| always. | holds in part | full | 20" in out
    assert "holds in part" in palaestra("study", "list")[1]


def test_what_ships_is_shown_until_something_newer_is_measured(tiny, palaestra, monkeypatch):
    shipped = tiny / "assets" / "studies"
    shipped.mkdir(parents=True)
    palaestra("study", "run", "tiny", "--out", shipped)
    monkeypatch.setenv("PALAESTRA_DB", f"sqlite:///{tiny / 'other.db'}")
    monkeypatch.setattr(house, "files", lambda package: shipped.parent)
    rows = json.loads(palaestra("study", "list", "--json")[1])
    assert [row["verdict"] for row in rows if row["study"] == "tiny"] == ["holds in part"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "tini"], "nearest: tiny"),
        (["show", "servin"], "nearest: serving"),
        (["run"], "name a study"),
        (["run", "tiny", "--all"], "not both"),
        (["run", "tiny", "--scale", "huge"], "scale='huge', expected one of quick, full, gpu"),
        (["run", "broken"], "cannot be imported"),
        (["run", "tiny", "--workers", "0"], "--workers"),
    ],
)
def test_a_wrong_call_gets_a_sentence_and_code_2(tiny, palaestra, arguments, words):
    code, out, err = palaestra("study", *arguments)
    assert code == 2 and out == "" and words in err and "Traceback" not in err


@pytest.mark.parametrize(("accident", "words"), [("break", "the pencil broke"), ("smear", "the ink ran")])
def test_a_study_that_fails_ends_with_1_and_leaves_nothing_half_written(tiny, palaestra, accident, words):
    out_folder = tiny / "out"
    assert palaestra("study", "run", "tiny", "--out", out_folder)[0] == 0
    before = {path: path.read_bytes() for path in out_folder.rglob("*")}
    (data_folder("tiny") / "models" / accident).touch()
    code, out, err = palaestra("study", "run", "tiny", "--json", "--out", out_folder)
    assert code == 1 and out == "" and words in err and "Traceback" not in err
    assert {path: path.read_bytes() for path in out_folder.rglob("*")} == before


def test_serving_is_measured(palaestra, tmp_path, monkeypatch):
    """The real one with little of everything, so that whoever changes the wire hears of it at once."""
    little = serving.Size(3, rounds=3, trips=20, overload_s=0.8, crowd_s=0.3, kills=1, mutants=60)
    monkeypatch.setattr(serving, "QUICK", little)
    code, out, err = palaestra("study", "run", "serving", "--json", "--out", tmp_path)
    assert code == 0, err
    document = json.loads(out)
    exact = [c for c in document["claims"] if c["paper"] == 0]
    assert len(exact) >= 6 and all(c["holds"] for c in exact), "bits, answers, broken plans, mutants: never by chance"
    assert {path.name for path in tmp_path.iterdir()} == {"serving.json", "serving.timeline.png", "serving.latency.png"}
