"""Panels in plain Python: what a kernel does between a moved slider and a new picture."""

import asyncio
import base64
import math
import time
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from labkit import plots
from labkit.panel import Challenge, Choice, GridSlider, LogSlider, Panel, Prediction, Slider


def setup(figure):
    left, right = figure.subplots(1, 2)
    plots.frame(left, "A wave", "x", "y", xlim=(0, 1), ylim=(-2, 2))
    plots.frame(right, "A map", "x", "y", xlim=(0, 1), ylim=(0, 1))


def wave(values):
    x = np.linspace(0, 1, 60)
    return {
        "x": x,
        "y": values["height"] * np.sin(values["waves"] * x),
        "map": np.outer(x, x) * values["height"] / 2,
    }


def draw(figure, result):
    left, right = figure.axes
    plots.line(left, "wave", result["x"], result["y"])
    plots.now(left, "now", result["x"][30], result["y"][30])
    plots.image(right, "map", np.repeat(result["map"][..., None], 3, axis=-1), (0, 1, 0, 1))
    plots.contours(right, "levels", result["x"], result["x"], result["map"], (0.1, 0.3))


def sentence(values, result):
    return f"{values['waves']} half waves, largest value {np.abs(result['y']).max():.4f}"


def make(waves=3, height=1.0, compute=wave, draw=draw, alt=sentence, **kwargs):
    controls = [Slider("waves", 1, 9, waves, step=1), LogSlider("height", 0.1, 2, height, answer="settle")]
    return Panel(compute, draw, alt, controls, setup=kwargs.pop("setup", setup), **kwargs)


# --- controls


def test_log_slider_in_one_plus_lam_ends_in_exactly_minus_one():
    lam = LogSlider("lam", 1e-3, 2, 0, offset=-1, zero=True)
    assert lam.stops[0] == -1 and lam.stops[1] == -0.999 and lam.stops[-1] == 1
    assert {-0.99, -0.9, 0.0} <= set(lam.stops)
    gaps = np.diff(np.log10(1 + np.array(lam.stops[1:])))
    assert gaps.max() < 1.2 / 20 and gaps.min() > 0
    lam._handle.value = 0
    assert lam.value == -1 and lam._box.value == "-1"


@pytest.mark.parametrize("offset", [-1, 0])
def test_every_stop_of_a_log_slider_is_reached_by_its_handle(offset):
    slider = LogSlider("k", 1e-3, 2, offset + 1, offset=offset, zero=True)  # a whole offset makes no whole slider
    for index, stop in enumerate(slider.stops):
        slider._handle.value = index
        assert slider.value == stop and slider._handle.value == index


def test_a_whole_log_slider_has_whole_stops_and_rounds_what_is_typed():
    slider = LogSlider("k", 1, 1000, 1000, whole=True)
    assert slider.stops[:6] == [1, 2, 3, 4, 5, 6] and slider.stops[-1] == 1000
    assert all(isinstance(stop, int) for stop in slider.stops) and slider.stops == sorted(set(slider.stops))
    slider._box.value = "12.7"
    assert slider.value == 13 and isinstance(slider.value, int)
    zero = LogSlider("k", 1, 10, 0, zero=True, whole=True)
    assert zero.stops[:3] == [0, 1, 2] and isinstance(zero.value, int)


@pytest.mark.parametrize(("stops", "typed", "kept"), [([-0.99, 0, 0.9], "0.4", 0), ([40, 80], "75.5", 80)])
def test_a_grid_slider_has_no_value_between_its_stops(stops, typed, kept):
    slider = GridSlider("k", stops, stops[-1])
    for index, stop in enumerate(stops):
        slider._handle.value = index
        assert slider.value == stop and slider._handle.value == index
    slider._box.value = typed
    assert slider.value == kept and type(slider.value) is type(stops[0]) and slider._box.value == str(kept)
    with pytest.raises(ValueError, match="must be one of"):
        slider.refuse((stops[0] + stops[1]) / 2)


def test_slider_handle_box_and_value_follow_each_other():
    slider = LogSlider("c", 1e-3, 10, 1e-1)
    slider._handle.value = 0
    assert slider.value == 1e-3 and slider._box.value == "0.001"
    slider._box.value = "0,0316"  # a decimal comma is understood
    assert slider.value == 0.0316 and slider.stops[slider._handle.value] == 0.0316
    slider.value = 5.0
    assert slider._box.value == "5" and abs(math.log10(slider.stops[slider._handle.value] / 5)) < 0.026


@pytest.mark.parametrize(
    ("typed", "kept"),
    [("abc", 4), ("nan", 4), ("", 4), ("99", 9), ("-3", 1), ("6.7", 7), ("inf", 9), ("−2", 1)],
)
def test_typed_values_are_kept_in_range_or_put_back(typed, kept):
    slider = Slider("n", 1, 9, 4, step=1)
    slider._box.value = typed
    assert slider.value == kept and isinstance(slider.value, int)
    assert slider._box.value == str(kept) and slider.stops[slider._handle.value] == kept


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Slider("n", 5, 1, 3),
        lambda: Slider("n", 1, 5, 9),
        lambda: Slider("n", 1, 5, "x"),
        lambda: LogSlider("c", 0, 1, 0.5),
        lambda: GridSlider("c", [3], 3),
        lambda: GridSlider("c", [0.3, 0.03], 0.3),
        lambda: GridSlider("c", [0.03, 0.3], 0.1),
        lambda: Slider("n", 1, 5, 3, answer="later"),
        lambda: Choice("k", ["a", "b"], "z"),
        lambda: Prediction("?", ["a", "b"], "z", "because"),
        lambda: Prediction("?", [1, 2], 1, "because"),
        lambda: Panel(lambda v: 0, lambda f, r: None, lambda v, r: "", [Slider("n", 1, 5, 3), Slider("n", 1, 5, 3)]),
        lambda: make().set(missing=3),
    ],
)
def test_mistakes_of_an_author_are_refused(bad):
    with pytest.raises(ValueError):
        bad()


def test_choice_gives_the_value_behind_the_words():
    choice = Choice("init", {"small": 1e-3, "large": 1.0})
    choice._buttons.value = 1.0
    assert choice.value == 1.0


# --- frames


def pixels(panel):
    return np.asarray(Image.open(BytesIO(panel.png)).convert("RGB")).astype(int)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def test_while_moving_a_jpeg_then_a_png_when_all_is_quiet():
    """With a running event loop, as in a kernel; without one the picture is a PNG at once."""
    panel = make()

    async def hold_the_key():
        for waves in (4, 5, 6):
            panel.controls["waves"].drag(waves)
            assert panel._image.format == "jpeg" and panel._image.value[:2] == b"\xff\xd8"
            await asyncio.sleep(0.02)
        moving = np.asarray(Image.open(BytesIO(panel._image.value))).astype(int)
        assert np.abs(moving - pixels(panel)).mean() < 1  # nobody sees the difference
        await until(lambda: panel._image.format == "png")
        assert panel._image.value == panel.png
        panel.reset()
        assert panel._image.format == "png"

    asyncio.run(hold_the_key())
    panel.controls["waves"].drag(7)
    assert panel._image.format == "png" and panel._image.value == panel.png


def growing(values, result):
    for count in (1, 2, 3):
        yield result | {"dots": count}


def refined(**more):
    def show(figure, result):
        draw(figure, result)
        plots.dots(figure.axes[0], "dots", [0.5] * result.get("dots", 0), range(result.get("dots", 0)))

    def tell(values, result):
        return f"{values['waves']} waves, {result.get('dots', 0)} dots"

    controls = [Slider("waves", 1, 20, 3, step=1), Slider("height", 0, 2, 1)]
    return Panel(wave, show, tell, controls, setup=setup, **{"refine": growing} | more)


def test_refinement_comes_when_all_is_quiet_and_goes_when_something_moves():
    panel = refined()

    async def wait_then_move():
        panel.controls["waves"].drag(4)
        assert panel.text == "4 waves, 0 dots"
        await until(lambda: panel.text == "4 waves, 3 dots")
        assert panel._image.value == panel.png and "3 dots" in panel._readout.value
        panel.controls["waves"].drag(5)
        for _ in range(3):  # the second and third move drop what the one before had begun
            await until(lambda: panel.text.endswith("1 dots"))
            panel.controls["waves"].drag(panel.values["waves"] + 1)
            assert panel.text == f"{panel.values['waves']} waves, 0 dots"
        await until(lambda: panel.text == "8 waves, 3 dots")

    asyncio.run(wait_then_move())
    assert panel.probe(time_factor=9).moves


def test_a_saved_panel_is_refined_and_an_error_on_the_way_is_shown_and_raised():
    panel = refined()
    assert panel._repr_mimebundle_()["text/plain"] == "3 waves, 3 dots"
    assert panel.probe(time_factor=9).moves  # not confused by what was refined before

    def failing(values, result):
        yield result | {"dots": 1}
        raise ValueError("too few samples")

    panel = refined(refine=failing)
    assert panel.refine(steps=1) and panel.text == "3 waves, 1 dots"
    with pytest.raises(ValueError, match="too few"):
        panel.refine()
    assert "too few samples" in panel._error.value
    panel.set(waves=4)
    assert panel._error.value == ""


def test_only_what_changed_is_drawn_again():
    """Below the dot that moves nothing is drawn, however often it moves; what changes takes all above it along."""
    drawn = []

    def draw(figure, result):
        ax = figure.axes[0] if figure.axes else figure.add_subplot(xlim=(0, 1), ylim=(0, 1))
        for key, height in (("low", 0.2), ("high", result[1])):
            artist = plots.line(ax, key, [0, 1], [height, height])
            artist.draw = lambda renderer, key=key, line=artist: (drawn.append(key), type(line).draw(line, renderer))
        plots.now(ax, "here", result[0], 0.5)

    controls = [Slider("x", 0, 1, 0.5), Slider("y", 0, 1, 0.5)]
    panel = Panel(lambda v: (v["x"], v["y"]), draw, lambda v, r: f"{r}", controls)
    panel.set(x=0.6)  # now the cache holds both lines
    for setting, expected in (
        ({"x": 0.7}, []),
        ({"x": 0.8}, []),
        ({"y": 0.7}, ["low", "high"]),
        ({"y": 0.8}, ["high"]),
    ):
        drawn.clear()
        panel.set(**setting)
        assert drawn == expected, setting
    born = Panel(lambda v: (0.8, 0.8), draw, lambda v, r: f"{r}")
    assert (pixels(panel) == pixels(born)).all()


def test_a_moved_panel_looks_exactly_like_one_that_started_there():
    moved = make()
    for place in ({"waves": 9}, {"height": 0.2}, {"waves": 5, "height": 1.7}):
        moved.set(**place)
    born = make(waves=5, height=1.7)
    assert moved.text == born.text
    assert np.abs(pixels(moved) - pixels(born)).max() == 0


def test_a_changed_axis_is_redrawn_in_full():
    def rescale(figure, result):
        plots.line(figure.axes[0], "wave", result["x"], result["y"])
        figure.axes[0].set_ylim(-result["y"].max() - 0.1, result["y"].max() + 0.1)

    moved, born = make(draw=rescale), make(height=0.3, draw=rescale)
    moved.set(height=0.3)
    assert np.abs(pixels(moved) - pixels(born)).max() == 0


def test_reset_brings_the_first_picture_back_to_the_byte():
    panel = make()
    first = panel.png
    panel.set(waves=8, height=0.5)
    assert panel.png != first
    panel._reset.click()
    assert panel.png == first and panel.values == {"waves": 3, "height": 1.0}


def test_set_moves_all_controls_and_computes_once():
    calls = []
    panel = make(compute=lambda v: calls.append(dict(v)) or wave(v))
    panel.set(waves=7, height=0.4)
    assert calls == [{"waves": 3, "height": 1.0}, {"waves": 7, "height": 0.4}]


def test_latest_value_wins():
    calls = []

    def compute(values):
        calls.append(values["waves"])
        if values["waves"] == 4:  # three more moves arrive while this frame is being computed
            for waves in (5, 6, 7):
                panel.controls["waves"].value = waves
        return wave(values)

    panel = make(compute=compute)
    panel.controls["waves"].value = 4
    assert calls == [3, 4, 7] and panel.text.startswith("7 ")


def test_an_error_is_shown_and_raised_and_gone_after_the_next_good_frame():
    def compute(values):
        if values["waves"] == 5:
            raise ValueError("waves must not be <5>")
        return wave(values)

    panel = make(compute=compute)
    before = panel.png
    with pytest.raises(ValueError, match="waves must not be"):
        panel.controls["waves"]._handle.value = 4
    assert "waves must not be &lt;5&gt;" in panel._error.value and "role='alert'" in panel._error.value
    assert panel.png == before and "⏳" not in panel._readout.value
    panel.set(waves=6)
    assert panel._error.value == "" and panel.text.startswith("6 ")


def test_a_panel_that_cannot_start_raises():
    with pytest.raises(ZeroDivisionError):
        make(compute=lambda values: 1 / 0)


def test_saved_without_a_kernel_it_shows_picture_and_words():
    panel = make()
    bundle = panel._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]) == panel.png
    assert bundle["text/plain"] == panel.text
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_the_sentence_is_alternative_text_and_visible_text():
    panel = make(alt=lambda values, result: "fewer than < 3 & more")
    assert panel._repr_mimebundle_()["text/plain"] == panel._image.tooltip == "fewer than < 3 & more"
    assert "description" in panel._image.keys  # without it the frontend cannot draw an Image with a tooltip
    assert "fewer than &lt; 3 &amp; more" in panel._readout.value and "aria-live='polite'" in panel._readout.value


def test_a_static_figure_is_a_panel_without_controls():
    def still(figure, result):
        plots.line(figure.axes[0] if figure.axes else figure.add_subplot(), "l", [0, 1], [0, result])

    panel = Panel(lambda values: 2.0, still, lambda values, result: f"a line up to {result:g}")
    assert panel.text == "a line up to 2" and panel.probe().moves == 0
    assert panel._reset not in panel.children


def test_run_controls_wait_for_the_button_and_show_progress():
    def compute(values, progress):
        return sum(time.sleep(0.06) or step for step in progress(range(values["steps"])))

    def still(figure, result):
        plots.now(figure.axes[0] if figure.axes else figure.add_subplot(xlim=(0, 50)), "n", result, 0)

    panel = Panel(compute, still, lambda v, r: f"sum {r}", [Slider("steps", 1, 9, 3, step=1, answer="run")])
    assert panel.text == "sum 3" and panel._run in panel.children[-1].children
    panel.controls["steps"]._handle.value = 5
    assert panel.text == "sum 3" and "press Run" in panel._readout.value
    seen = []
    panel._bar.observe(lambda change: seen.append(change.new), "value")
    panel._run.click()
    assert panel.text == "sum 15" and "press Run" not in panel._readout.value
    assert seen == sorted(seen) and 0 < max(seen) <= 1 and panel._bar.layout.display == "none"


def pending(steps=3, compute=None):
    """A panel with a live and a run control."""

    def still(figure, result):
        plots.now(figure.axes[0] if figure.axes else figure.add_subplot(xlim=(0, 50)), "n", sum(result), 0)

    controls = [Slider("steps", 1, 9, steps, step=1, answer="run"), Slider("shift", 0, 9, 0, step=1)]
    return Panel(compute or (lambda v: (v["steps"], v["shift"])), still, lambda v, r: f"{r}", controls)


def test_a_live_control_does_not_run_what_waits_for_the_button():
    panel = pending()
    panel.controls["steps"]._handle.value = 6
    panel.controls["shift"]._handle.value = 2
    assert panel.text == "(3, 2)" and "press Run" in panel._readout.value
    panel.controls["steps"]._handle.value = 2  # back where it was: nothing waits any more
    assert "press Run" not in panel._readout.value
    panel.set(steps=9)
    assert panel.text == "(9, 2)" and "press Run" not in panel._readout.value


def test_a_run_that_was_stopped_still_waits():
    def compute(values):
        if values["steps"] == 9:
            raise KeyboardInterrupt
        return values["steps"], values["shift"]

    panel = pending(compute=compute)
    panel.controls["steps"]._handle.value = 8
    with pytest.raises(KeyboardInterrupt):
        panel.run()
    assert panel.text == "(3, 0)" and "press Run" in panel._readout.value
    panel.controls["shift"]._handle.value = 1
    assert panel.text == "(3, 1)"


@pytest.mark.parametrize("bad", [{"height": 3}, {"height": math.nan}, {"height": "a"}, {"waves": 5, "height": 0}])
def test_set_refuses_what_a_control_cannot_be_and_moves_nothing(bad):
    panel = make()
    with pytest.raises(ValueError, match=r"height must lie in \[0.1, 2\], got"):
        panel.set(**bad)
    assert panel.values == {"waves": 3, "height": 1.0}


# --- challenge and prediction


def test_challenge_lights_up_and_remembers():
    panel = make(challenge=Challenge("Make it <small>.", lambda v, r: np.abs(r["y"]).max() < 0.2))
    assert "☆" in panel._goal.value and "&lt;small&gt;" in panel._goal.value
    panel.set(height=0.1)
    assert "★" in panel._goal.value and "height = 0.1" in panel._goal.value
    panel.reset()
    assert "★" in panel._goal.value


def test_prediction_needs_a_choice_and_quotes_it():
    prediction = Prediction("Up or down?", ["up", "down"], "up", "Because it grows.")
    assert prediction.choice is None and prediction._button.disabled
    prediction._radio.value = "down"
    assert not prediction._button.disabled
    prediction._button.click()
    assert all(words in prediction._verdict.value for words in ("“down”", "“up”", "Because it grows."))
    assert prediction._radio.disabled
    assert prediction._repr_mimebundle_()["text/plain"] == "Predict. Up or down? up / down"


# --- probe


def test_probe_passes_on_a_good_panel_and_leaves_no_trace():
    panel = make(challenge=Challenge("Make it small.", lambda v, r: np.abs(r["y"]).max() < 0.2))
    report = panel.probe(time_factor=20)
    assert report.moves > 20 and set(report.milliseconds) == {"live", "settle"}
    assert panel.values == {"waves": 3, "height": 1.0} and "☆" in panel._goal.value


@pytest.mark.parametrize("kind", [str, object])
def test_probe_takes_arrays_of_words(kind):
    words = np.array([["from 10", "never"], ["now", "later"]], dtype=kind)
    make(compute=lambda v: wave(v) | {"told": words}).probe(time_factor=20)


def leaves_a_figure_open(figure, result):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    draw(figure, result)
    if len(pyplot.get_fignums()) < 3:
        pyplot.figure()


remembered = []


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"compute": lambda v: wave(v) | {"extra": torch.tensor([1.0, math.nan])}}, "not finite"),
        ({"compute": lambda v: wave(v) | {"extra": [{"deep": math.inf}]}}, "not finite"),
        ({"compute": lambda v: wave(v) | {"extra": np.array(["from 10", math.nan], dtype=object)}}, "not finite"),
        ({"compute": lambda v: wave(v | {"waves": 3})}, "waves never changes the picture"),
        ({"compute": lambda v: time.sleep(0.04) or wave(v)}, "compute p95"),
        ({"alt": lambda v, r: ""}, "sentence is empty"),
        ({"compute": lambda v: 1 / (9 - v["waves"]) and wave(v)}, "ZeroDivisionError"),
        (
            {"compute": lambda v: remembered.append(0) or wave(v | {"waves": len(remembered)})},
            "start looks different",
        ),
        ({"draw": leaves_a_figure_open}, "left open"),
        ({"challenge": Challenge("too easy", lambda v, r: True)}, "met before"),
        ({"alt": lambda v, r: str(time.perf_counter())}, "sentence changed"),
    ],
)
def test_probe_finds_the_fault(fault, complaint):
    panel = make(**fault)
    if complaint == "sentence changed":
        panel._compute = lambda v: wave({"waves": 3, "height": 1.0})
    with pytest.raises(AssertionError, match=complaint):
        panel.probe(time_factor=20 if complaint != "compute p95" else 1)
    if "pyplot" in str(fault.get("draw")) or complaint == "left open":
        from matplotlib import pyplot

        pyplot.close("all")
