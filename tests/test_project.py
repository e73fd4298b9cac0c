"""The files at the top level agree with each other and with what is there."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import labkit
from labkit.compute import NEEDED

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def requirements():
    return {line.name: line for line in map(Requirement, PROJECT["dependencies"])}


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line.name: line for line in map(Requirement, (x for x in lines if x and not x.startswith("#")))}


def test_conda_and_pip_install_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert conda == [f"python{PROJECT['requires-python']}", "pip"]
    assert pip == {"pip": PROJECT["dependencies"]}
    assert environment["channels"] == ["conda-forge"]


def test_every_dependency_has_a_tested_version_within_its_range():
    tested = constraints()
    extra = {line.name: line for line in map(Requirement, PROJECT["optional-dependencies"]["test"])}
    for name, requirement in (requirements() | extra).items():
        (pin,) = tested[name].specifier
        assert pin.operator == "==" and requirement.specifier.contains(pin.version), name


def test_no_build_of_torch_is_forced_on_anyone():
    pinned = str(constraints()["torch"].specifier)
    assert re.fullmatch(r"==\d+\.\d+\.\d+", pinned)
    assert "index-url" not in (ROOT / "constraints.txt").read_text() + (ROOT / "Makefile").read_text()


def test_the_environment_check_knows_the_ranges_of_the_project():
    for name, (oldest, below) in NEEDED.items():
        assert requirements()[name].specifier == Requirement(f"{name}>={oldest},<{below}").specifier


def test_every_import_of_the_package_is_a_dependency():
    """What comes along with another package today may not tomorrow."""
    called = {"sklearn": "scikit-learn", "PIL": "pillow", "IPython": "ipykernel", "traitlets": "ipywidgets"}
    declared = set(requirements()) | {"labkit"}
    for path in (ROOT / "labkit").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            else:
                continue
            for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names:
                assert called.get(name, name) in declared, f"{path.relative_to(ROOT)} imports {name}"


def test_versions_and_licenses():
    assert re.fullmatch(r"\d+\.\d+\.\d+", labkit.__version__)
    text = (ROOT / "LICENSE").read_text()
    assert "MIT License" in text and "CC BY 4.0" in text and PROJECT["license"] == "MIT"


# ---- README


def links():
    return re.findall(r"\]\(((?!https?:)[^)#]+)\)", README)


def test_every_link_of_the_readme_leads_somewhere():
    missing = [link for link in links() if not (ROOT / link).exists()]
    assert links() and not missing


def test_the_map_links_exactly_the_lessons_that_exist():
    linked = {link for link in links() if link.startswith("lessons/")}
    assert linked == {f"lessons/{path.name}" for path in (ROOT / "lessons").glob("*.ipynb")}


def test_the_map_has_all_sixteen_lessons_in_order():
    assert re.findall(r"^\| (\d\d) \|", README, re.MULTILINE) == [f"{number:02}" for number in range(16)]


def test_the_three_papers_are_cited():
    assert set(re.findall(r"arxiv.org/abs/(\d{4}\.\d{5})", README)) == {"2602.20062", "2605.14567", "2605.08297"}


# ---- Makefile: a stand-in for Python shows what it does when something is missing

STAND_IN = """#!/bin/sh
# Does what the Makefile asks of Python, without installing anything; the folder of this script says what fails.
here=@HERE@
echo "$*" >> "$here/calls"
case "$*" in
  *version_info*)      ! [ -e "$here/old" ] ;;
  *ensurepip*)         ! [ -e "$here/bare" ] ;;
  "-m venv .venv")     mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *"pip install"*-e*)  ! [ -e "$here/half" ] || { echo "ERROR: No space left on device" >&2; false; } ;;
  *"pip install"*)     ! [ -e "$here/offline" ] || { echo "NewConnectionError: ..., ERROR: no version" >&2; false; } ;;
  *samefile*)          echo True ;;
esac
"""


@pytest.fixture
def fresh(tmp_path):
    """A folder, with a space in its name, that holds what the installation reads, and a stand-in for Python."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    python = tmp_path / "python"
    python.write_text(STAND_IN.replace("@HERE@", str(tmp_path)))
    python.chmod(0o755)
    return folder


def make(folder, *words, path=None):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    environment.pop("CHROMIUM", None)
    environment["PATH"] = path or environment["PATH"]
    command = [shutil.which("make"), *words]
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def sentence(done):
    """The one line, beside make's own, that says why it failed."""
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    return line


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")


@needs_make
def test_the_environment_is_made_once_and_again_when_its_list_changes(fresh):
    first = make(fresh, "lab", f"PYTHON={fresh.parent / 'python'}", "ARGS=--no-browser")
    assert first.returncode == 0, first.stderr
    announced = [line for line in first.stdout.splitlines() if line.startswith("==>")]
    assert ["creating" in announced[0], "torch==" in announced[1], "labkit" in announced[2]] == [True] * 3
    calls = (fresh.parent / "calls").read_text()
    assert "-m labkit.course.command lab --no-browser" in calls

    assert "installing" not in make(fresh, "lab").stdout
    stamp = (fresh / ".venv" / "ready").stat().st_mtime
    os.utime(fresh / "constraints.txt", (stamp + 5, stamp + 5))
    again = make(fresh, "lab")
    assert "installing" in again.stdout and "creating" not in again.stdout


@needs_make
@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("old", "The course needs Python 3.11 or newer"),
        ("bare", "apt-get install python3-venv"),
        ("offline", "connect this computer to the internet"),
        ("half", "No space left on device"),
    ],
)
@pytest.mark.parametrize("target", ["lab", "test"])
def test_a_failed_installation_is_one_sentence_and_is_tried_again(fresh, target, trouble, words):
    (fresh.parent / trouble).touch()
    python = f"PYTHON={fresh.parent / 'python'}"
    assert words in sentence(make(fresh, target, python))
    (fresh.parent / trouble).unlink()
    assert make(fresh, "lab", python).returncode == 0


@needs_make
def test_without_any_python_the_sentence_says_where_to_get_one(fresh):
    tools = fresh.parent / "tools"
    tools.mkdir()
    for name in ("sh", "rm", "grep", "cat", "touch"):
        (tools / name).symlink_to(shutil.which(name))
    assert "python.org" in sentence(make(fresh, "lab", path=str(tools)))


@needs_make
@pytest.mark.parametrize("words", [["CHROMIUM=/no/such/browser"], []])
def test_without_a_browser_the_tests_say_how_to_install_it(fresh, words):
    make(fresh, "lab", f"PYTHON={fresh.parent / 'python'}")
    tools = fresh.parent / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to(shutil.which("sh"))
    assert "apt-get install chromium" in sentence(make(fresh, "test", *words, path=str(tools)))


@needs_make
def test_help_names_every_target(fresh):
    targets = re.search(r"^\.PHONY: (.*)$", (fresh / "Makefile").read_text(), re.MULTILINE)[1].split()
    said = make(fresh).stdout
    assert all(f"make {name}" in said for name in set(targets) - {"help", "rebuild"})


def test_ci_script_is_executable_bash():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
