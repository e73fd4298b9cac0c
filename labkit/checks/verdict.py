"""What an exercise can say: a verdict, with points, that a notebook shows as the last value of a cell."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

SYMBOLS = {"correct": "✓", "incorrect": "✗", "not attempted": "○"}  # never color alone
COLORS = {"correct": "#009E73", "incorrect": "#D55E00", "not attempted": "#8C8C8C"}  # Okabe-Ito


class Wrong(Exception):
    """The answer is wrong: ``str`` is the sentence for the learner, ``share`` the share of the points."""

    def __init__(self, says: str, share: float = 0.0):
        super().__init__(says)
        self.share = share


class NotAttempted(Exception):
    """There is no answer yet; ``str`` is the sentence for the learner."""


@dataclass(frozen=True)
class Exercise:
    """One line of a lesson's table: the label (stars, minutes, points) and the judge of an answer.

    ``check(answer)`` returns the sentence for a correct answer, or raises ``Wrong`` or ``NotAttempted``.
    """

    points: int
    minutes: int
    difficulty: int  # stars, 1 to 3
    check: Callable[[object], str]


@dataclass(frozen=True)
class Verdict:
    """What `check` returns. ``status`` is "correct", "incorrect" or "not attempted".

    With ``LABKIT_GRADING=1`` its text is the bare number of points: nbgrader reads partial credit there.

    >>> Verdict("00.1", "correct", "A path multiplies.", points=1, max_points=1)
    ✓ 00.1 correct (1 of 1 point). A path multiplies.
    """

    id: str
    status: str
    message: str
    points: float
    max_points: int

    @property
    def score(self) -> str:
        return f"{self.points:g} of {self.max_points} point{'s' * (self.max_points != 1)}"

    def __str__(self) -> str:
        return f"{SYMBOLS[self.status]} {self.id} {self.status} ({self.score}). {self.message}"

    def __repr__(self) -> str:
        return f"{self.points:g}" if grading() else str(self)

    def _repr_html_(self) -> str | None:
        if grading():
            return None  # notebook front ends then fall back to the number
        color = COLORS[self.status]
        # The text keeps the theme's own color; bar and tint work on a dark and on a light page.
        return (
            f'<div role="status" class="labkit-verdict" style="border-left: 6px solid {color}; '
            f'background: {color}22; padding: 0.5em 0.8em; margin: 0.3em 0; max-width: 60em">'
            f"<strong>{SYMBOLS[self.status]} {escape(self.id)} {self.status}</strong> "
            f"({self.score})<br>{escape(self.message)}</div>"
        )


def grading() -> bool:
    """Whether an autograder is reading: nbgrader says so itself, others set ``LABKIT_GRADING=1``.

    It has to be known: nbgrader gives full points to any value that is not a number.
    """
    return _flag("LABKIT_GRADING") or os.environ.get("NBGRADER_EXECUTION") == "autograde"


def strict() -> bool:
    """Whether anything but a correct answer has to raise (``LABKIT_STRICT=1``, set for solutions)."""
    return _flag("LABKIT_STRICT")


def _flag(variable: str) -> bool:
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, got {value!r}")
    return value == "1"
