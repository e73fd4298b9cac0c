"""How much memory a call takes beyond what was there: a fresh process, watched while it works (Linux)."""

import json
import os
import subprocess
import sys

PROGRAM = """
import json, sys, threading
import torch
from labkit import compute
from labkit.recovery import spectral
from labkit.recovery.hermite import lift

way, dim, *sizes = sys.argv[1], *map(int, sys.argv[2:])

def formed(x, t):
    h = lift(x, 2)
    return h.mT @ (t[:, None] * h) / len(x) - t.mean() * torch.eye(h.shape[1])

def matrix_free(x, t):
    apply = spectral.moment_operator(x, t, 2)
    return apply(torch.ones(dim * (dim + 1) // 2, 8, dtype=torch.float64))

call = {"formed": formed, "streamed": lambda x, t: spectral.moment_matrix(x, t, 2), "matrix_free": matrix_free}[way]
x, t = torch.randn(max(sizes), dim, generator=compute.generator(0)), torch.randn(max(sizes)).clamp(-3, 3)
call(x[:70], t[:70])  # libraries are loaded

def resident():
    with open("/proc/self/statm") as file:
        return 4096 * int(file.read().split()[1])

def peak(n):
    before, most, done = resident(), 0, threading.Event()

    def watch():
        nonlocal most
        while not done.wait(5e-4):
            most = max(most, resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    call(x[:n], t[:n])
    done.set()
    watcher.join()
    return most

print(json.dumps([peak(n) for n in sizes]))
"""


def peak_bytes(way: str, dim: int, *sizes: int) -> list[int]:
    """Of one way to Ĉ for each n: "formed", "streamed", or "matrix_free" (one product with eight vectors)."""
    # what was freed is given back at once, so that it is not used again unseen
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", PROGRAM, way, str(dim), *map(str, sizes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
