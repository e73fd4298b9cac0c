import math
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch

from labkit import check
from labkit.checks import attempt, exercises
from labkit.checks.attempt import OutOfTime, Screen, call, close, compare, compare_parts, time_limit
from labkit.checks.verdict import NotAttempted, Wrong


class Hostile:
    """Every look at it fails."""

    def __getattribute__(self, name):
        raise RuntimeError("do not look at me")


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def raising(error):
    def answer(*inputs):
        raise error

    return answer


def endless(*inputs):
    while True:
        pass


def stubborn(*inputs):
    while True:
        try:
            math.sqrt(2)
        except:  # noqa: E722 - a learner's bare except swallows the first alarm
            pass


ZOO = {
    "none": None,
    "ellipsis": ...,
    "number": 3,
    "text": "x",
    "dict": {"c": "much"},
    "hostile object": Hostile(),
    "no arguments": lambda: 1,
    "keywords only": lambda *, w: w,
    "a class": Hostile,
    "raises": raising(ZeroDivisionError("x / 0")),
    "raises without text": raising(Unprintable()),
    "exits": lambda *inputs: sys.exit(),
    "recursion": lambda *inputs: ZOO["recursion"](*inputs),
    "returns none": lambda *inputs: None,
    "returns text": lambda *inputs: "x",
    "returns a function": lambda *inputs: endless,
    "returns hostile": lambda *inputs: Hostile(),
    "returns a sparse row": lambda *inputs: torch.ones(8).to_sparse(),
    "returns nan": lambda *inputs: torch.full((8,), torch.nan),
    "returns nan pair": lambda *inputs: (torch.nan, torch.nan),
    "returns nan networks": lambda *inputs: (torch.full((4000,), torch.nan),) * 2,
    "returns a number": lambda *inputs: 1.0,
    "returns a huge tensor": lambda *inputs: torch.zeros(1).expand(10**12),
    "returns complex": lambda *inputs: torch.ones(8, dtype=torch.complex128),
    "returns booleans": lambda *inputs: torch.ones(8, dtype=torch.bool),
    "returns meta": lambda *inputs: torch.ones(8, device="meta"),
    "returns sparse": lambda *inputs: torch.eye(8).to_sparse(),
    "returns a ragged list": lambda *inputs: [[1.0], [1.0, 2.0]],
    "returns objects": lambda *inputs: np.array([None, "x"]),
    "returns empty": lambda *inputs: (),
    "returns integers": lambda *inputs: torch.arange(8),
    "returns an infinite pair": lambda *inputs: (float("inf"), -1),
    "returns a tiny scale": lambda *inputs: (1e-300, 12),
    "returns a huge scale": lambda *inputs: (1e300, 12),
}


@pytest.mark.parametrize("id", list(exercises()))
@pytest.mark.parametrize("name", list(ZOO))
def test_check_never_raises(id, name):
    verdict = check(id, ZOO[name])
    assert verdict.status in ("incorrect", "not attempted") and verdict.points == 0
    assert 10 < len(verdict.message) < 400 and repr(verdict) and verdict._repr_html_()


@pytest.mark.parametrize("id", list(exercises()))
def test_endless_loops_are_stopped(id, monkeypatch):
    monkeypatch.setattr(attempt, "SECONDS", 0.1)
    before = signal.getsignal(signal.SIGALRM)
    assert "endless loop" in check(id, endless).message
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_endless_loops_with_a_bare_except_are_stopped(monkeypatch):
    monkeypatch.setattr(attempt, "SECONDS", 0.1)
    assert "endless loop" in check("00.1", stubborn).message


def test_time_limit_sets_an_earlier_alarm_again():
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(OutOfTime), time_limit(0.05):
            endless()
        time.sleep(0.4)
        assert rang == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_check_works_in_another_thread():
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(check("00.1", lambda w, v: w * v)))
    thread.start()
    thread.join()
    assert verdicts[0].status == "correct"


def test_the_stop_button_stops():
    with pytest.raises(KeyboardInterrupt):
        check("00.1", raising(KeyboardInterrupt()))


def test_inputs_are_copies():
    def greedy(w, v):
        value = w * v
        w.zero_()
        v.zero_()
        return value

    assert check("00.1", greedy).status == "correct"
    w = torch.ones(3)
    call(lambda w: w.zero_(), w=w)
    assert (w == 1).all()


@pytest.mark.parametrize(
    "convert",
    [torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.float, lambda x: x.requires_grad_(), list],
)
def test_arrays_lists_and_float32_are_accepted(convert):
    assert check("00.1", lambda w, v: convert(w * v)).status == "correct"


def test_output_is_shown_but_not_all_of_it(capsys):
    def chatty(w, v):
        for step in range(100_000):
            print("step", step)
        print("warning: x", file=sys.stderr)
        return w * v

    assert check("00.1", chatty).status == "correct"
    out, err = capsys.readouterr()
    assert out.startswith("step 0\nstep 1\n") and len(out) < attempt.PRINTED + 100 and err == ""
    assert "further output is not shown" in out


def test_screen_counts_what_it_was_given():
    class Sink(list):
        write = list.append

    sink = Sink()
    assert Screen(sink).write("x" * 5000) == 5000
    assert sink[0] == "x" * attempt.PRINTED


@pytest.mark.parametrize(
    "answer, says",
    [
        (3, "Hand over your function of (w, v) itself, not its value: got an int."),
        (lambda w: w, "must take 2 arguments, in this order: (w, v)"),
        (lambda w, v: w[0], "returned shape (), expected (2,)"),
        (lambda w, v: "x", "returned a str, expected a tensor of shape (2,)"),
        (lambda w, v: w > 0, "returned torch.bool values"),
        (lambda w, v: w / (v - 3), "returned inf at w=1, v=3"),
        (lambda w, v: 4 * w * v, "Every value is 4 times the expected one"),
        (lambda w, v: w * v.clamp_min(1), "At w=2, v=-5 your function returned 2, expected -10 (1 of 2"),
        (lambda w, v: w @ v @ w, "raised RuntimeError"),
        (raising(KeyError("k")), "raised KeyError: 'k' when called with w=[1, 2], v=[3, -5]."),
        (lambda w, v: float(w), "use torch.sqrt, torch.sinh"),
    ],
)  # fmt: skip
def test_compare_names_what_is_wrong(answer, says):
    w, v = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -5.0])
    with pytest.raises(Wrong) as wrong:
        compare(answer, w * v, {}, {}, w=w, v=v)
    assert says in str(wrong.value)


@pytest.mark.parametrize("answer", [None, ..., lambda: None, lambda: ..., raising(NotImplementedError())])
def test_stubs_are_not_attempts(answer):
    with pytest.raises(NotAttempted):
        call(answer)


def test_compiled_functions_are_welcome():
    assert call(torch.sinh, s=torch.zeros(2)).tolist() == [0, 0]
    assert call(max, first=1, second=2) == 2


def test_close():
    one = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    assert close(one * (1 + 1e-6), one).all() and not close(one * (1 + 1e-4), one).any()


def test_inputs_are_float64_or_whole_on_the_cpu_whatever_the_default_device():
    seen = []

    def spy(*inputs):
        seen.extend(value for value in inputs if isinstance(value, torch.Tensor))
        raise NotImplementedError

    torch.set_default_device("meta")
    try:
        assert {check(id, spy).status for id in exercises()} == {"not attempted"}
    finally:
        torch.set_default_device(None)
    assert len(seen) >= 20 and {x.device.type for x in seen} == {"cpu"}
    assert {x.dtype for x in seen} <= {torch.float64, torch.int64}  # whole numbers where they count


def test_inputs_of_different_shapes_are_shown():
    """A scalar answer to a tensor of labels: the element asked for is the whole tensor there."""
    labels = torch.tensor([1.0, 2.0, 3.0])
    assert attempt.show({"t": labels, "delta": torch.tensor(0.5)}, at=()) == "t=[1, 2, ...], delta=0.5"


@pytest.mark.parametrize("place, name", [(0, "first"), (1, "second")])
@pytest.mark.parametrize(
    "change, says",
    [
        (lambda v: 3 * v, "every value is 3 times"),
        (lambda v: v + 1, "at x="),
        (lambda v: v * math.nan, "your function"),
    ],
)
def test_what_is_wrong_with_one_of_several_values_names_it(place, name, change, says):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    values = [x**2, x**3]
    values[place] = change(values[place])
    parts = {"first": (x**2, {"first: a slip of the pen.": -(x**2)}, {}), "second": (x**3, {}, {})}
    with pytest.raises(Wrong, match=f"^{name}: {says}") as found:
        compare_parts(values, parts, x=x)
    assert found.value.share == 0.5
    with pytest.raises(Wrong, match="^first: a slip of the pen"):
        compare_parts([-(x**2), x**3], parts, x=x)
