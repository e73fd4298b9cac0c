"""Grids that took long, shipped so that nobody has to wait: ``load("recovery_by_scale").table``.

Each is made by a recipe (a study, its grid, its seeds) that lives beside the mechanism it measures. ``labkit
sweep NAME [--profile full] [--device cuda]`` makes it anew: NAME.npz holds the table, NAME.json beside it the
command, versions, profile, seeds, device and date, and a checksum of the table. ``tests/results`` remakes a part of
each and compares.
"""

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import labkit
from labkit import compute, sweep
from labkit.sweep import Table

FOLDER = Path(__file__).parent
RECIPES = {  # name -> the function, as module:name, that returns its recipe at the current profile
    "recovery_by_scale": "labkit.results.recovery_by_scale:recipe",
    "lift_recovery": "labkit.results.lift_recovery:recipe",
    "depth_advantage": "labkit.results.depth_advantage:recipe",
    "scaling_law": "labkit.results.scaling_law:recipe",
    "inserted_block": "labkit.results.inserted_block:recipe",
    "depth_width_data": "labkit.results.depth_width_data:recipe",
    "deep_failures": "labkit.results.depth_width_data:deep_failures",
    "insert_or_train": "labkit.results.insert_or_train:recipe",
    "relu_bridge": "labkit.results.relu_bridge:recipe",
    "relu_norms": "labkit.results.relu_bridge:norms_recipe",
    "digits_transfer": "labkit.results.digits_transfer:recipe",
    "digits_scratch": "labkit.results.digits_transfer:scratch_recipe",
    "digits_batch_norm": "labkit.results.digits_transfer:batch_norm_recipe",
    "signal_and_noise": "labkit.results.signal_and_noise:recipe",
    "gradient_heat_maps": "labkit.results.signal_and_noise:heat_map_recipe",
    "modular_pretraining": "labkit.results.modular_arithmetic:pretraining_recipe",
    "modular_arithmetic": "labkit.results.modular_arithmetic:fine_tuning_recipe",
    "modular_controls": "labkit.results.modular_arithmetic:controls_recipe",
    "modular_scale": "labkit.results.modular_arithmetic:scale_recipe",
}
LONG = {  # the same, for a GPU and many hours: not shipped; `remake` writes it to the current folder
    "image_transfer": "labkit.results.image_transfer:recipe",
}


@dataclass(frozen=True)
class Recipe:
    """What `labkit.sweep.run` is called with, and the part of it that a test remakes.

    Fields
        study, grid, seeds, batched: as for `labkit.sweep.run`; seeds is their number
        remake: for some arguments the value to which the test restricts the grid
        tolerances: absolute, of each result between what is shipped and remade; 1e-9 when not given
        remake_seeds: the test remakes the first so many seeds; None: all
        chaotic: rounding grows during training until a net of another computer, or another version of torch, is
            another one of its kind: then ``tolerances`` are those of averages over what is remade
        data: data sets that are downloaded first, by name
    """

    study: Callable
    grid: Mapping[str, Sequence]
    seeds: int
    remake: Mapping[str, Any]
    batched: bool | int = False
    tolerances: Mapping[str, float] = field(default_factory=dict)
    remake_seeds: int | None = None
    chaotic: bool = False
    data: Sequence[str] = ()


@dataclass(frozen=True)
class Result:
    """A shipped grid and how it was made."""

    table: Table
    meta: dict[str, Any]


def recipe(name: str) -> Recipe:
    """The recipe of a named result at the current profile; ValueError when there is none of that name."""
    known = RECIPES | LONG
    if name not in known:
        raise ValueError(f"there is no result {name!r}, only {', '.join(known)}")
    module, function = known[name].split(":")
    return getattr(import_module(module), function)()


def load(name: str) -> Result:
    """A shipped result. ValueError when there is none of that name, or one of its files is missing or damaged.

    >>> load("recovery_by_scale").meta["command"]
    'labkit sweep recovery_by_scale --profile standard --device cpu'
    """
    path = FOLDER / f"{name}.npz"
    if name not in RECIPES or not path.exists():
        raise ValueError(f"there is no shipped result {name!r}, only {', '.join(shipped())}")
    try:
        meta = json.loads(path.with_suffix(".json").read_bytes())
        if meta["sha256"] != _checksum(path):
            raise ValueError("its checksum is wrong")
        return Result(Table.load(path), meta)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the shipped result {name} is damaged ({error}): make it anew, labkit sweep {name}") from None


def shipped() -> list[str]:
    """The names for which `load` has a table."""
    return [name for name in RECIPES if (FOLDER / f"{name}.npz").exists()]


def remake(name: str, **options: Any) -> Path:
    """Compute a named result at the current profile and device, and write it to `FOLDER`; its path.

    ``options`` go to `labkit.sweep.run`: an executor, the cache. Those of `LONG` go to the current folder. Raises
    ValueError when the folder cannot be written, and `labkit.data.download.DataError` when data cannot be had.
    """
    made, folder = recipe(name), Path.cwd() if name in LONG else FOLDER
    if not os.access(folder, os.W_OK):
        raise ValueError(f"the results are kept in {folder}, which cannot be written")
    for needed in made.data:
        import_module("labkit.data.download").fetch(needed)  # only who downloads pays for the import
    table = sweep.run(made.study, made.grid, made.seeds, batched=made.batched, **options)
    packages = {package: import_module(package).__version__.split("+")[0] for package in ("numpy", "torch")}
    batch = os.environ.get("LABKIT_BATCH", "").strip() if name in LONG else ""
    meta = {
        "command": f"labkit sweep {name} --profile {compute.profile()} --device {compute.device().type}"
        + (f" --batch {batch}" if batch else ""),
        "profile": compute.profile(),
        "seeds": made.seeds,
        "device": str(compute.device()),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {"labkit": labkit.__version__, "python": platform.python_version(), **packages},
    }
    path = folder / f"{name}.npz"
    table.save(path)
    meta["sha256"] = _checksum(path)
    path.with_suffix(".json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return path


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
