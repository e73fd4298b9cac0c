"""`make verify`: the numbers of the theory notes that take minutes, made again here and compared.

A room takes part with a small module beside this one: a generator ``claims()`` of `tests.verify.claim.Claim`, whose
runs go through ``labkit.sweep.run``. Every finished run is then in the cache, and a verification that was stopped
goes on where it was. ``python -m tests.verify diagonal`` verifies one room; results.json keeps the last word on each.
"""

import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

import numpy
import torch

import labkit
from labkit import compute
from tests import report
from tests.verify.claim import Claim

RESULTS = Path(__file__).with_name("results.json")
HEAD = f"{'claim':<60}{'ours':>22}{'note':>22}  ok"


def rooms() -> list[str]:
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__main__", "claim"))


def claims(room: str) -> Iterator[Claim]:
    return import_module(f"tests.verify.{room}").claims()


def verify(chosen: list[str]) -> list[Claim]:
    """Print the table of these rooms, one line as soon as it is known, and write each room to `RESULTS`."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    found = []
    for room in chosen:
        here = report.show(f"{HEAD}\n{room}", claims(room))
        how = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "device": str(compute.device()), "profile": compute.profile()}
        how |= {"labkit": labkit.__version__, "python": platform.python_version(), "numpy": numpy.__version__}
        how |= {"torch": torch.__version__.split("+")[0]}
        known[room] = how | {"claims": [asdict(claim) | {"ok": claim.ok} for claim in here]}
        RESULTS.write_text(json.dumps(known, indent=1, ensure_ascii=False, default=float) + "\n", encoding="utf-8")
        found += here
    return found


def main(arguments: list[str]) -> int:
    unknown = set(arguments) - set(rooms())
    if unknown:
        print(f"there is no room {', '.join(sorted(unknown))} to verify, only {', '.join(rooms())}", file=sys.stderr)
        return 2
    found = verify(arguments or rooms())
    print(f"\n{sum(claim.ok for claim in found)} of {len(found)} claims hold.")
    return int(not all(claim.ok for claim in found))


if __name__ == "__main__":
    sys.exit(report.run(main))
