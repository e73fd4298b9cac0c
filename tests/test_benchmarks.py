"""The frame of `make bench`: a stopped run goes on with the section where it was."""

import pytest

from tests.benchmarks import __main__ as frame
from tests.benchmarks.__main__ import Row


@pytest.fixture
def log(monkeypatch, tmp_path):
    """Three sections that write down when they are measured; the second is interrupted while there is no ``go``."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))

    def section(name):
        def rows():
            with open(tmp_path / "log", "a") as file:
                file.write(name)
            if name == "b" and not (tmp_path / "go").exists():
                raise KeyboardInterrupt
            yield Row(f"{name}1", "1 ms", "2 ms", "2x", "1x", True)
            yield Row(f"{name}2", "1 ms", ok=False if name == "c" else None)

        return rows

    monkeypatch.setattr(frame, "sections", lambda: {name: section(name) for name in "abc"})
    return tmp_path / "log"


def interrupt(arguments=()):
    with pytest.raises(KeyboardInterrupt):
        frame.main(list(arguments))


def test_a_stopped_run_goes_on_and_a_finished_one_starts_afresh(log, capsys):
    interrupt()
    assert log.read_text() == "ab"
    (log.parent / "go").touch()
    capsys.readouterr()
    assert frame.main([]) == 1 and log.read_text() == "abbc"  # 1: not all promises are kept
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[4:10]] == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert "3 of 4 promises kept." in said[-1]
    assert frame.main([]) == 1 and log.read_text() == "abbcabc"


def test_other_code_or_a_request_measures_again(log, monkeypatch):
    interrupt()
    interrupt(["--anew"])
    monkeypatch.setattr(frame, "version", lambda: "another")
    interrupt()
    assert log.read_text() == "ababab"


def test_the_sections_are_there_and_their_code_has_a_version():
    names = set(frame.sections())
    assert {"solver", "room sweep", "room machinery", "browser"} <= names
    assert any(name.startswith("02_") for name in names) and len(frame.version()) == 64


def test_an_unknown_option_is_refused(capsys):
    assert frame.main(["--again"]) == 2
    assert "the only option is --anew, got --again" in capsys.readouterr().err
