import os
import subprocess
import sys

import pytest
from jupyterlab.labapp import LabApp
from nbformat.v4 import new_code_cell, new_notebook

import labkit
from labkit.compute import Finding
from labkit.course.build import build, text
from labkit.course.command import Refusal, first_panel, main
from labkit.results import LONG, RECIPES
from tests.course.test_lint import good

PANEL = """
from labkit import Panel, Slider
def compute(values): return values["x"] ** 2
def draw(figure, result): figure.gca().set_title(f"{result:.2f}")
def alt(values, result): return f"x squared is {result:.2f}"
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A tiny clone with one master and its lesson; the current folder is somewhere inside it."""
    for name in ("labkit/deep", "solutions", "lessons"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "solutions" / "01_a.ipynb").write_text(text(good()))
    build(tmp_path / "solutions", tmp_path / "lessons")
    monkeypatch.chdir(tmp_path / "labkit" / "deep")
    return tmp_path


def test_build_makes_what_is_missing_and_is_then_silent(clone, capsys):
    (clone / "lessons" / "01_a.ipynb").unlink()
    assert main(["build"]) == 0
    assert capsys.readouterr().out == f"made {os.path.join('lessons', '01_a.ipynb')}\n"
    assert main(["build"]) == 0 and capsys.readouterr().out == ""


def test_build_check_is_silent_when_all_agrees(clone, capsys):
    assert main(["build", "--check"]) == 0
    assert capsys.readouterr() == ("", "")


def test_build_check_says_what_drifted_and_changes_nothing(clone, capsys):
    path = clone / "lessons" / "01_a.ipynb"
    path.write_text(path.read_text().replace("step 3", "step three"))
    edited = path.read_text()
    assert main(["build", "--check"]) == 1
    error = capsys.readouterr().err
    assert "lessons/01_a.ipynb is not what solutions/01_a.ipynb gives" in error and "make lessons" in error
    assert path.read_text() == edited


def test_build_check_says_which_rule_a_master_breaks(clone, capsys):
    notebook = good()
    notebook.cells.append(new_code_cell("import pandas"))
    (clone / "solutions" / "01_a.ipynb").write_text(text(notebook))
    assert main(["build"]) == 1
    assert main(["build", "--check"]) == 1
    assert "solutions/01_a.ipynb: cell 22 may import from" in capsys.readouterr().err


def test_build_refuses_a_broken_master_in_one_sentence(clone, capsys):
    (clone / "solutions" / "01_a.ipynb").write_text("{")
    assert main(["build"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_build_says_in_one_sentence_what_it_cannot_write(clone, capsys):
    path = clone / "lessons" / "01_a.ipynb"
    path.unlink()
    path.mkdir()
    assert main(["build"]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "01_a.ipynb" in error


@pytest.mark.parametrize("words", [["lab"], ["build"], ["picture"]])
def test_outside_a_clone_one_sentence_says_so(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(labkit, "__file__", str(tmp_path / "site-packages" / "labkit" / "__init__.py"))
    assert main(words) == 1
    assert "go into the clone of the course" in capsys.readouterr().err


def test_build_does_not_wait_for_torch(clone):
    """Editing prose should not cost the seconds that torch takes to load."""
    script = (
        "import sys; from labkit.course.command import main; main(['build', '--check']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("words", [[], ["play"], ["build", "--force"], ["doctor", "now"]])
def test_what_is_not_understood_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 2


@pytest.fixture
def launched(monkeypatch):
    """What JupyterLab would have been started with."""
    calls = []
    monkeypatch.setattr(LabApp, "launch_instance", calls.append)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    return calls


def test_lab_opens_the_lesson_and_hands_on_what_it_does_not_know(clone, launched):
    assert main(["lab", "01", "--no-browser", "--port=8899"]) == 0
    (arguments,) = launched
    assert "--LabApp.default_url=/lab/tree/lessons/01_a.ipynb" in arguments
    assert f"--ServerApp.root_dir={clone}" in arguments
    assert arguments[-2:] == ["--no-browser", "--port=8899"]
    assert os.environ["JUPYTER_CONFIG_PATH"].endswith(os.pathsep + "mine")


def test_lab_opens_the_first_lesson(clone, launched):
    (clone / "lessons" / "01_a.ipynb").rename(clone / "lessons" / "00_start_here.ipynb")
    assert main(["lab"]) == 0
    assert "--LabApp.default_url=/lab/tree/lessons/00_start_here.ipynb" in launched[0]


def test_lab_names_the_lessons_there_are(clone, launched, capsys):
    assert main(["lab", "07"]) == 1
    assert "There is no lesson 07, only 01." in capsys.readouterr().err and not launched


def test_doctor_prints_every_finding_and_fails_when_one_is_bad(monkeypatch, capsys):
    findings = [Finding("Python", True, "3.11"), Finding("scipy", False, "is missing", "type  this")]
    monkeypatch.setattr("labkit.compute.diagnose", lambda: findings)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines() == ["ok  Python 3.11", "NO  scipy is missing: type  this"]
    findings.pop()
    assert main(["doctor"]) == 0


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Results and their cache in a folder of the test; what --device sets is forgotten afterwards."""
    monkeypatch.setattr("labkit.results.FOLDER", tmp_path)
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_DEVICE", "")
    return tmp_path


def test_sweep_makes_a_result_anew(elsewhere, capsys):
    assert main(["sweep", "recovery_by_scale", "--profile", "quick", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    path = elsewhere / "recovery_by_scale.npz"
    assert said.out.startswith(f"made {path} (") and said.out.endswith("kB): profile quick, cpu\n")
    assert "624/624" in said.err and path.exists() and path.with_suffix(".json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing"], "there is no result 'nothing', only recovery_by_scale"),
        (["recovery_by_scale", "--profile", "huge"], "profile must be one of quick, standard, full, got 'huge'"),
        (["recovery_by_scale", "--device", "abacus"], "LABKIT_DEVICE must name a device of this computer"),
    ],
)
def test_sweep_refuses_in_one_sentence(elsewhere, capsys, words, sentence):
    assert main(["sweep", *words]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line and not list(elsewhere.glob("*.npz"))


def test_sweep_without_a_name_lists_what_there_is(capsys):
    assert main(["sweep"]) == 0 and capsys.readouterr().out.split() == [*RECIPES, *LONG]


def test_a_stopped_sweep_says_in_one_line_that_it_goes_on(elsewhere, monkeypatch, capsys):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("labkit.sweep._call", stop)
    assert main(["sweep", "recovery_by_scale", "--profile", "quick"]) == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("stopped; 0 of 624 rows are finished and kept in ") and line.endswith("goes on from there")


def test_sweep_says_when_there_is_no_room_for_its_cache(elsewhere, monkeypatch, capsys):
    (elsewhere / "file").touch()
    monkeypatch.setenv("LABKIT_CACHE", str(elsewhere / "file"))
    assert main(["sweep", "recovery_by_scale", "--profile", "quick"]) == 1
    assert "cannot be written (Not a directory)" in capsys.readouterr().err


@pytest.mark.parametrize("last", ["panel = Panel(compute, draw, alt, [Slider('x', 0, 1, 0.5)])", None])
def test_picture_is_that_of_the_first_panel_named_or_only_shown(clone, last):
    shown = "Panel(compute, draw, alt, [Slider('x', 0, 1, 0.5)])"
    cells = [new_code_cell(PANEL), new_code_cell(last or shown), new_code_cell("raise RuntimeError('too far')")]
    (clone / "solutions" / "02_b.ipynb").write_text(text(new_notebook(cells=cells)))
    assert main(["picture"]) == 0
    assert (clone / "docs" / "lesson_02.png").read_bytes().startswith(b"\x89PNG")


def test_picture_refuses_a_master_without_a_panel(clone):
    path = clone / "solutions" / "02_b.ipynb"
    path.write_text(text(new_notebook(cells=[new_code_cell("x = 1")])))
    with pytest.raises(Refusal, match="02_b.ipynb makes no panel"):
        first_panel(path)


def test_picture_needs_lesson_02(clone, capsys):
    assert main(["picture"]) == 1
    assert "solutions/ has none" in capsys.readouterr().err
