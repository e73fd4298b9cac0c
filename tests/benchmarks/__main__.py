"""`make bench`: what the course promises about time, measured here, against the naive way where there is one.

Every number is from one thread. Leave the computer alone meanwhile. Milliseconds are promised for the reference core
of `tests.calibration`: "at 1.4x" says how much longer this one took, at that moment, for the same work. Stopped, it
goes on with the section where it was, unless the code has changed; after a run to the end, or with ``--anew``, it
starts afresh. A room adds a table by a small module beside this one, whose ``rows()`` gives (what, our seconds,
seconds of the naive way, promised ratio), and for another unit than ms (factor, symbol) of it at the end.
"""

import asyncio
import contextlib
import functools
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit import compute, plots, sweep
from labkit.cache import home
from labkit.diagonal.flow import initial_weights, raw_gradient_descent
from labkit.diagonal.interpolate import min_penalty
from labkit.panel import BUDGET_MS, COMPUTE_BUDGET_MS, LIVE, RUN
from tests import report
from tests.browser import lab
from tests.browser.test_lessons import FRAME_MS
from tests.browser.test_lessons import LIVE as LIVE_CONTROLS
from tests.calibration import seconds, slowness
from tests.lessons.run import ROOT, notebooks, run_notebook
from tests.test_import import LIMIT_SECONDS, seconds_beyond_torch

DIM, N = 400, 120  # the size at which the solver's targets are set
SCALES = (10, 1e-2, 1e-3, 1e-6, 1e-10)  # c


@dataclass(frozen=True)
class Row:
    name: str
    ours: str
    naive: str = ""
    ratio: str = ""
    target: str = ""
    ok: bool | None = None  # None: nothing was promised

    def __str__(self):
        mark = {None: "", True: "yes", False: "NO"}[self.ok]
        return f"{self.name:<46}{self.ours:>34}{self.naive:>18}{self.ratio:>8}   {self.target:<27} {mark}"


def problem(dim, n, batch=()):
    """Sparse regression: a tenth of the coordinates are active."""
    generator = compute.generator(0)
    x = torch.randn(*batch, n, dim, dtype=torch.float64, generator=generator) / dim**0.5
    beta = torch.randn(*batch, dim, dtype=torch.float64, generator=generator)
    beta *= torch.rand(*batch, dim, dtype=torch.float64, generator=generator) < 0.1
    return x, (x @ beta[..., None]).squeeze(-1)


def solver():
    x, y = problem(DIM, N)
    for c in SCALES:
        found = min_penalty(x, y, 2 * c)
        ms, slow = 1e3 * seconds(lambda c=c: min_penalty(x, y, 2 * c)), slowness()
        steps, residual = int(found.iterations), float((x @ found.beta - y).norm() / y.norm())
        ok = ms <= 10 * slow and steps <= 20 and residual <= 1e-10
        ours = f"{ms:.1f} ms at {slow:.1f}x, {steps} it., {residual:.0e}"
        yield Row(f"min_penalty, D = {DIM}, n = {N}, c = {c:g}", ours, target="10 ms at 1x, 20 it., 1e-10", ok=ok)


def batches():
    for dim, n, target in ((DIM, N, 1.0), (200, 40, 2.5)):
        x, y = problem(dim, n, batch=(64,))
        together = seconds(lambda x=x, y=y: min_penalty(x, y, 2e-3), 5)
        loop = seconds(lambda x=x, y=y: [min_penalty(a, b, 2e-3) for a, b in zip(x, y, strict=True)], 5)
        names = f"{1e3 * together:.0f} ms", f"{1e3 * loop:.0f} ms", f"{loop / together:.1f}x"
        # "no slower" is judged to the noise of the clock
        yield Row(f"batch of 64, D = {dim}, n = {n}", *names, f"{target:g}x", loop / together >= 0.95 * target)


def naive_training(error=1e-3, c=0.1):
    """Raw gradient descent until it is within `error` of the endpoint of gradient flow: too fast and it never is."""
    x, y = problem(DIM, N)
    exact = min_penalty(x, y, 2 * c).beta
    ours = seconds(lambda: min_penalty(x, y, 2 * c))
    for lr in (0.3, 0.03, 0.01):
        weights, spent = initial_weights(DIM, c, 0.0), 0.0
        for _ in range(10):
            start = time.perf_counter()
            weights = raw_gradient_descent(x, y, weights, lr, steps=1000).weights
            spent += time.perf_counter() - start
            away = float((weights.beta - exact).norm() / exact.norm())
            if away <= error:
                break
        ratio = f"{spent / ours:.0f}x" if away <= error else "never"
        naive = f"{spent:.2f} s, {away:.0e} off"
        yield Row(f"min_penalty / descent to {error:g}, rate {lr}", f"{1e3 * ours:.1f} ms", naive, ratio)


def room(name):
    """The table that a module beside this one adds."""
    for what, ours, naive, target, *unit in import_module(f"tests.benchmarks.{name}").rows():
        ratio, (size, symbol) = naive / ours, unit or (1e3, "ms")
        numbers = f"{size * ours:.3g} {symbol}", f"{size * naive:.3g} {symbol}", f"{ratio:.1f}x"
        yield Row(what, *numbers) if target is None else Row(what, *numbers, f"{target:g}x", ratio >= target)


def imports():
    for label, names in (("import labkit", ""), ("... Panel, check, plots", "from labkit import Panel, check, plots")):
        spent = seconds_beyond_torch(names, repeats=5)
        yield Row(f"{label} beyond torch", f"{spent:.3f} s", target=f"{LIMIT_SECONDS:g} s", ok=spent <= LIMIT_SECONDS)


def lesson(path, profile, limit):
    with contextlib.redirect_stdout(io.StringIO()):
        run = run_notebook(path, strict=True, profile=profile)
    yield Row(f"{path.stem}, {profile}", f"{run.seconds:.1f} s", target=f"{limit} s", ok=run.seconds <= limit)
    if profile == "quick":
        for number, panel in enumerate(run.panels, 1):
            yield from panel_rows(f"{path.stem[:2]} panel {number}", panel)


def panel_rows(name, panel):
    """Compute, draw and encode over a tour of the panel, by kind of control; and a move that makes a new figure."""
    before = slowness()
    moves = asyncio.run(tour(panel))
    slow = (before + slowness()) / 2
    for answer, times in moves.items():
        total = times.sum(axis=1)
        for part, spent, budget in (
            ("compute", times[:, 0], COMPUTE_BUDGET_MS[answer]),
            ("draw", times[:, 1], None),
            ("encode", times[:, 2], None),
            ("in all", total, BUDGET_MS[answer]),
        ):
            p50, p95, worst = np.quantile(spent, (0.5, 0.95, 1))
            ours = f"{p50:.1f} / {p95:.1f} / {worst:.1f} ms at {slow:.1f}x"
            promise = {} if budget is None else {"target": f"p95 {budget} ms at 1x", "ok": bool(p95 <= budget * slow)}
            yield Row(f"{name}, {answer}: {part}", ours, **promise)
        if answer == LIVE:
            ours, naive = float(np.median(total)), 1e3 * seconds(lambda: new_figure(panel), 7)
            yield Row(f"{name}: against a new figure", f"{ours:.0f} ms", f"{naive:.0f} ms", f"{naive / ours:.1f}x")


async def tour(panel):
    """Milliseconds (moves, 3) of compute, draw, encode for each kind of control, at the places that `probe` visits.

    Asynchronous as a kernel is: with an event loop a panel sends a JPEG first.
    """
    found = {}
    for target in panel._positions(np.random.default_rng(0), random_positions=12):
        for name, value in target.items():
            control = panel.controls[name]
            if control.answer != RUN and control.value != value:
                control.value = value
                spent = [1e3 * panel.seconds[part] for part in ("compute", "draw", "encode")]
                found.setdefault(control.answer, []).append(spent)
    panel.reset()
    return {answer: np.array(times) for answer, times in found.items()}


def new_figure(panel):
    """What `interact` does for one move: compute, make a figure, draw all of it, encode."""
    result = panel._compute(panel.values)
    with plots.style():
        figure = Figure(figsize=panel._stage.figure.get_size_inches(), dpi=100, layout="constrained")
        FigureCanvasAgg(figure)
        panel._stage._setup(figure)
        panel._stage._draw(figure, result)
        figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")  # as the inline backend does


def in_browser():
    try:
        lab.chromium_path()
    except RuntimeError as missing:
        print(missing)
        return
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        address = stack.enter_context(lab.server(ROOT / "lessons", home))
        chromium = stack.enter_context(lab.free_browser(home))
        for path in notebooks("lessons"):
            if control := LIVE_CONTROLS.get(path.name[:2]):
                before = slowness()
                p50, p95 = np.quantile(lab.latencies_alone(chromium, address, path.name, control, 60), (0.5, 0.95))
                slow = (before + slowness()) / 2
                ours = f"{p50:.0f} / {p95:.0f} ms at {slow:.2f}x"
                name = f"{path.stem[:2]} in JupyterLab, {control}: key -> pixels"
                yield Row(name, ours, target=f"p95 {FRAME_MS} ms at 1x", ok=bool(p95 <= FRAME_MS * slow))


def sections():
    """What is measured, in order: name -> a function that gives its rows."""
    beside = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path != Path(__file__))
    found = {"solver": solver, "batches": batches, "naive training": naive_training}
    found |= {f"room {name}": functools.partial(room, name) for name in beside} | {"imports": imports}
    for profile, limit in (("quick", 30), ("standard", 120)):
        for path in notebooks("solutions"):
            found[f"{path.stem}, {profile}"] = functools.partial(lesson, path, profile, limit)
    return found | {"browser": in_browser}


def measured(section, code, seed):
    """The rows of a section, as text for the cache of the sweep; ``code`` is what they are of."""
    return json.dumps([asdict(row) for row in sections()[section]()])


def version():
    """A checksum of all code and all lessons."""
    files = (path for folder in ("labkit", "tests", "solutions", "lessons") for path in (ROOT / folder).rglob("*.*"))
    texts = (path.read_bytes() for path in sorted(files) if path.suffix in (".py", ".ipynb"))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def rows(folder):
    """All rows; those that are in the folder are not measured again."""
    for section in sections():
        found = sweep.run(measured, {"section": [section], "code": [version()]}, cache=folder, progress=False)
        yield from (Row(**row) for row in json.loads(str(found["value"][0])))


def main(arguments):
    if set(arguments) - {"--anew"}:
        print(f"the only option is --anew, got {' '.join(arguments)}", file=sys.stderr)
        return 2
    folder = home() / "bench"
    if arguments:
        shutil.rmtree(folder, ignore_errors=True)
    torch.set_num_threads(1)
    print(f"This core now: {slowness():.2f} x the time of the reference core.")
    print("Times are medians or the least of several, or p50 / p95 / max.\n")
    judged = [row.ok for row in report.show(Row("what", "ours", "naive", "ratio", "promised"), rows(folder))]
    judged = [ok for ok in judged if ok is not None]
    print(f"\n{sum(judged)} of {len(judged)} promises kept.")
    shutil.rmtree(folder, ignore_errors=True)  # the next run measures anew
    return int(not all(judged))


if __name__ == "__main__":
    sys.exit(report.run(main))
