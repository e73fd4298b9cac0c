"""The rules that every master keeps, so that sixteen lessons by several hands read like one course."""

import ast
import re
from collections import Counter
from pathlib import Path

from nbformat import NotebookNode

from labkit.course.build import KERNEL, read

CELLS = (20, 40)
LINES_A_CELL = 25
LINES_IN_ALL = 150  # without blank lines and without solutions
WORDS = 1500  # of prose; formulas, code and tags do not count
IMPORTS = {"labkit", "torch", "numpy", "matplotlib"}
START = "00"  # the lesson about the course itself: short, without paper and without control experiment

SOLUTION = re.compile(r"^[ \t]*### BEGIN SOLUTION\n.*?### END SOLUTION[^\n]*\n?", re.MULTILINE | re.DOTALL)
NOT_PROSE = re.compile(r"```.*?```|\$\$.*?\$\$|\$[^$]*\$|`[^`]*`|<[^>]*>", re.DOTALL)


def lint(path: Path) -> list[str]:
    """What in the master at ``path`` breaks the rules, one sentence each; empty when all is well."""
    notebook = read(path)
    start = path.name.startswith(START)
    return [
        *_file(notebook),
        *_size(notebook, start),
        *_code(notebook),
        *_parts(notebook, start),
        *_exercises(notebook),
    ]


def prose(notebook: NotebookNode) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def code_cells(notebook: NotebookNode) -> list[tuple[int, NotebookNode]]:
    """The code cells with their numbers, counted from 1 over all cells as a reader counts them."""
    return [(number, cell) for number, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]


def _file(notebook: NotebookNode) -> list[str]:
    found = []
    if notebook.metadata.get("kernelspec") != KERNEL:
        found.append(f"the kernelspec must be {KERNEL}, got {notebook.metadata.get('kernelspec')}")
    if "widgets" in notebook.metadata:
        found.append("widget state is stored: clear all outputs before saving")
    ids = Counter(cell.get("id") for cell in notebook.cells)
    found += [f"the cell id {name!r} must be there and unique" for name, n in ids.items() if n > 1 or not name]
    for number, cell in code_cells(notebook):
        if cell.get("outputs") or cell.get("execution_count") is not None:
            found.append(f"cell {number} holds an output or an execution count: clear all outputs before saving")
    return found


def _size(notebook: NotebookNode, start: bool) -> list[str]:
    found = []
    cells, words = len(notebook.cells), len(NOT_PROSE.sub(" ", prose(notebook)).split())
    if not start and not CELLS[0] <= cells <= CELLS[1]:
        found.append(f"a lesson has {CELLS[0]} to {CELLS[1]} cells, got {cells}")
    if words > WORDS:
        found.append(f"a lesson has at most {WORDS} words of prose, got {words}")
    total = 0
    for number, cell in code_cells(notebook):
        lines = len(cell.source.splitlines())
        if lines > LINES_A_CELL:
            found.append(f"cell {number} has {lines} lines, at most {LINES_A_CELL} are allowed")
        total += sum(bool(line.strip()) for line in SOLUTION.sub("", cell.source).splitlines())
    if total > LINES_IN_ALL:
        found.append(f"a lesson has at most {LINES_IN_ALL} lines of code without its solutions, got {total}")
    return found


def _code(notebook: NotebookNode) -> list[str]:
    found = []
    for number, cell in code_cells(notebook):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            found.append(f"cell {number} is not plain Python (no magics, no shell lines): {error.msg}")
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "."]
            elif isinstance(node, ast.Name) and node.id == "get_ipython":
                names = ["get_ipython"]
            else:
                continue
            wrong = [name for name in names if name.split(".")[0] not in IMPORTS]
            found += [f"cell {number} may import from {', '.join(sorted(IMPORTS))}, got {x}" for x in wrong]
    return found


def _parts(notebook: NotebookNode, start: bool) -> list[str]:
    found = []
    card = notebook.cells[0] if notebook.cells else NotebookNode(cell_type="", source="")
    if card.cell_type != "markdown" or not card.source.startswith("# "):
        found.append("the first cell must be the title card: markdown that begins with '# '")
    if not start and not re.search(r"arXiv:?\s*\[?\d{4}\.\d{5}", card.source):
        found.append("the title card must name the paper with its number, such as arXiv 2602.20062")
    if not start and not re.search(r"^#+ .*Does it hold\?", prose(notebook), re.MULTILINE):
        found.append("a section with the heading 'Does it hold?' is missing")
    if not any("check_environment()" in cell.source for _, cell in code_cells(notebook)[:1]):
        found.append("the first code cell must call check_environment()")
    return found


def _exercises(notebook: NotebookNode) -> list[str]:
    """Answer and check come in pairs: 01-1-answer, then 01-1-check, whose source is check("01.1", ...)."""
    found, answers, checks = [], [], []
    for number, cell in enumerate(notebook.cells, 1):
        meta = cell.metadata.get("nbgrader", {})
        region = "BEGIN SOLUTION" in cell.source
        if region != bool(SOLUTION.search(cell.source)):
            found.append(f"cell {number}: a solution stands between ### BEGIN SOLUTION and ### END SOLUTION")
        if region and not meta.get("solution"):
            found.append(f"cell {number} holds a solution but nbgrader does not know it as a solution cell")
        if not meta:
            continue
        name = str(meta.get("grade_id", ""))
        if meta.get("schema_version") != 3 or meta.get("cell_type") != cell.cell_type:
            found.append(f"cell {number}: nbgrader's metadata must have schema_version 3 and the cell's own type")
        if meta.get("solution") and meta.get("grade"):  # an answer in prose, graded by a person
            continue
        if meta.get("solution"):
            answers.append(name.removesuffix("-answer"))
            if not name.endswith("-answer") or not region:
                found.append(f"cell {number} must be called NN-M-answer and hold a solution, it is called {name!r}")
        elif meta.get("grade"):
            exercise = name.removesuffix("-check")
            checks.append(exercise)
            if not name.endswith("-check") or f'check("{exercise.replace("-", ".")}"' not in cell.source:
                found.append(f"cell {number} must be called NN-M-check and run check('NN.M', ...), got {name!r}")
            if not meta.get("locked") or not meta.get("points", 0) > 0:
                found.append(f"cell {number} must be locked and give points")
            if exercise not in answers:
                found.append(f"cell {number} checks {exercise!r}, but no answer cell stands before it")
    for kind, names in (("answered", answers), ("checked", checks)):
        found += [f"exercise {name!r} is {kind} in {n} cells" for name, n in Counter(names).items() if n > 1]
    found += [f"exercise {name!r} has no check cell" for name in sorted(set(answers) - set(checks))]
    return found
