"""Panels: pictures that answer sliders. The only display path of the course.

A :class:`Panel` joins four things: ``controls`` give ``values``; ``compute(values)`` turns them into a result, purely;
``draw(figure, result)`` puts the result into the picture through the keyed functions of :mod:`labkit.plots`;
``alt(values, result)`` says in one sentence what is to be seen. The figure is drawn once; a move repaints only what
``draw`` touched over a cached background, so a slider answers while it is dragged. The sentence is printed under the
picture and is its alternative text. Without a kernel a saved panel still shows its picture.

>>> from labkit import Panel, Slider, plots
>>> def draw(figure, result):
...     ax = figure.axes[0] if figure.axes else figure.add_subplot(xlim=(0, 1), ylim=(0, 1))
...     plots.now(ax, "here", result, result**2)
>>> panel = Panel(lambda v: v["x"], draw, lambda v, r: f"x² = {r**2:g}", [Slider("x", 0, 1, 0.5)])
>>> panel.set(x=0.9)
>>> panel.text
'x² = 0.81'
"""

import asyncio
import base64
import html
import inspect
import io
import itertools
import math
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache

import ipywidgets as widgets
import numpy as np
import traitlets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from labkit import plots

LIVE, SETTLE, RUN = "live", "settle", "run"
BUDGET_MS = {LIVE: 100, SETTLE: 500, RUN: math.inf}  # control moved -> picture encoded
COMPUTE_BUDGET_MS = {LIVE: 30, SETTLE: 500, RUN: math.inf}
QUIET_SECONDS = 0.25  # after the last move; then the picture sent while moving is replaced by a sharp one
ENCODING = {  # a JPEG without color subsampling takes a quarter of the time of a PNG, and half the bytes
    "jpeg": {"quality": 90, "subsampling": 0},
    "png": {"compress_level": 1},
}
WIDTH = "960px"

# Put over what a live panel computes from some of its controls only: the last result is kept, so moving another
# control does not compute it again. Arguments: numbers and words.
remember = lru_cache(maxsize=1)


def _number(value):
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


# --- controls -----------------------------------------------------------------------------------------


class Control(widgets.HBox):
    """What a learner moves: a name (the key in ``values``), a current ``value``, and how it answers.

    ``answer`` is "live" (while dragging), "settle" (on release) or "run" (when the Run button is pressed).
    """

    value = traitlets.Any()

    def __init__(self, name, value, answer, children):
        if answer not in BUDGET_MS:
            raise ValueError(f"answer of {name!r} must be 'live', 'settle' or 'run', got {answer!r}")
        self.name, self.answer, self.initial = name, answer, value
        super().__init__(children, value=value, layout=widgets.Layout(width="375px"))
        self.add_class("labkit-control")
        self.add_class(f"labkit-control-{name}")

    def drag(self, value):
        """Go to one of ``stops`` the way a learner does, by the part that is drawn."""
        self.value = value

    def refuse(self, value):
        """Raise ValueError when this control cannot have the value."""
        if value not in self.stops:
            raise ValueError(f"{self.name} must be one of {self.stops}, got {value!r}")


class Slider(Control):
    """A slider with ``count`` evenly spaced stops from low to high, and a box for any value between.

    label is the symbol shown; help says what it is, in the tooltip. A whole-number slider has ``step=1``.
    """

    def __init__(self, name, low, high, value, *, step=None, label=None, help="", answer=LIVE):
        if not low < high:
            raise ValueError(f"{name}: low must be below high, got {low} and {high}")
        count = 101 if step is None else round((high - low) / step) + 1
        stops = np.linspace(low, high, count) if step is None else low + step * np.arange(count)
        whole = isinstance(step, int) and isinstance(low, int)
        self._build(name, [int(s) if whole else float(f"{s:.10g}") for s in stops], value, label, help, answer)

    def _build(self, name, stops, value, label, help, answer):
        self.stops, self.whole = stops, isinstance(stops[0], int)
        self.name = name
        self.refuse(value)
        self._handle = widgets.IntSlider(
            value=self._nearest(value),
            min=0,
            max=len(stops) - 1,
            readout=False,
            description=label or name,
            tooltip=help or label or name,
            continuous_update=answer == LIVE,
            style={"description_width": "80px"},
            layout=widgets.Layout(width="285px"),
        )
        self._box = widgets.Text(
            value=_number(value),
            continuous_update=False,
            tooltip=f"type a value from {_number(stops[0])} to {_number(stops[-1])}, then Enter",
            layout=widgets.Layout(width="76px"),
        )
        self._moving = False
        super().__init__(name, value, answer, [self._handle, self._box])
        self._handle.observe(lambda change: self._move(self.stops[change.new]), "value")
        self._box.observe(lambda change: self._typed(change.new), "value")
        self.observe(lambda change: self._follow(change.new), "value")

    def drag(self, value):
        self._handle.value = self.stops.index(value)

    def refuse(self, value):
        if not (isinstance(value, int | float) and self.stops[0] <= value <= self.stops[-1]):
            low, high = _number(self.stops[0]), _number(self.stops[-1])
            raise ValueError(f"{self.name} must lie in [{low}, {high}], got {value!r}")

    def _nearest(self, value):
        return int(np.argmin(np.abs(np.asarray(self.stops) - value)))

    def _typed(self, words):
        try:
            value = float(words.strip().replace("−", "-").replace(",", "."))
        except ValueError:
            value = math.nan
        if not self._moving:
            self._move(self.value if math.isnan(value) else value)

    def _move(self, value):
        if self._moving:
            return
        value = min(max(value, self.stops[0]), self.stops[-1])
        self._moving = True  # first the picture; handle and box follow when it is on its way
        try:
            self.value = round(value) if self.whole else float(value)
        finally:
            self._moving = False
            self._follow(self.value)  # also when nothing changed: a refused entry goes back

    def _follow(self, value):
        if self._moving:
            return
        self._moving = True
        try:
            self._handle.value = self._nearest(value)
            self._box.value = _number(value)
        finally:
            self._moving = False


class LogSlider(Slider):
    """A slider whose stops are evenly spaced in log(value − offset), from offset + low to offset + high.

    With ``whole`` the stops are the whole numbers nearest to those.

    ``LogSlider("lam", 1e-3, 2, 0, offset=-1, zero=True)`` is a scale in 1+λ: λ from −0.999 to 1, and with
    ``zero`` the end λ = −1 itself as the last stop.
    """

    def __init__(
        self,
        name,
        low,
        high,
        value,
        *,
        offset=0.0,
        zero=False,
        whole=False,
        per_decade=20,
        label=None,
        help="",
        answer=LIVE,
    ):
        if not 0 < low < high:
            raise ValueError(f"{name}: a log slider needs 0 < low < high, got {low} and {high}")
        decades = np.log10(high / low)
        exact = np.log10(low) + np.arange(math.floor(decades * per_decade + 1e-9) + 1) / per_decade
        gaps = [float(f"{gap:.3g}") for gap in 10.0**exact]
        gaps = gaps if math.isclose(gaps[-1], high, rel_tol=1e-3) else [*gaps, high]
        stops = [float(f"{offset + gap:.10g}") for gap in gaps]
        if whole:
            stops = sorted({round(stop) for stop in stops})
        self.offset, self.whole = offset, False
        self._build(name, [type(stops[0])(offset), *stops] if zero else stops, value, label, help, answer)

    def _nearest(self, value):
        gaps = np.asarray(self.stops) - self.offset
        tiny = gaps[gaps > 0].min() / 10
        return int(np.argmin(np.abs(np.log(np.maximum(gaps, tiny)) - np.log(max(value - self.offset, tiny)))))


class GridSlider(Slider):
    """A slider with exactly these stops, rising and equally far apart on the page: the values of a shipped grid.

    A number typed into the box goes to the stop nearest to it.
    """

    def __init__(self, name, stops, value, *, label=None, help="", answer=LIVE):
        stops = list(stops)
        if len(stops) < 2 or stops != sorted(set(stops)):
            raise ValueError(f"{name}: a grid slider needs two or more rising stops, got {stops}")
        self._build(name, stops, value, label, help, answer)

    def refuse(self, value):
        Control.refuse(self, value)

    def _move(self, value):
        super()._move(self.stops[self._nearest(value)])


class Choice(Control):
    """Buttons, one of which is chosen: options is a list of words, or a dict words -> value."""

    def __init__(self, name, options, value=None, *, label=None, help="", answer=LIVE):
        pairs = list(options.items()) if isinstance(options, dict) else [(str(option), option) for option in options]
        self.stops = [option for _, option in pairs]
        value = self.stops[0] if value is None else value
        if value not in self.stops:
            raise ValueError(f"{name} must start as one of {self.stops}, got {value!r}")
        self._buttons = widgets.ToggleButtons(
            options=pairs,
            value=value,
            description=label or name,
            tooltips=[help] * len(pairs),
            style={"description_width": "80px", "button_width": "auto"},
        )
        super().__init__(name, value, answer, [self._buttons])
        traitlets.link((self._buttons, "value"), (self, "value"))


# --- the picture --------------------------------------------------------------------------------------


class _Stage:
    """One Agg figure, painted from a cache: the axes, and on them what did not change since the frame before.

    What may change is what the keyed functions of :mod:`labkit.plots` made, painted in the order of zorder. The cache
    holds the axes and the longest run, from the bottom, of artists that stayed as they were; what lies on top is drawn
    anew. So a map costs nothing while only the dot on it moves.
    """

    def __init__(self, setup, draw, figsize):
        self._draw, self._setup = draw, setup
        self.figure = Figure(figsize=figsize, dpi=100, layout="constrained")
        self.canvas = FigureCanvasAgg(self.figure)
        self._frame = self._background = self._cache = None
        self._cached = []

    def paint(self, result):
        """Show result; returns the picture as a PIL image."""
        if self._frame is None:
            with plots.style():
                self._setup(self.figure)
                if self.figure.axes:  # the labels of contours need the axes where they will be
                    self.figure.get_layout_engine().execute(self.figure)
                self._draw(self.figure, result)
        else:
            self._draw(self.figure, result)
        axes = [part for ax in self.figure.axes for part in (ax, *ax.child_axes)]  # insets are children
        moving = [(ax, a) for ax in axes for a in ax.get_children() if a.get_gid() is not None]
        moving.sort(key=lambda pair: pair[1].get_zorder())
        frame = [(*ax.viewLim.extents, ax.get_xscale(), ax.get_yscale(), ax.get_title("left")) for ax in axes]
        if frame != self._frame:
            self._repaint_background([artist for _, artist in moving])
            self._frame = frame
        still = list(itertools.takewhile(lambda pair: not pair[1].stale, moving))
        if still != self._cached:
            self._show(self._background, still)
            self._cache, self._cached = self.canvas.copy_from_bbox(self.figure.bbox), still
        self._show(self._cache, moving[len(still) :])
        return Image.frombuffer("RGBA", self.canvas.get_width_height(), self.canvas.buffer_rgba()).convert("RGB")

    def _show(self, below, artists):
        self.canvas.restore_region(below)
        for ax, artist in artists:
            ax.draw_artist(artist)
            artist.stale = False  # an empty text would stay stale

    def _repaint_background(self, moving):
        shown = [artist.get_visible() for artist in moving]
        for artist in moving:
            artist.set_visible(False)
        self.canvas.draw()
        for artist, visible in zip(moving, shown, strict=True):
            artist.set_visible(visible)
        self._background = self._cache = self.canvas.copy_from_bbox(self.figure.bbox)
        self._cached = []


class _Picture(widgets.Image):
    """The picture; its tooltip is the sentence, which assistive technology reads: core's Image has no alt.

    The frontend looks up the description of whatever has a tooltip, and core's Image has none: without this trait
    an Image with a tooltip cannot be displayed (ipywidgets 8.1).
    """

    description = traitlets.Unicode("").tag(sync=True)


# --- the panel ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Challenge:
    """A goal to reach with the sliders: ``met(values, result)`` is asked after every move."""

    text: str
    met: object


@dataclass(frozen=True)
class Probe:
    """What :meth:`Panel.probe` saw: number of moves, and p50 / p95 / max milliseconds by kind of control."""

    moves: int
    milliseconds: dict
    compute_milliseconds: dict


class Panel(widgets.VBox):
    """A picture, its sentence and its controls.

    compute : values -> result. Pure: no drawing, no state. With a control that answers "run" it may take a second
        argument, ``progress``, and loop over ``progress(items)``: the panel shows a bar with the time left.
    draw : (figure, result). Updates the picture through the keyed functions of :mod:`labkit.plots`.
    alt : (values, result) -> one sentence, the alternative text and the printed read-out.
    controls : sliders and choices, shown in this order.
    setup : figure -> None, called once before the first ``draw``: axes, labels, whatever never moves.
    challenge : optional :class:`Challenge`.
    refine : optional, (values, result) -> iterator of results, each with more in it than the one before: what is too
        slow for a slider, such as the dots of a simulation beside its curve. It is asked for them one by one (50 ms
        each are a good length) once nothing has moved for a while, and dropped as soon as something moves.

    Raises whatever compute, draw or alt raise, after showing it: a panel never hides an error.
    """

    def __init__(self, compute, draw, alt, controls=(), *, setup=None, figsize=(9.6, 4.3), challenge=None, refine=None):
        names = [control.name for control in controls]
        if len(set(names)) < len(names):
            raise ValueError(f"two controls share a name: {names}")
        self._compute, self._alt, self.challenge = compute, alt, challenge
        self._refine, self._steps = refine or (lambda values, result: ()), iter(())
        self._takes_progress = len(inspect.signature(compute).parameters) > 1
        self._stage = _Stage(setup or (lambda figure: None), draw, figsize)
        self.controls = {control.name: control for control in controls}
        self.result, self.text, self.seconds = None, "", {}
        self._busy = self._stale = False
        self._picture = self._next = None
        self._ran, self._challenge_met_at = self._waiting(), None

        whole = widgets.Layout(width="100%", max_width=f"{100 * figsize[0]:.0f}px", margin="0")  # no scroll bar
        self._image = _Picture(format="png", layout=whole)
        self._readout, self._error, self._goal = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._bar = widgets.FloatProgress(min=0, max=1, layout=widgets.Layout(width="370px", display="none"))
        self._run = widgets.Button(description="Run", icon="play", tooltip="compute with the settings above")
        self._reset = widgets.Button(description="Reset", icon="undo", tooltip="all controls back to the start")
        self._run.on_click(lambda _: self.run())
        self._reset.on_click(lambda _: self.reset())
        for part, name in (
            (self._image, "figure"),
            (self._readout, "readout"),
            (self._error, "error"),
            (self._goal, "challenge"),
            (self._reset, "reset"),
            (self._run, "run"),
        ):
            part.add_class(f"labkit-{name}")
        super().__init__(self._parts(), layout=widgets.Layout(max_width=WIDTH))
        self.add_class("labkit-panel")
        for control in controls:
            control.observe(lambda change: self._changed(change.owner), "value")
        self._show()

    def _parts(self):
        buttons = [self._run] if self._ran else []
        below = [widgets.Box(list(self.controls.values()), layout=widgets.Layout(flex_flow="row wrap"))]
        below += [widgets.HBox([*buttons, self._reset, self._bar])] if self.controls else []
        return [self._image, self._readout, self._error, *([self._goal] if self.challenge else []), *below]

    @property
    def values(self):
        """What the controls say now: name -> value."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def png(self):
        """The picture as bytes of a PNG file."""
        return _encoded(self._picture, "png")

    def set(self, **values):
        """Move several controls, then redraw once. ValueError, and nothing moves, when one cannot go there."""
        unknown = set(values) - set(self.controls)
        if unknown:
            raise ValueError(f"no control is called {sorted(unknown)}; there are {sorted(self.controls)}")
        for name, value in values.items():
            self.controls[name].refuse(value)
        before, self._busy = self.values, True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._busy = self._stale = False
        if self.values != before:
            self.run()

    def reset(self):
        """All controls back to where they started."""
        self.set(**{name: control.initial for name, control in self.controls.items()})

    def run(self):
        """Compute with the present settings (what the Run button does)."""
        before, self._ran = self._ran, self._waiting()
        try:
            self._show()
        except BaseException:  # the Stop button of the notebook too
            self._ran = before
            self._say(self.text)
            raise

    def _waiting(self):
        """What the controls say that take effect when Run is pressed."""
        return {name: control.value for name, control in self.controls.items() if control.answer == RUN}

    def _changed(self, control):
        if self._busy:
            self._stale = True  # latest value wins: whoever is drawing now draws once more at the end
        elif control.answer == RUN:
            self._say(self.text)
        else:
            self._show(control.answer)

    def _show(self, answer=RUN):
        self._busy = True
        slow = answer != LIVE and self.text
        try:
            if slow:
                self._say(f"{self.text} ⏳")
            with self._showing_errors():
                self._stale = True
                while self._stale:
                    self._stale = False
                    self._frame("jpeg" if answer == LIVE else "png")
        finally:
            self._busy = False
            self._bar.layout.display = "none"
            if self.text:
                self._say(self.text)

    @contextmanager
    def _showing_errors(self):
        try:
            yield
            self._error.value = ""
        except Exception as error:
            self._error.value = (
                "<div role='alert' style='color:#b3261e;font-weight:600'>⚠ This setting cannot be shown: "
                f"{html.escape(str(error) or type(error).__name__)} — the picture is the last one that could.</div>"
            )
            raise

    def _frame(self, format="png"):
        if self._next:
            self._next.cancel()
        values, clock = self.values | self._ran, time.perf_counter
        start = clock()
        result = self._compute(values, self._progress) if self._takes_progress else self._compute(values)
        computed = clock()
        self._paint(values, result)
        drawn = clock()
        self._steps = iter(self._refine(values, result))
        self._deliver(format)
        self.seconds = {"compute": computed - start, "draw": drawn - computed, "encode": clock() - drawn}
        if self.challenge:
            self._judge(values, result)

    def _paint(self, values, result):
        text, picture = self._alt(values, result), self._stage.paint(result)
        self.result, self.text, self._picture = result, text, picture

    def _deliver(self, format):
        """Bring the picture to the page: a "jpeg" now, where a sharp one can follow by itself, or a "png"."""
        loop = _running_loop()
        self._next = loop and loop.call_later(QUIET_SECONDS, self._when_quiet, format)
        self._send_picture(format if loop else "png")

    def _send_picture(self, format):
        with self._image.hold_sync():
            self._image.value, self._image.format = _encoded(self._picture, format), format
            self._image.tooltip = self.text

    def _when_quiet(self, format):
        """Sharpen the picture, then refine it: a step at a time, so that a move comes through in between."""
        if format != "png":
            self._send_picture("png")
        self._next = self.refine(steps=1) and _running_loop().call_later(0.01, self._when_quiet, "png")

    def refine(self, steps=None):
        """Take so many steps of ``refine``, by default all; returns whether there were any."""
        with self._showing_errors():
            taken = list(itertools.islice(self._steps, steps))
            if taken:
                self._paint(self.values | self._ran, taken[-1])
                self._send_picture("png")
                self._say(self.text)
        return bool(taken)

    def _judge(self, values, result):
        met = bool(self.challenge.met(values, result))
        if met and self._challenge_met_at is None:
            self._challenge_met_at = ", ".join(
                f"{c._handle.description if isinstance(c, Slider) else name} = {_words(values[name])}"
                for name, c in self.controls.items()
            )
        won = self._challenge_met_at is not None
        color, mark = ("#00795a", "★ Challenge met") if won else (plots.GREY, "☆ Challenge")
        since = f" <span>First reached at {html.escape(self._challenge_met_at)}.</span>" if won else ""
        self._goal.value = (
            f"<div role='status' style='border-left:5px solid {color};padding:2px 10px;"
            f"background:{'#00795a22' if met else 'transparent'}'>"
            f"<b style='color:{color}'>{mark}:</b> {html.escape(self.challenge.text)}{since}</div>"
        )

    def _say(self, words):
        words = html.escape(words)
        if self._waiting() != self._ran and not self._busy:
            words += " <em>(The settings have changed: press Run.)</em>"
        self._readout.value = f"<div role='status' aria-live='polite' style='font-size:14px'>{words}</div>"

    def _progress(self, items):
        """Loop over items with a bar and the time left, as tqdm does."""
        items, start, last = list(items), time.perf_counter(), 0.0
        self._bar.value, self._bar.layout.display = 0, "flex"
        for done, item in enumerate(items):
            spent = time.perf_counter() - start
            if spent - last > 0.1:
                self._bar.value, last = done / len(items), spent
                self._bar.description = f"{spent * (len(items) - done) / max(done, 1):.0f} s left"
            yield item

    def _repr_mimebundle_(self, **kwargs):
        self.refine()  # what is saved with the notebook is complete
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**bundle, "text/plain": self.text, "image/png": base64.b64encode(self.png).decode()}

    def probe(self, seed=0, time_factor=1.0, random_positions=8):
        """Visit corners, the middle and random positions, one control at a time, and check every frame.

        Checked: the result is finite, the sentence is not empty, the picture changes whenever the sentence does, every
        control moves the picture somewhere, compute and the whole frame keep their budget times ``time_factor``
        (measured again, up to twice, before it counts), the start looks the same afterwards, no pyplot figure is left
        open. Controls that answer "run" are pressed at their ends only.

        Returns a :class:`Probe`; raises AssertionError listing everything that failed.
        """
        rng, trouble, moved = np.random.default_rng(seed), [], set()
        total, compute = {}, {}
        open_before = _open_figures()
        self.reset()
        self._frame()  # without refinement
        first = self._picture.tobytes()
        challenge_met = self._challenge_met_at is not None
        if self.challenge and challenge_met:
            trouble.append("the challenge is met before anything is moved")
        moves = 0
        for number, target in enumerate(self._positions(rng, random_positions)):
            for name, value in target.items():
                control, text, picture = self.controls[name], self.text, self._picture.tobytes()
                if control.value == value:
                    continue
                moves += 1
                place = f"{name}={_words(value)} at { ({n: _words(v) for n, v in self.values.items()}) }"
                try:
                    control.drag(value)
                    if control.value != value:
                        trouble.append(f"{place}: the control stops at {_words(control.value)} instead")
                    if control.answer == RUN:
                        self.run()
                except Exception as error:
                    trouble.append(f"{place}: {type(error).__name__}: {error}")
                    continue
                if not _finite(self.result):
                    trouble.append(f"{place}: the result is not finite")
                if not (isinstance(self.text, str) and self.text.strip()):
                    trouble.append(f"{place}: the sentence is empty")
                if self._picture.tobytes() != picture:
                    moved.add(name)
                elif self.text != text:
                    trouble.append(f"{place}: the sentence changed and the picture did not")
                for _ in range(2):
                    late = sum(self.seconds.values()) * 1e3 > BUDGET_MS[control.answer] * time_factor
                    if not late and self.seconds["compute"] * 1e3 <= COMPUTE_BUDGET_MS[control.answer] * time_factor:
                        break
                    self._frame("jpeg" if control.answer == LIVE else "png")
                total.setdefault(control.answer, []).append(sum(self.seconds.values()) * 1e3)
                compute.setdefault(control.answer, []).append(self.seconds["compute"] * 1e3)
            if number % 16 == 0:
                self.refine()
                if not _finite(self.result):
                    trouble.append(f"{self.values}: the refined result is not finite")
        trouble += [f"{name} never changes the picture" for name in self.controls if name not in moved]
        for times, budget, what in ((total, BUDGET_MS, "frame"), (compute, COMPUTE_BUDGET_MS, "compute")):
            for answer, spent in times.items():
                if (worst := float(np.quantile(spent, 0.95))) > budget[answer] * time_factor:
                    trouble.append(f"{answer}: {what} p95 {worst:.0f} ms, budget {budget[answer]} × {time_factor:.1f}")
        self.reset()
        if self._picture.tobytes() != first:
            trouble.append("after a tour the start looks different")
        if _open_figures() != open_before:
            trouble.append("a pyplot figure was left open")
        if not challenge_met:
            self._challenge_met_at = None
            self._frame()
        assert not trouble, f"{len(trouble)} problem(s):\n" + "\n".join(trouble)
        return Probe(moves, *({a: _summary(t) for a, t in times.items()} for times in (total, compute)))

    def _positions(self, rng, random_positions):
        quick = {n: c.stops for n, c in self.controls.items() if c.answer != RUN}
        slow = {n: c.stops for n, c in self.controls.items() if c.answer == RUN}
        ends = list(itertools.product(*((s[0], s[-1]) for s in quick.values())))
        ends = ends if len(ends) <= 64 else [ends[i] for i in rng.choice(len(ends), 64, replace=False)]
        spots = [*ends, tuple(s[len(s) // 2] for s in quick.values())]
        spots += [tuple(s[rng.integers(len(s))] for s in quick.values()) for _ in range(random_positions)]
        yield from (dict(zip(quick, spot, strict=True)) for spot in spots)
        for name, stops in slow.items():
            yield from ({name: stops[0]}, {name: stops[-1]})


def _encoded(picture, format):
    buffer = io.BytesIO()
    picture.save(buffer, format, **ENCODING[format])
    return buffer.getvalue()


def _running_loop():
    """The event loop of the kernel, None in a plain Python program."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _summary(times):
    return tuple(round(float(t), 1) for t in np.quantile(times, (0.5, 0.95, 1)))


def _words(value):
    return _number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _open_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    return pyplot.get_fignums() if pyplot else []


def _finite(result):
    """Whether every number inside result (nested containers, arrays, tensors) is finite."""
    if isinstance(result, dict):
        return all(map(_finite, result.values()))
    if isinstance(result, np.ndarray) and result.dtype.kind in "UO":  # words, or anything
        return _finite(result.tolist())
    if isinstance(result, list | tuple):
        return all(map(_finite, result))
    if is_dataclass(result):
        return all(_finite(getattr(result, field.name)) for field in fields(result))
    if result is None or isinstance(result, str | bytes | bool):
        return True
    return bool(np.isfinite(plots.numbers(result)).all())


# --- predict before you move --------------------------------------------------------------------------


class Prediction(widgets.VBox):
    """A question to answer before anything moves; the reveal quotes what the learner chose.

    choices : words to choose from; answer : the right one, verbatim; reveal : why, shown afterwards.
    """

    def __init__(self, question, choices, answer, reveal):
        strange = [choice for choice in choices if not isinstance(choice, str)]
        if strange:
            raise ValueError(f"choices must be words, got {strange[0]!r}")
        if answer not in choices:
            raise ValueError(f"answer must be one of the choices {list(choices)}, got {answer!r}")
        self.question, self.answer, self.reveal = question, answer, reveal
        self._radio = widgets.RadioButtons(options=list(choices), value=None, layout=widgets.Layout(width="auto"))
        self._button = widgets.Button(
            description="Reveal", icon="eye", disabled=True, tooltip="choose first, then see what happens"
        )
        self._verdict = widgets.HTML()
        self._radio.observe(lambda _: setattr(self._button, "disabled", False), "value")
        self._button.on_click(lambda _: self._open())
        ask = widgets.HTML(f"<div style='font-size:15px'><b>Predict.</b> {html.escape(question)}</div>")
        super().__init__([ask, self._radio, self._button, self._verdict], layout=widgets.Layout(max_width=WIDTH))
        self.add_class("labkit-prediction")

    @property
    def choice(self):
        """What the learner chose, or None so far."""
        return self._radio.value

    def _open(self):
        right = self.choice == self.answer
        verdict = "That is what happens." if right else f"What happens is “{self.answer}”."
        self._radio.disabled = self._button.disabled = True
        self._verdict.value = (
            f"<div role='status' style='border-left:5px solid {plots.GREEN if right else plots.RED};padding:2px 10px;"
            f"font-size:14px'>You predicted “{html.escape(self.choice)}”. {html.escape(verdict)} "
            f"{html.escape(self.reveal)}</div>"
        )

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**bundle, "text/plain": f"Predict. {self.question} " + " / ".join(self._radio.options)}
