"""A function over a grid of values and seeds: one table, made once, however often it is interrupted.

    def study(lam, n, seed):
        ...
        return {"error": error}

    table = sweep.run(study, {"lam": [-0.9, 0, 0.9], "n": [20, 40]}, seeds=8)
    curve = table.select(lam=-0.9).mean("error", by="n")
    plt.errorbar(curve["n"], curve["mean"], curve["se"])

Killed and started again it goes on where it was: every finished row is in the cache on disk (`labkit.cache`),
one of the two global states of the package. The same table comes from this process, from four
(``concurrent.futures.ProcessPoolExecutor``) or from a cluster (``dask.distributed.Client.get_executor()``).
"""

from __future__ import annotations

import functools
import inspect
import itertools
import multiprocessing
import os
import pickle
import threading
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    wait,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from tqdm.auto import tqdm

from labkit import compute
from labkit.cache import Cache, entry_key

BATCH = 64  # rows in one call of a batched function
WORKERS = 128  # assumed of an executor that does not say how many it has
Row = dict[str, Any]  # the arguments of one call, seed included
Result = dict[str, np.ndarray]  # what it returned


class SweepError(RuntimeError):
    """A sweep that cannot go on; the text says why, and where the finished rows are."""


@dataclass(frozen=True, eq=False)
class Table:
    """One row per grid point and seed: ``columns`` maps names to arrays (row, ...), grid first, then results.

    ``pandas.DataFrame(table.columns)`` makes a data frame when each result is one number.

    >>> table = Table({"n": np.array([1, 1, 2, 2]), "error": np.array([0.5, 0.7, 0.1, 0.3])})
    >>> table
    Table of 4 rows: n, error
    >>> table.mean("error", by="n")["mean"]
    array([0.6, 0.2])
    """

    columns: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise KeyError(f"there is no column {name!r}, only {', '.join(self.columns)}")
        return self.columns[name]

    def __repr__(self) -> str:
        return f"Table of {len(self)} rows: {', '.join(self.columns)}"

    def select(self, **values: Any) -> Table:
        """The rows with these values: ``table.select(lam=0.5)``. ValueError when there are none.

        Numbers are compared to a relative 1e-9, which forgives what ``np.linspace`` does to 0.3.
        """
        chosen = np.ones(len(self), bool)
        for name, value in values.items():
            column, value = self[name], _label(value.item() if isinstance(value, np.generic) else value)
            near = isinstance(value, float) and column.dtype.kind in "iuf"
            same = np.isclose(column, value, rtol=1e-9, atol=0) if near else column == value
            if not np.any(same):
                there = ", ".join(map(str, dict.fromkeys(column.tolist())))
                raise ValueError(f"no row has {name} = {value}; its values are {there}")
            chosen &= same
        if not chosen.any():
            raise ValueError(f"no row has {', '.join(f'{name} = {value}' for name, value in values.items())} together")
        return Table({name: column[chosen] for name, column in self.columns.items()})

    def mean(self, name: str, by: str | Sequence[str]) -> Table:
        """Averages of the column ``name`` over the rows that agree in the columns ``by``, as a table.

        Its columns are those of ``by``, ``mean``, ``se`` (standard error: standard deviation / √count, nan for a
        single row) and ``count``; its rows come in the order of their first appearance.
        """
        by = (by,) if isinstance(by, str) else tuple(by)
        if not by or {"mean", "se", "count"} & set(by):
            raise ValueError(f"by must name columns other than mean, se and count, got {by}")
        keys = list(zip(*(self[key].tolist() for key in by), strict=True))
        groups = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        member = np.array([groups[key] for key in keys])
        values = [self[name][member == number] for number in range(len(groups))]
        count = np.array([len(group) for group in values])
        first = np.array([np.argmax(member == number) for number in range(len(groups))])
        spread = [group.std(0, ddof=1) if len(group) > 1 else np.full(group.shape[1:], np.nan) for group in values]
        se = np.stack([s / np.sqrt(n) for s, n in zip(spread, count, strict=True)])
        mean = np.stack([group.mean(0) for group in values])
        return Table({key: self[key][first] for key in by} | {"mean": mean, "se": se, "count": count})

    def save(self, path: str | Path) -> None:
        """Write to ``path``, an .npz file."""
        np.savez_compressed(path, allow_pickle=False, **self.columns)

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """Read what `save` wrote. Nothing in the file is executed; ValueError when it is something else."""
        broken = (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error)
        with open(path, "rb") as file:
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    return cls({name: arrays[name] for name in arrays.files})
            except broken as error:
                raise ValueError(f"{path} is not a table: {error}") from None


def run(
    function: Callable,
    grid: Mapping[str, Sequence],
    seeds: int | Sequence[int] = 1,
    *,
    executor: Executor | None = None,
    batched: bool | int = False,
    cache: str | Path | bool = True,
    progress: bool = True,
) -> Table:
    """Call ``function(**values, seed=seed)`` for every combination of the grid's values and every seed.

    Arguments
        function: returns a number, a small array, or a dict of them; everything random in it comes from ``seed``
        grid: name of an argument -> its values. Numbers and texts keep their type as columns of the table, any
            other value (a dataclass, a tensor) is shown as text.
        seeds: how many (0, 1, ...), or which
        executor: any ``concurrent.futures.Executor``; None computes here. Functions defined in a notebook are sent
            by value, so every way to start processes works: ``ProcessPoolExecutor(4, get_context("spawn"))``.
            Processes share the cores: ``initializer=torch.set_num_threads, initargs=(1,)``. labkit has to be
            installed where a cluster works.
        batched: True (64) or how many rows ``function`` takes in one call: arrays (row,) of values and of seeds,
            and what it returns has that axis first
        cache: True (below ``LABKIT_CACHE`` or the user's cache folder), a folder of yours, or False. What makes a
            row be computed again: see `labkit.cache.study_key`.
        progress: show a bar with the time left

    Rows are kept when they are finished, whatever ends the sweep. Two processes may work on one sweep at once:
    each does what the other is not doing.

    Raises TypeError or ValueError for arguments that do not fit, a function or a value that has no content to go by,
    or results that do not fit together; CacheError when the cache folder cannot be written; SweepError when the
    executor dies; and what ``function`` raises, with a note that says for which values.

    >>> def study(slope, seed):
    ...     return slope * seed
    >>> run(study, {"slope": [0.5, 2.0]}, seeds=3, cache=False, progress=False)["value"]
    array([0. , 0.5, 1. , 0. , 2. , 4. ])
    """
    rows = _rows(function, grid, seeds)
    size = BATCH if batched is True else int(batched)
    if size < 0:
        raise ValueError(f"batched must be True, False or a number of rows, got {batched}")
    if size and any(_label(value) is not value for row in rows for value in row.values()):
        raise ValueError("a batched function needs numbers or texts as values of the grid")
    if not isinstance(executor, Executor | None):
        kind = type(executor).__name__
        raise TypeError(f"executor must be one of concurrent.futures (Dask: client.get_executor()), got a {kind}")
    store = None if cache is False else Cache.open(function, None if cache is True else cache)
    sweep = _Sweep(rows, store, [entry_key(store.folder.name, row) for row in rows] if store else [])
    there = sweep.recall(range(len(rows)))
    with tqdm(total=len(rows), initial=there, desc=_name(function), unit="row", disable=not progress) as bar:
        if there < len(rows):
            sweep.work(_sendable(function, executor), executor or _Here(), size, bar)
    return _table(rows, [sweep.found[i] for i in range(len(rows))])


def _rows(function: Callable, grid: Mapping[str, Sequence], seeds: int | Sequence[int]) -> list[Row]:
    """Every call, the grid's last name and then the seeds moving fastest."""
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        seeds = range(seeds)
    if not hasattr(seeds, "__iter__") or not all(type(s) is int or isinstance(s, np.integer) for s in seeds):
        raise TypeError(f"seeds must be a number of seeds or a list of integers, got {seeds!r}")
    axes = {name: [v.item() if isinstance(v, np.generic) else v for v in _values(name, grid[name])] for name in grid}
    if "seed" in axes:
        raise ValueError("grid must not contain seed: say seeds=...")
    axes["seed"] = [int(seed) for seed in seeds]
    for name, values in axes.items():
        labels = [_label(value) for value in values]
        if not labels or len(set(labels)) < len(labels):
            raise ValueError(f"the values of {name} must be at least one and all different, got {labels}")
    try:
        inspect.signature(function).bind(**dict.fromkeys(axes))
    except (TypeError, ValueError) as error:
        raise TypeError(f"function must take the arguments {', '.join(axes)}: {error}") from None
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _values(name: str, values: Sequence) -> list:
    if isinstance(values, str) or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) != 1:
        raise TypeError(f"the values of {name} must be a list, got {values!r}")
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _label(value: Any) -> Any:
    """What the table shows for a value of the grid."""
    return value if type(value) in (bool, int, float, str) else str(value)


class _Sweep:
    """The rows, the results found so far, and the work that finds the others."""

    def __init__(self, rows: list[Row], store: Cache | None, keys: list[str]):
        self.rows, self.store, self.keys = rows, store, keys
        self.found: dict[int, Result] = {}
        self.mine: set[int] = set()  # rows that this process works on
        self.warned = False

    def recall(self, numbers: Iterable[int]) -> int:
        """Take from the cache what is there, and say how many that were."""
        there = {i: result for i in numbers if self.store and (result := self.store.read(self.keys[i])) is not None}
        self.found |= there
        return len(there)

    def work(self, call: Callable | bytes, executor: Executor, size: int, bar: tqdm) -> None:
        """Compute what is missing, so many calls at a time that every worker has a next one waiting."""
        limit = 2 * getattr(executor, "_max_workers", WORKERS) or 1  # private, but all of concurrent.futures has it
        waiting: dict[Future, list[int]] = {}
        batches = self.batches(size, bar)
        try:
            while True:
                while len(waiting) < limit and (batch := next(batches, None)):
                    waiting[self.submit(executor, call, batch, size > 0)] = batch
                if not waiting:
                    return
                done = wait(waiting, return_when=FIRST_COMPLETED).done
                for future in filter(_succeeded, done):
                    self.keep(waiting.pop(future), future.result(), bar)
                for future in done.intersection(waiting):
                    future.result()  # raises
        except BaseException as error:
            for future, batch in waiting.items():
                if not future.cancel() and _succeeded(future):  # what was finished meanwhile
                    self.keep(batch, future.result(), bar)
            place = f"kept in {self.store.folder}: the same call goes on from there" if self.store else "lost"
            state = f"{len(self.found)} of {len(self.rows)} rows are finished and {place}"
            if _died(error):
                raise SweepError(f"the executor died ({type(error).__name__}: {error}); {state}") from error
            error.add_note(state)
            raise
        finally:
            self.release(list(self.mine))

    def batches(self, size: int, bar: tqdm) -> Iterator[list[int]]:
        """What to work on next, in groups. What another process works on comes last: it may be there by then.

        If it is not, the other is busy with it, or dead, and it is done here as well; from the end, where the
        other comes last.
        """
        elsewhere: list[int] = []

        def order() -> Iterator[tuple[int, bool]]:
            yield from ((i, False) for i in range(len(self.rows)) if i not in self.found)
            yield from ((i, True) for i in reversed(elsewhere))

        def free() -> Iterator[int]:
            for i, last in order():
                if not self.store:
                    yield i
                elif not (self.store.claim(self.keys[i]) or last):
                    elsewhere.append(i)
                else:
                    self.mine.add(i)
                    if self.recall([i]):  # after the claim: it may have been finished just before
                        self.release([i])
                        bar.update()
                    else:
                        yield i

        rows = free()
        while batch := list(itertools.islice(rows, size or 1)):
            yield batch

    def submit(self, executor: Executor, call: Callable | bytes, batch: list[int], batched: bool) -> Future:
        try:
            return executor.submit(_call, call, compute.profile(), [self.rows[i] for i in batch], batched)
        except Exception as error:  # it was shut down or broken before
            raise BrokenExecutor(str(error)) from error

    def keep(self, batch: list[int], results: list[Result], bar: tqdm) -> None:
        for i, result in zip(batch, results, strict=True):
            self.found[i] = result
            try:
                if self.store:
                    self.store.write(self.keys[i], result)
            except OSError as error:
                if not self.warned:  # the sweep goes on, so that the table is made in any case
                    warnings.warn(
                        f"{error.strerror}: from here on results are not kept in {self.store.folder}, only in memory",
                        stacklevel=4,
                    )
                self.warned = True
        self.release(batch)
        bar.update(len(batch))

    def release(self, batch: list[int]) -> None:
        for i in self.mine.intersection(batch):
            self.store.release(self.keys[i])
        self.mine.difference_update(batch)


class _Here(Executor):
    """This process, as an executor with one worker."""

    _max_workers = 0  # nobody else works, so no call has to wait

    def submit(self, function: Callable, *args: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def _succeeded(future: Future) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _died(error: BaseException) -> bool:
    """Whether an executor, not the function, failed. Dask's errors are told by their home: it is not imported."""
    return isinstance(error, BrokenExecutor | CancelledError) or type(error).__module__.startswith("distributed")


def _name(function: Callable) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _sendable(function: Callable, executor: Executor | None) -> Callable | bytes:
    """The function itself for this process; for others as bytes, by value when it was made in a notebook."""
    if isinstance(executor, ThreadPoolExecutor | None):
        return function
    try:
        return cloudpickle.dumps(function)
    except Exception as error:  # whatever the objects that it uses say
        raise TypeError(
            f"{_name(function)} cannot be sent to another process ({error}): let it make what it needs itself"
        ) from error


@functools.lru_cache(8)  # once a process, not once a row
def _received(function: bytes) -> Callable:
    if parent := multiprocessing.parent_process():  # a worker whose parent was killed would wait for work forever
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    return pickle.loads(function)


def _call(function: Callable | bytes, profile: str, rows: list[Row], batched: bool) -> list[Result]:
    """The results of some rows; runs where the executor puts it."""
    if isinstance(function, bytes):
        function = _received(function)
        if compute.profile() != profile:
            compute.use_profile(profile)  # a choice made in the process that started this one
    try:
        if not batched:
            return [_result(function(**rows[0]))]
        returned = _result(function(**{name: np.array([row[name] for row in rows]) for name in rows[0]}))
        for name, value in returned.items():
            if value.shape[:1] != (len(rows),):
                raise ValueError(
                    f"{name} must have one entry for each of the {len(rows)} rows, got shape {value.shape}"
                )
        return [{name: value[i] for name, value in returned.items()} for i in range(len(rows))]
    except Exception as error:
        values = ", ".join(f"{name}={value!r}" for name, value in rows[0].items())
        error.add_note(f"in {_name(function)}({values})" + (f" and {len(rows) - 1} more rows" if batched else ""))
        raise


def _result(returned: Any) -> Result:
    """What a function returned, as arrays on the CPU."""
    named = returned if isinstance(returned, Mapping) else {"value": returned}
    result = {}
    for name, value in named.items():
        value = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        if not isinstance(name, str) or value.dtype.kind not in "biufcU":
            raise TypeError(f"results must be numbers, texts or arrays of them, with a text as name: got {named!r}")
        result[name] = value
    if not result:
        raise TypeError("a function must return at least one result, got an empty dict")
    return result


def _table(rows: list[Row], results: list[Result]) -> Table:
    names, first = list(rows[0]), results[0]
    if clash := set(names) & set(first):
        raise ValueError(f"a result must not have the name of an argument, got {', '.join(sorted(clash))}")
    shapes = {name: value.shape for name, value in first.items()}
    for row, result in zip(rows, results, strict=True):
        found = {name: value.shape for name, value in result.items()}
        if found != shapes:
            raise ValueError(f"all rows must return the same: {rows[0]} gave {shapes}, but {row} gave {found}")
    grid = {name: np.array([_label(row[name]) for row in rows]) for name in names}
    return Table(grid | {name: np.stack([result[name] for result in results]) for name in first})
