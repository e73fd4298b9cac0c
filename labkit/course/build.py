"""Lessons from their masters: ``lessons/NN.ipynb`` is ``solutions/NN.ipynb`` with the answers blanked.

The blanking is nbgrader's own, used as a library, so a lesson is what ``nbgrader generate_assignment`` would
hand out. The same master always gives the same bytes: what differs from run to run or from computer to
computer (outputs, execution counts, widget state, the Python version, random cell ids) is removed or derived
from the content.
"""

import hashlib
import itertools
import json
from pathlib import Path

import nbformat
from nbformat import NotebookNode

CODE_STUB = "# YOUR CODE HERE\nraise NotImplementedError"
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
KEPT = ("nbgrader", "tags", "jupyter")  # of a cell's metadata; the rest is what an editor remembers


def masters(folder: Path) -> list[Path]:
    """The notebooks of a folder, in the order of the course."""
    return sorted(Path(folder).glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """A notebook just as it stands in the file: nbformat's own reader would invent ids and repair duplicates.

    Raises ValueError for a file that is not a notebook of format 4.
    """
    try:
        return _parsed(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # of json, and of the encoding
        raise ValueError(f"{path} must be a notebook of format 4 in JSON: {error}") from error


def _parsed(content: str) -> NotebookNode:
    content = json.loads(content)
    if not isinstance(content, dict) or content.get("nbformat") != 4 or "cells" not in content:
        raise ValueError("it has no nbformat 4 or no cells")
    for cell in content["cells"]:
        if isinstance(cell.get("source"), list):  # the file may hold a list of lines
            cell["source"] = "".join(cell["source"])
    return nbformat.from_dict(content)


def lesson(master: NotebookNode) -> NotebookNode:
    """The notebook that learners open.

    Raises ValueError for an id that two cells share and for a solution region that is nested or never ends.
    """
    from nbgrader.preprocessors import ClearHiddenTests, ClearOutput, ClearSolutions

    notebook = nbformat.from_dict(master)  # a deep copy
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = NotebookNode(kernelspec=KERNEL, language_info={"name": "python"})
    taken = [cell.id for cell in notebook.cells if "id" in cell]
    if len(set(taken)) < len(taken):  # nbformat would repair it with random ids, other ones in every run
        twice = next(name for name in taken if taken.count(name) > 1)
        raise ValueError(f"a cell id must be unique, got {twice!r} more than once")
    for cell in notebook.cells:
        cell.metadata = NotebookNode({key: cell.metadata[key] for key in KEPT if key in cell.metadata})
        if "id" not in cell:
            cell.id = _derived_id(cell, taken)
            taken.append(cell.id)
    try:
        for step in (
            ClearSolutions(code_stub={"python": CODE_STUB}, enforce_metadata=False),
            ClearHiddenTests(enforce_metadata=False),
            ClearOutput(),
        ):
            notebook, _ = step.preprocess(notebook, {})
    except RuntimeError as error:  # what nbgrader raises for a region without an end
        raise ValueError(f"a solution or hidden-test region must be closed and not nested: {error}") from error
    notebook.metadata.labkit = NotebookNode(made=_digest(notebook.cells))
    return notebook


def text(notebook: NotebookNode) -> str:
    """The bytes of a notebook file, as a string."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def build(solutions: Path, lessons: Path) -> list[Path]:
    """Make every lesson anew; return the files written. A second run returns none.

    A lesson that somebody worked on is not lost: it is moved to the folder ``answers`` beside ``lessons``.
    """
    made = _made(solutions)
    Path(lessons).mkdir(exist_ok=True)
    written = []
    for name, content in made.items():
        target = Path(lessons) / name
        if not target.exists() or target.read_bytes() != content.encode():
            if target.exists() and _worked_on(target):
                written.append(_keep(target, Path(lessons).parent / "answers"))
            target.write_bytes(content.encode())
            written.append(target)
    return written


def _worked_on(path: Path) -> bool:
    """Whether anything in a lesson differs from what was once made, by the digest that it carries."""
    try:
        notebook = read(path)
    except ValueError:
        return True  # not readable: somebody's, all the same
    return notebook.metadata.get("labkit", {}).get("made") != _digest(notebook.cells)


def _digest(cells: list[NotebookNode]) -> str:
    """What a learner can change in cells: text, kind and order, outputs."""
    seen = [(c.cell_type, c.source, c.get("outputs") or [], c.get("execution_count")) for c in cells]
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def _keep(path: Path, folder: Path) -> Path:
    """Move a file into the folder under the first free name."""
    folder.mkdir(exist_ok=True)
    names = (folder / f"{path.stem}{'' if copy == 1 else f'-{copy}'}{path.suffix}" for copy in itertools.count(1))
    return path.rename(next(place for place in names if not place.exists()))


def drift(solutions: Path, lessons: Path) -> list[str]:
    """What ``build`` would change, a sentence a lesson: missing, edited by hand, stale, without a master."""
    found = []
    made = _made(solutions)
    for name, content in made.items():
        target = Path(lessons) / name
        if not target.exists():
            found.append(f"lessons/{name} is missing")
        elif target.read_bytes() != content.encode():
            found.append(f"lessons/{name} is not what solutions/{name} gives{_where(target, content)}")
    for path in masters(lessons):
        if path.name not in made:
            found.append(f"lessons/{path.name} has no master in solutions/: delete it")
    return found


def _made(solutions: Path) -> dict[str, str]:
    made = {}
    for path in masters(solutions):
        try:
            made[path.name] = text(lesson(read(path)))
        except ValueError as error:
            raise ValueError(f"solutions/{path.name}: {error}") from error
    return made


def _derived_id(cell: NotebookNode, taken: list[str]) -> str:
    """Eight letters from the content; equal cells get different ones, in the order in which they stand."""
    for copy in range(len(taken) + 1):
        name = hashlib.sha256(f"{cell.cell_type}\n{cell.source}\n{copy}".encode()).hexdigest()[:8]
        if name not in taken:
            return name
    raise AssertionError("unreachable: one more candidate than names taken")


def _where(path: Path, content: str) -> str:
    """The first cell in which a lesson differs, for the message."""
    try:
        here = read(path).cells
    except ValueError:
        return ": it is not a notebook"
    wanted = _parsed(content).cells
    for number, (cell, other) in enumerate(zip(here, wanted, strict=False), start=1):
        if cell != other:
            return f", first in cell {number} (id {other.id})"
    return ", in the number of cells" if len(here) != len(wanted) else ", in its metadata"
