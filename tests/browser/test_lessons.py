"""What a learner does first in a lesson: open, run all, predict, move a slider by keyboard, reset."""

import os
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from tests.browser.lab import VIEW, Notebook
from tests.calibration import time_factor
from tests.lessons.run import notebooks

LIVE = {  # lesson -> a live control of its first panel
    "01": "c",
    "02": "lam",
    "03": "lam",
    "04": "alpha_pt",
    "05": "lam",
    "06": "seed",
    "07": "step",
    "08": "samples_per_dim",
    "09": "samples_per_dim",
    "10": "kept",
    "11": "t",
    "12": "n",
    "13": "width",
    "14": "n",
}
FRAME_MS = 100  # keydown -> pixels, 95th percentile
CATCH_UP_MS = 1000  # last keydown -> picture and read-out of the last position


@pytest.fixture(scope="module", params=LIVE)
def lesson(request, browser, server):
    """(number, notebook), run from top to bottom."""
    (path,) = (path for path in notebooks("lessons") if path.name.startswith(request.param))
    notebook = Notebook(browser.new_context(viewport=VIEW), server, path.name)
    assert notebook.run_all() == []
    if folder := os.environ.get("LABKIT_SCREENSHOTS"):
        take_pictures(notebook, Path(folder), path.stem)
    yield request.param, notebook
    notebook.close()


@pytest.fixture
def panel(lesson):
    return lesson[1].panel(0)


def test_prediction_by_keyboard(lesson):
    _, notebook = lesson
    prediction = notebook.page.locator(".labkit-prediction").first
    choice = prediction.locator("input[type=radio]").nth(1)
    words = unquote(choice.get_attribute("data-value"))
    reveal = prediction.locator("button")
    assert reveal.is_disabled()  # first choose, then see
    choice.focus()
    notebook.page.keyboard.press("Space")
    prediction.locator("button:enabled").wait_for()
    reveal.focus()
    notebook.page.keyboard.press("Enter")
    verdict = prediction.locator("[role=status]")
    verdict.wait_for()
    assert f"“{words}”" in verdict.inner_text()


def test_slider_by_keyboard(lesson, panel):
    name = LIVE[lesson[0]]
    position, text, box, picture = panel.position(name), panel.text(), panel.box(name), panel.picture()
    panel.press(name, "ArrowRight")
    panel.settle()
    assert panel.position(name)[0] == position[0] + 1
    assert panel.box(name) != box
    assert panel.picture() != picture
    assert panel.text() != text
    assert panel.root.locator("img.labkit-figure").get_attribute("title") == panel.text()  # for a screen reader


def test_box_by_keyboard(lesson, panel):
    """A number typed into the box moves the slider, and what cannot be a number is put back."""
    name = LIVE[lesson[0]]
    before = panel.position(name), panel.box(name), panel.text()
    panel.press(name, "ArrowRight")
    panel.settle()
    panel.type(name, before[1])
    assert (panel.position(name), panel.box(name), panel.text()) == before
    panel.type(name, "three")
    assert (panel.position(name), panel.box(name), panel.text()) == before


def test_picture_follows_at_once(lesson, panel):
    latencies = panel.latencies(LIVE[lesson[0]], presses=40)
    p50, p95 = np.quantile(latencies, (0.5, 0.95))
    print(f"lesson {lesson[0]}: keydown -> pixels p50 {p50:.0f} ms, p95 {p95:.0f} ms")
    assert p95 <= FRAME_MS * time_factor()


def test_latest_value_wins(lesson, panel):
    """Hold the key down: the pictures in between may be left out, the last one may not, and it comes soon."""
    name = LIVE[lesson[0]]
    key, back = ("ArrowLeft", "ArrowRight") if panel.position(name)[0] > 0 else ("ArrowRight", "ArrowLeft")
    pictures, lag = panel.hold(name, key)
    assert 0 < pictures < 60
    assert lag <= CATCH_UP_MS * time_factor()
    text, position = panel.text(), panel.position(name)
    panel.press(name, back)  # away and back again, slowly: the same position has to look the same
    panel.settle()
    assert panel.text() != text
    panel.press(name, key)
    panel.settle()
    assert (panel.position(name), panel.text()) == (position, text)


def test_reset(lesson, panel):
    """Reset brings every control back to where it was when the panel appeared, from wherever it is."""
    name = LIVE[lesson[0]]
    panel.reset()
    start, words = panel.position(name), panel.text()
    panel.press(name, "ArrowRight")
    panel.settle()
    assert panel.text() != words
    panel.reset()
    assert (panel.position(name), panel.text()) == (start, words)


def test_nothing_went_wrong_meanwhile(lesson):
    """Callbacks that raise report to the page, not to a cell: nothing of that kind after all the moves."""
    assert lesson[1].page.evaluate("() => broken()") == []
    assert not any(words.strip() for words in lesson[1].page.locator(".labkit-error").all_text_contents())


def take_pictures(notebook, folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    for number, panel in enumerate(notebook.page.locator(".labkit-panel").all(), 1):
        notebook.steady(panel)
        panel.screenshot(path=folder / f"{name}_panel_{number}.png")
