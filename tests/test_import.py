"""A learner waits for torch once; labkit itself must not be felt."""

import os
import subprocess
import sys

from tests.calibration import slowness, time_factor

LIMIT_SECONDS = 1.0  # beyond `import torch`
PROGRAM = """
import time
import torch
start = time.perf_counter()
import labkit
{names}
print(time.perf_counter() - start)
"""


def seconds_beyond_torch(names, repeats=3):
    """Shortest time, over fresh processes, from after `import torch` until labkit and `names` are there."""
    program = PROGRAM.format(names=names)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
        for _ in range(repeats)
    ]
    return min(float(run.stdout) for run in runs)


def test_import_labkit():
    assert seconds_beyond_torch("") <= LIMIT_SECONDS * slowness()


def test_first_cell_of_a_lesson():
    """Names load on first use, so that they are cheap must be tested too."""
    assert seconds_beyond_torch("from labkit import Panel, check, plots") <= LIMIT_SECONDS * time_factor()
