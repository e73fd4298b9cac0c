"""The frame of `make verify`, and one claim of every room as a sample of what it does in full."""

import json
import math
from pathlib import Path

import pytest

from labkit import sweep
from tests.verify import __main__ as frame
from tests.verify.claim import Claim


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(frame, "RESULTS", tmp_path / "results.json")


@pytest.mark.parametrize("room", frame.rooms())
def test_the_first_claim_of_every_room_holds(room):
    assert next(frame.claims(room)).ok


@pytest.mark.parametrize(
    ("claim", "ok"),
    [
        (Claim("", 1.0, 1.0), True),
        (Claim("", 1.001, 1.0), False),
        (Claim("", 1.05, 1.0, tolerance=0.1), True),
        (Claim("", 1.14, 1.0, se=0.03, note_se=0.04), True),
        (Claim("", 1.16, 1.0, se=0.03, note_se=0.04), False),
        (Claim("", 1.16, 1.0, se=0.03, note_se=0.04, tolerance=0.02), True),
        (Claim("", math.nan, 1.0, tolerance=9), False),
        (Claim("", 1.0, 1.0, se=math.nan), False),
    ],
)
def test_two_numbers_agree_to_three_standard_errors(claim, ok):
    assert claim.ok is ok


def slowly(log, x, seed):
    with open(log, "a") as file:
        file.write(".")
    return float(x)


def room(log, stop):
    def claims():
        for x in (1, 2, 3):
            if x == stop:
                raise KeyboardInterrupt
            ours = sweep.run(slowly, {"log": [str(log)], "x": [x]}, progress=False)
            yield Claim(f"x is {x}", ours["value"][0], note=min(x, 2))

    return lambda name: claims()


def test_a_stopped_verification_goes_on_and_writes_what_it_found(tmp_path, monkeypatch, capsys):
    log = tmp_path / "log"
    monkeypatch.setattr(frame, "rooms", lambda: ["a", "b"])
    monkeypatch.setattr(frame, "claims", room(log, stop=3))
    with pytest.raises(KeyboardInterrupt):
        frame.main(["a"])
    assert log.read_text() == ".." and not frame.RESULTS.exists()
    monkeypatch.setattr(frame, "claims", room(log, stop=None))
    capsys.readouterr()
    assert frame.main(["a"]) == 1 and log.read_text() == "..."
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["claim", "ours", "note", "ok"] and lines[1] == "a"
    assert lines[3].split() == ["x", "is", "2", "2", "2", "ok"] and lines[4].endswith("NOT OK")
    assert lines[-1] == "2 of 3 claims hold."
    frame.main(["b"])
    known = json.loads(frame.RESULTS.read_text())
    assert set(known) == {"a", "b"} and [claim["ok"] for claim in known["a"]["claims"]] == [True, True, False]
    assert known["a"]["claims"][2]["ours"] == 3 and {"date", "device", "profile", "torch"} <= set(known["a"])


def test_an_unknown_room_is_refused(capsys):
    assert frame.main(["nowhere"]) == 2
    assert "there is no room nowhere to verify, only " in capsys.readouterr().err


def test_what_was_last_found_is_kept_and_holds():
    known = json.loads(Path(frame.__file__).with_name("results.json").read_text(encoding="utf-8"))
    assert set(known) == set(frame.rooms())
    assert all(claim["ok"] for found in known.values() for claim in found["claims"])
