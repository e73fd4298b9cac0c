"""One number of the theory notes, and what it is here."""

from dataclasses import dataclass
from math import hypot


@dataclass(frozen=True)
class Claim:
    """They agree when they differ by at most ``tolerance`` + 3·√(se² + note_se²), se standard errors of means."""

    claim: str
    ours: float
    note: float
    se: float = 0.0
    note_se: float = 0.0
    tolerance: float = 0.0

    @property
    def ok(self) -> bool:
        return bool(abs(self.ours - self.note) <= self.tolerance + 3 * hypot(self.se, self.note_se))  # nan: False

    def __str__(self) -> str:
        ours, note = _number(self.ours, self.se), _number(self.note, self.note_se)
        return f"{self.claim:<60}{ours:>22}{note:>22}  {'ok' if self.ok else 'NOT OK'}"


def _number(value: float, se: float) -> str:
    return f"{value:.4g} ± {se:.2g}" if se else f"{value:.4g}"
