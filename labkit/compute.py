"""Where and how large: device, dtype, the three profiles, seeded generators, and a check of the installation.

The profile is one of the two global states of the package (the other is the cache of ``sweep``): a lesson is
the same code at three sizes, and the size is a choice of the person who runs it.
"""

from __future__ import annotations

import operator
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from labkit import __version__

# torch is imported inside the functions: `diagnose` has to be able to say that it is missing.
if TYPE_CHECKING:
    import torch

PROFILES = ("quick", "standard", "full")  # CI: <= 30 s a lesson; laptop: <= 2 min; GPU
_chosen_profile: str | None = None  # set by use_profile; None: LABKIT_PROFILE decides


def device() -> torch.device:
    """The device to compute on: ``LABKIT_DEVICE`` when set, else ``cuda`` when there is one, else ``cpu``.

    Raises ValueError when ``LABKIT_DEVICE`` names a device that torch or this computer does not have.

    >>> device().type in ("cpu", "cuda", "mps", "xpu")
    True
    """
    import torch

    name = os.environ.get("LABKIT_DEVICE", "").strip()
    if not name:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return valid_device(name, "LABKIT_DEVICE")


def valid_device(name: torch.device | str, argument: str = "device") -> torch.device:
    """The device of that name; ValueError when torch or this computer does not have it."""
    import torch

    try:
        if isinstance(name, bool | float):
            raise TypeError("no name")
        chosen = torch.device(name)
        torch.empty(0, device=chosen)
        if chosen.type == "meta":
            raise RuntimeError("it holds no values")
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
        TypeError,
    ) as error:  # torch raises AssertionError without CUDA
        raise ValueError(
            f"{argument} must name a device of this computer such as cpu or cuda, got {str(name)!r}"
        ) from error
    return chosen


_default_device = device  # the argument of dtype hides the name


def dtype(device: torch.device | str | None = None) -> torch.dtype:
    """float64 where the device (default: `device()`) has it, else float32: Apple's ``mps`` has no float64.

    >>> dtype("cpu")
    torch.float64
    """
    import torch

    place = _default_device() if device is None else torch.device(device)
    return torch.float32 if place.type == "mps" else torch.float64


def generator(seed: int) -> torch.Generator:
    """A CPU generator. Draw on the CPU and move the sample: a seed then means the same on every device.

    >>> import torch
    >>> torch.equal(torch.rand(3, generator=generator(7)), torch.rand(3, generator=generator(7)))
    True
    """
    import torch

    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    return torch.Generator(device="cpu").manual_seed(operator.index(seed))


def profile() -> str:
    """The current profile: that of `use_profile`, else ``LABKIT_PROFILE``, else ``"standard"``."""
    return _chosen_profile or _valid_profile(os.environ.get("LABKIT_PROFILE") or "standard", "LABKIT_PROFILE")


class use_profile:
    """Choose the profile from here on, or only for a ``with`` block. Raises ValueError for an unknown name.

    >>> with use_profile("quick"):
    ...     pick(quick=10, standard=100, full=10_000)
    10
    """

    def __init__(self, name: str):
        global _chosen_profile
        self._name, self._before = _valid_profile(name, "profile"), _chosen_profile
        _chosen_profile = self._name

    def __enter__(self) -> use_profile:
        return self

    def __exit__(self, *_error: object) -> None:
        global _chosen_profile
        _chosen_profile = self._before

    def __repr__(self) -> str:
        return f"profile {self._name}"


def pick(*, quick: Any, standard: Any, full: Any) -> Any:
    """The value for the current profile: ``n_seeds = pick(quick=2, standard=8, full=64)``."""
    return {"quick": quick, "standard": standard, "full": full}[profile()]


def _valid_profile(name: str, argument: str) -> str:
    if name not in PROFILES:
        raise ValueError(f"{argument} must be one of {', '.join(PROFILES)}, got {name!r}")
    return name


# What a lesson cannot do without: distribution -> (oldest version, first version expected not to work).
# The same ranges stand in pyproject.toml; a test compares them.
NEEDED = {
    "torch": ("2.6", "3"),
    "numpy": ("2.0", "3"),
    "scipy": ("1.13", "2"),
    "matplotlib": ("3.9", "4"),
    "ipywidgets": ("8.1", "9"),
    "jupyterlab_widgets": ("3.0", "4"),  # the extension that draws ipywidgets 8 in JupyterLab
    "jupyterlab": ("4.2", "5"),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its name, whether it is well, what was found, what to type when not."""

    name: str
    ok: bool
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.found}" + ("" if self.ok else f": {self.remedy}")


def diagnose() -> list[Finding]:
    """Look at everything a lesson needs, most basic first. Of all the packages only torch is imported."""
    version = ".".join(map(str, sys.version_info[:3]))
    findings = [
        Finding(
            "Python",
            sys.version_info >= (3, 11),
            version,
            "install Python 3.11 or newer, then type  make lab",
        ),
        _labkit(),
        *(_distribution(name, *limits) for name, limits in NEEDED.items()),
        _setting("LABKIT_PROFILE", profile),
    ]
    if next(finding.ok for finding in findings if finding.name == "torch"):
        findings += [_loads_torch(), _setting("LABKIT_DEVICE", device)]
    return findings


def check_environment() -> None:
    """For the first cell of a lesson: print one line when all is well, one instruction when it is not.

    It also keeps torch to one thread, unless ``OMP_NUM_THREADS`` says otherwise or the profile is "full": the
    problems behind a slider are so small that threads would only wait for each other, on a busy computer for long.
    """
    problem = next((finding for finding in diagnose() if not finding.ok), None)
    if problem is not None:
        print(f"Not ready yet. {problem}")
        return
    import torch

    if "OMP_NUM_THREADS" not in os.environ and profile() != "full":
        torch.set_num_threads(1)
    place = device()
    number = str(dtype(place)).removeprefix("torch.")
    release = torch.__version__.split("+")[0]
    print(f"labkit {__version__} · torch {release} · {place}, {number} · profile {profile()} · ready")


def _distribution(name: str, oldest: str, below: str) -> Finding:
    remedy = f'type  %pip install "{name}>={oldest},<{below}"  in a new cell, then restart the kernel'
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, False, "is missing", remedy)
    fits = _numbers(oldest) <= _numbers(found) < _numbers(below)
    return Finding(name, fits, found if fits else f"{found} does not fit", remedy)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cpu" -> (2, 13)."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("+")[0].split(".")[:2])


def _labkit() -> Finding:
    """The code that runs must be the code that was installed: a stale install lacks newer dependencies."""
    try:
        installed = metadata.version("labkit")
    except metadata.PackageNotFoundError:  # imported from a folder on the path: what runs is what is there
        installed = __version__
    if installed == __version__:
        return Finding("labkit", True, __version__)
    remedy = "type  pip install -e .  in the course's folder, then restart the kernel"
    return Finding("labkit", False, f"{__version__} was installed as {installed}", remedy)


def _loads_torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of torch is missing
        reason = str(error).splitlines()[0]
        return Finding("import torch", False, f"fails ({reason})", "choose a build for this computer at pytorch.org")
    return Finding("import torch", True, f"works, CUDA {'yes' if torch.cuda.is_available() else 'no'}")


def _setting(variable: str, read: Any) -> Finding:
    try:
        return Finding(variable, True, f"gives {read()}")
    except ValueError as error:
        return Finding(variable, False, "is wrong", f"{error}; change it and restart")
    except (ImportError, OSError):  # torch itself does not load: said by _loads_torch
        return Finding(variable, True, "not read")
