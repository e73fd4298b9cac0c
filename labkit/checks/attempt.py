"""Running a learner's code safely, and saying what is wrong with what it returned.

Whatever the code does (raise, exit, loop forever, print a book, overwrite its inputs), the caller gets its
value, or a `Wrong` or a `NotAttempted` with a sentence for the learner. Only the stop button passes.
"""

import inspect
import io
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import torch
from torch import Tensor

from labkit.checks.verdict import NotAttempted, Wrong

SECONDS = 60.0  # per call; the slowest exercise (03.3) needs about one on a quiet core
PRINTED = 2000  # characters of a learner's output that are shown
RTOL = 1e-5  # finite differences and float32 pass; every named mistake is off by far more


def compare(
    answer: object, truth: Tensor, mistakes: dict[str, Tensor], slips: dict[str, Tensor], **inputs: Tensor
) -> None:
    """Return when ``answer(*inputs)`` equals ``truth``, else raise `Wrong` with the most telling sentence.

    A named mistake is a wrong formula, evaluated on the same inputs, under the sentence that explains it; a slip
    is one that still earns half of the points. In this order: not a number, correct, a slip or a mistake, a
    constant factor, the input where the answer is furthest off.

    >>> w, v = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    >>> compare(lambda w, v: w + v, w * v, {"That is the sum.": w + v}, {}, w=w, v=v)
    Traceback (most recent call last):
    labkit.checks.verdict.Wrong: That is the sum.
    """
    value = evaluate(answer, truth.shape, **inputs)
    off = ~close(value, truth)
    if not off.any():
        return
    recognize(value, truth, mistakes, slips)
    relative = (
        ((value - truth) / truth).abs().masked_fill(~off, 0)
    )  # the worst one: elsewhere it may look like rounding
    at = tuple((relative == relative.max()).nonzero()[0])
    raise Wrong(
        f"At {show(inputs, at)} your function returned {value[at]:.4g}, expected {truth[at]:.4g} "
        f"({int(off.sum())} of {off.numel()} test inputs are off)."
    )


def compare_parts(values: Sequence[Tensor], parts: Mapping[str, tuple[Tensor, dict, dict]], **inputs: Tensor) -> None:
    """`compare` for several returned values, each worth as much: parts[name] = (truth, mistakes, slips).

    Raises `Wrong` with the sentence about the first value that is wrong and the mean of the shares. What `compare` says
    by itself gets the name of the value in front; a named mistake speaks for itself.
    """
    sentences, shares = [], []
    for value, (name, (truth, mistakes, slips)) in zip(values, parts.items(), strict=True):
        try:
            compare(lambda *_, value=value: value, truth, mistakes, slips, **inputs)
            shares.append(1)
        except Wrong as wrong:
            says = str(wrong)
            sentences.append(says if says in {**mistakes, **slips} else f"{name}: {says[0].lower()}{says[1:]}")
            shares.append(wrong.share)
    if sentences:
        raise Wrong(sentences[0], sum(shares) / len(shares))


def recognize(
    value: Tensor, truth: Tensor, mistakes: dict[str, Tensor], slips: dict[str, Tensor], what: str = "Every value"
) -> None:
    """Raise `Wrong` when ``value`` is a slip, a mistake, or ``truth`` times a constant; ``what`` names it there."""
    for share, named in ((0.5, slips), (0.0, mistakes)):
        for says, wrong in named.items():
            if close(value, wrong).all():
                raise Wrong(says, share)
    factor = (value / truth).flatten()[0]
    if factor != 0 and close(value, factor * truth).all():
        raise Wrong(f"{what} is {factor:.6g} times the expected one: look for a constant factor.")


def evaluate(answer: object, shape: tuple[int, ...], **inputs: Tensor) -> Tensor:
    """``answer(*inputs)`` as a finite float64 tensor of this shape; else `Wrong` says where it is not."""
    value = as_tensor(call(answer, **inputs), shape)
    undefined = ~value.isfinite()
    if undefined.any():
        at = tuple(undefined.nonzero()[0])
        raise Wrong(f"Your function returned {value[at]:.4g} at {show(inputs, at)}: a division or a root?")
    return value


def call(answer: object, **inputs: object) -> object:
    """The value of ``answer(*inputs)``, called by position on copies of the tensors among the inputs."""
    if answer is None or answer is Ellipsis:
        raise NotAttempted("Replace the stub by your own code, then run this cell again.")
    names = ", ".join(inputs)
    if not callable(answer):
        raise Wrong(f"Hand over your function of ({names}) itself, not its value: got {kind(answer)}.")
    if not accepts(answer, len(inputs)):
        raise Wrong(f"Your function must take {len(inputs)} arguments, in this order: ({names}).")
    arguments = [value.clone() if isinstance(value, Tensor) else value for value in inputs.values()]
    screen = Screen(sys.stdout)
    try:
        # an autograder gives no points to a cell that wrote to stderr, so warnings are shown as output too
        with redirect_stdout(screen), redirect_stderr(screen), time_limit(SECONDS):
            returned = answer(*arguments)
    except NotImplementedError:
        raise NotAttempted("Replace the stub by your own code, then run this cell again.") from None
    except OutOfTime:
        raise Wrong(f"Your function was stopped after {SECONDS:g} s: is there an endless loop?") from None
    except KeyboardInterrupt:  # the stop button means stop
        raise
    except BaseException as error:  # the learner's code may raise anything, SystemExit included
        raise Wrong(f"Your function raised {told(error)} when called with {show(inputs)}.") from None
    if returned is None or returned is Ellipsis:
        raise NotAttempted("Your function returned None: it has no return statement yet.")
    return returned


def as_tensor(
    returned: object, shape: tuple[int, ...], says: str = "one value for each element of the inputs"
) -> Tensor:
    """What the learner returned (tensor, array, numbers) as a float64 CPU tensor of the shape that ``says`` names."""
    try:
        with warnings.catch_warnings():  # what a cell writes to stderr costs its points
            warnings.simplefilter("ignore")
            value = torch.as_tensor(returned)
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(f"Your function returned {kind(returned)}, expected a tensor of shape {tuple(shape)}.") from None
    if value.layout != torch.strided:
        raise Wrong(f"Your function returned a {str(value.layout).removeprefix('torch.')} tensor: call .to_dense().")
    if value.is_meta:
        raise Wrong('Your function returned a tensor without values (device="meta").')
    if value.is_complex() or value.dtype == torch.bool:
        raise Wrong(f"Your function returned {value.dtype} values, expected real numbers.")
    if value.shape != shape:
        raise Wrong(f"Your function returned shape {tuple(value.shape)}, expected {tuple(shape)}: {says}.")
    return value.detach().to("cpu", torch.float64)


def close(value: Tensor, target: Tensor) -> Tensor:
    """Elementwise: equal up to ``RTOL`` (and up to rounding of the largest element)."""
    return (value - target).abs() <= RTOL * target.abs() + 1e-9 * target.abs().max()


def pair(returned: object, what: str) -> tuple[object, object]:
    """The two things a function had to return; ``what`` names them for the learner."""
    try:
        first, second = returned
    except (TypeError, ValueError):
        raise Wrong(f"Your function must return the pair ({what}), it returned {kind(returned)}.") from None
    return first, second


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Test inputs: float64, on the CPU whatever torch's default device is."""
    noise = torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")
    return low + (high - low) * noise


def seeded(seed: int) -> torch.Generator:
    """A CPU generator: the same test inputs on every computer."""
    return torch.Generator(device="cpu").manual_seed(seed)


def show(inputs: dict[str, object], at: tuple[Tensor, ...] | None = None) -> str:
    """The inputs as a learner would type them: the element ``at``, or else the beginning of each."""

    def text(value: object) -> str:
        if not isinstance(value, Tensor):
            return str(value) if isinstance(value, int | float) else kind(value)
        if at is not None and value[at].ndim == 0:
            return f"{value[at]:.4g}"
        if value.ndim > 1:
            return f"a tensor of shape {tuple(value.shape)}"
        if value.ndim == 0:
            return f"{value:.4g}"
        start = ", ".join(f"{x:.4g}" for x in value[:2].tolist())
        return f"[{start}, ...]" if len(value) > 2 else f"[{start}]"

    return ", ".join(f"{name}={text(value)}" for name, value in inputs.items()) or "no arguments"


def told(error: BaseException) -> str:
    """The error as one short line."""
    line = (str(error).strip().splitlines() or [""])[0][:200]
    if "converted to" in line and "element" in line:  # math.sqrt(tensor), float(tensor)
        line += " (the inputs are tensors: use torch.sqrt, torch.sinh, ... instead of math's functions)"
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


def kind(value: object) -> str:
    """The type of a value in words: "a tuple", "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def accepts(answer: Callable, count: int) -> bool:
    """Whether the function takes ``count`` positional arguments (yes when it has no signature)."""
    try:
        inspect.signature(answer).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # compiled functions have none
        return True
    return True


class Screen(io.TextIOBase):
    """Passes the first ``PRINTED`` characters on, so that no loop fills the notebook."""

    def __init__(self, out: io.TextIOBase):
        self.out, self.left = out, PRINTED

    def write(self, text: str) -> int:
        if self.left > 0:
            self.out.write(text[: self.left])
            self.left -= len(text)
            if self.left <= 0:
                self.out.write("\n... (further output is not shown)\n")
        return len(text)


class OutOfTime(BaseException):
    """Not an Exception, so that ``except Exception`` in a learner's loop does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` inside the block after ``seconds``, where the platform can: Unix, main thread.

    The alarm repeats, since a bare ``except:`` can swallow one. An earlier alarm is set again afterwards.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum, frame):
        raise OutOfTime

    handler = signal.signal(signal.SIGALRM, stop) or signal.SIG_DFL  # None: installed outside Python
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, min(seconds, 0.5))
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm in this very moment meets the outer finally
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
