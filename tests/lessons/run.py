"""Run a notebook here, in plain Python, and hand back what it shows. No kernel: 2 s less, and a debugger works."""

import ast
import contextlib
import linecache
import os
import time
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import nbformat

from labkit import Panel, Prediction, compute
from labkit.checks import Verdict

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    panels: list[Panel]  # every panel made, shown or not, in order
    predictions: list[Prediction]
    verdicts: list[Verdict]  # shown as the value of a cell
    names: dict  # what the notebook defined
    seconds: float


def notebooks(folder):
    """The notebooks of a folder of the repository, in the order of the course."""
    return sorted((ROOT / folder).glob("*.ipynb"))


def run_notebook(path, *, strict, profile="quick"):
    """Execute the code cells of the notebook at `path` one after the other; an exception names the cell.

    strict: anything but a correct answer raises, as for a master.
    """
    made, shown = [], []
    names = {"__name__": "__main__", "display": lambda *values: shown.extend(map(_rendered, values))}
    environment = {"LABKIT_STRICT": "1" if strict else "0", "LABKIT_GRADING": "0"}
    start, here = time.perf_counter(), os.getcwd()
    try:
        os.chdir(path.parent)  # where a kernel would start
        with _recording(made), compute.use_profile(profile), patch.dict(os.environ, environment):
            for number, cell in enumerate(nbformat.read(path, as_version=4).cells, 1):
                if cell.cell_type == "code":
                    shown += _run_cell(cell.source, f"{path.name}, cell {number}", names)
    finally:
        os.chdir(here)
    return Run(
        panels=[part for part in made if isinstance(part, Panel)],
        predictions=[part for part in made if isinstance(part, Prediction)],
        verdicts=[value for value in shown if isinstance(value, Verdict)],
        names=names,
        seconds=time.perf_counter() - start,
    )


def _recording(made):
    """While active, every new Panel and Prediction is appended to `made`."""
    stack = contextlib.ExitStack()
    for kind in (Panel, Prediction):
        stack.enter_context(patch.object(kind, "__init__", _appending(kind.__init__, made)))
    return stack


def _appending(init, made):
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        made.append(self)

    return __init__


def _run_cell(source, title, names):
    """Run a cell; returns the value of its last line in a list, after rendering it, as a notebook would show it."""
    linecache.cache[title] = (len(source), None, source.splitlines(keepends=True), title)  # for tracebacks
    body = ast.parse(source, title).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), title, "exec"), names)
    if last is None or source.rstrip().endswith(";"):
        return []
    value = eval(compile(ast.Expression(last.value), title, "eval"), names)
    return [_rendered(value)]


def _rendered(value):
    """The value, after being asked for all the ways in which a notebook could show it."""
    for method in ("_repr_mimebundle_", "_repr_html_", "__repr__"):
        getattr(value, method, str)()
    return value
