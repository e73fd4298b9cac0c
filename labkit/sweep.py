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

import contextlib
import functools
import inspect
import io
import itertools
import multiprocessing
import os
import pickle
import sys
import threading
import traceback
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
from labkit.cache import Cache, entry_key, loaded_code, loaded_module, value_key

BATCH = 64  # rows in one call of a batched function
WORKERS = 128  # assumed of an executor that does not say how many it has
TRIES = 10  # failed calls after which a sweep in which most calls fail gives up
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

        A number selects the nearest one of the column, if it is the same to rounding: to a relative 1e-7, which
        forgives float32, or to 1e-15 of the largest in the column, which forgives the zero of ``np.arange``.
        """
        chosen = np.ones(len(self), bool)
        for name, value in values.items():
            same = _same(self[name], _label(value.item() if isinstance(value, np.generic) else value))
            if not np.any(same):
                there = ", ".join(map(str, dict.fromkeys(self[name].tolist())))
                raise ValueError(f"no row has {name} = {value}; its values are {there}")
            chosen &= same
        if not chosen.any():
            raise ValueError(f"no row has {', '.join(f'{name} = {value}' for name, value in values.items())} together")
        return Table({name: column[chosen] for name, column in self.columns.items()})

    def mean(self, name: str, by: str | Sequence[str]) -> Table:
        """Averages of the column ``name`` over the rows that agree in the columns ``by``, as a table.

        Its columns are those of ``by``, ``mean``, ``se`` (standard error: standard deviation / √count, nan for a
        single row) and ``count``; its rows come in the order of their first appearance. ValueError for texts.
        """
        by = (by,) if isinstance(by, str) else tuple(by)
        if not by or {"mean", "se", "count"} & set(by):
            raise ValueError(f"by must name columns other than mean, se and count, got {by}")
        if self[name].dtype.kind not in "biufc":
            raise ValueError(f"the column {name} holds texts, which have no mean")
        groups: dict[tuple, list[int]] = {}
        for row, key in enumerate(zip(*(self[key].tolist() for key in by), strict=True)):
            groups.setdefault(tuple(None if part != part else part for part in key), []).append(row)  # nan is nan
        values = [self[name][rows] for rows in groups.values()]
        count = np.array([len(group) for group in values])
        first = [rows[0] for rows in groups.values()]
        spread = [group.std(0, ddof=1) if len(group) > 1 else np.full(group.shape[1:], np.nan) for group in values]
        se = np.stack([s / np.sqrt(n) for s, n in zip(spread, count, strict=True)])
        mean = np.stack([group.mean(0) for group in values])
        return Table({key: self[key][first] for key in by} | {"mean": mean, "se": se, "count": count})

    def difference(self, name: str, by: str | Sequence[str] = (), **pair: tuple[Any, Any]) -> Table:
        """Averages of differences seed by seed: ``table.difference("error", by="n", arm=("reset", "pretrained"))``.

        For each seed and each value of the columns ``by``: ``name`` where arm is the second value minus where it is
        the first; then `mean`. What seeds have in common drops out, so ``se`` is smaller than that of two means.
        ValueError unless both have exactly one row for each of these seeds and values.
        """
        if len(pair) != 1 or not isinstance(next(iter(pair.values())), tuple) or len(next(iter(pair.values()))) != 2:
            raise ValueError(f"one column with two values is needed, such as arm=(one, other), got {pair}")
        ((column, values),) = pair.items()
        by = (by,) if isinstance(by, str) else tuple(by)
        first, second = (self.select(**{column: value}) for value in values)
        keys = [list(zip(*(half[key].tolist() for key in (*by, "seed")), strict=True)) for half in (first, second)]
        if not len(set(keys[0])) == len(keys[0]) == len(keys[1]) or set(keys[0]) != set(keys[1]):
            raise ValueError(f"{column} = {values[0]} and {values[1]} must have one row each for every seed and {by}")
        place = {key: row for row, key in enumerate(keys[1])}
        change = second[name][[place[key] for key in keys[0]]] - first[name]
        every = {} if by else {"": np.zeros(len(first))}  # one group
        means = Table({key: first[key] for key in by} | every | {name: change}).mean(name, by or "")
        return Table({key: values for key, values in means.columns.items() if key})

    def save(self, path: str | Path) -> None:
        """Write to ``path``, an .npz file; the ending is added when it is missing."""
        path = _npz(path)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:  # np.savez has no column "file"
                for name, column in self.columns.items():
                    content = io.BytesIO()
                    np.lib.format.write_array(content, column, allow_pickle=False)
                    archive.writestr(f"{name}.npy", content.getvalue())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> Table:
        """Read what `save` wrote. Nothing in the file is executed; ValueError when it is something else."""
        broken = (ValueError, EOFError, KeyError, AttributeError, TypeError, RuntimeError, NotImplementedError)
        with open(_npz(path), "rb") as file:
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    return cls({name: arrays[name] for name in arrays.files})
            except (*broken, zipfile.BadZipFile, zlib.error) as error:
                raise ValueError(f"{path} is not a table: {error}") from None


def _npz(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")


def _same(column: np.ndarray, value: Any) -> np.ndarray:
    """Which entries are ``value``, of the kind that `_label` gives."""
    if column.dtype.kind == "U":
        return column == str(value)
    if value is None or value != value:
        return column != column
    if isinstance(value, str):
        return np.zeros(len(column), bool)
    if column.dtype.kind == "c" or (isinstance(value, int) and column.dtype.kind in "biu"):
        return column == value
    away, largest = np.abs(column - float(value)), np.abs(column[column == column].astype(float)).max(initial=0)
    return (away == away[away == away].min(initial=np.inf)) & (away <= 1e-7 * abs(value) + 1e-15 * largest)


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
        function: returns a number, a small array, or a dict of them; everything random in it comes from ``seed``.
            It gets copies of the grid's values, which it may change.
        grid: name of an argument -> its values. Numbers and texts keep their type as columns of the table; None
            among numbers is shown as nan, any other value (a dataclass, a tensor) as text.
        seeds: how many (0, 1, ...), or which
        executor: any ``concurrent.futures.Executor``; None computes here. Functions defined in a notebook are sent
            by value, so every way to start processes works: ``ProcessPoolExecutor(4, get_context("spawn"))``.
            Processes share the cores: ``initializer=torch.set_num_threads, initargs=(1,)``. labkit has to be
            installed where a cluster works.
        batched: True (64) or how many rows ``function`` takes in one call: arrays (row,) of values and of seeds,
            and what it returns has that axis first. The dtype of each array is that of all values of the grid
        cache: True (below ``LABKIT_CACHE`` or the user's cache folder), a folder of yours, or False. What makes a
            row be computed again: see `labkit.cache.study_key`.
        progress: show a bar with the time left

    Rows are kept when they are finished, whatever ends the sweep. Two processes may work on one sweep at once:
    each does what the other is not doing. When ``function`` fails for some rows the others are computed all the
    same, unless most fail.

    Raises TypeError or ValueError for arguments that do not fit, a function or a value that has no content to go by,
    or results that do not fit together; CacheError when the cache folder cannot be written; SweepError when the
    executor dies or has imported other code than this process; and the first error of ``function``, with notes that
    name the rows that failed.

    >>> def study(slope, seed):
    ...     return slope * seed
    >>> run(study, {"slope": [0.5, 2.0]}, seeds=3, cache=False, progress=False)["value"]
    array([0. , 0.5, 1. , 0. , 2. , 4. ])
    """
    if isinstance(batched, np.generic) or not isinstance(batched, int) or batched < 0:
        raise ValueError(f"batched must be True, False or a number of rows, got {batched!r}")
    if not (isinstance(cache, bool | Path) or (isinstance(cache, str) and cache)):
        raise TypeError(f"cache must be True, False or a folder, got {cache!r}")
    if not isinstance(executor, Executor | None):
        kind = type(executor).__name__
        raise TypeError(f"executor must be one of concurrent.futures (Dask: client.get_executor()), got a {kind}")
    size = BATCH if batched is True else int(batched)
    axes = _axes(function, grid, seeds)
    columns = {name: _column(name, values) for name, values in axes.items()}
    if size:  # what a function is called with must not depend on which rows share the call
        if any(value is None or _label(value) is not value for values in axes.values() for value in values):
            raise ValueError("a batched function needs numbers or texts as values of the grid")
        axes = {name: column.tolist() for name, column in columns.items()}
    store = None if cache is False else Cache.open(function, None if cache is True else cache)
    keys = []
    if store:
        named = [[value_key(value, f"the argument {name}") for value in axes[name]] for name in axes]
        keys = [entry_key(store.folder.name, dict(zip(axes, each, strict=True))) for each in itertools.product(*named)]
    rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    sweep = _Sweep(
        function, rows, store, keys, {name: column.dtype for name, column in columns.items()} if size else None
    )
    there = sweep.recall(range(len(rows)))
    with tqdm(total=len(rows), initial=there, desc=_name(function), unit="row", disable=not progress) as bar:
        if there < len(rows):
            sweep.work(executor or _Here(), size or 1, bar)
    places = list(itertools.product(*(range(len(values)) for values in axes.values())))
    shown = {name: columns[name][[place[i] for place in places]] for i, name in enumerate(axes)}
    return Table(shown | {name: np.stack([sweep.found[i][name] for i in range(len(rows))]) for name in sweep.found[0]})


def _axes(function: Callable, grid: Mapping[str, Sequence], seeds: int | Sequence[int]) -> dict[str, list]:
    """The values of every argument, in the order of the table; the seeds come last and move fastest."""
    if not isinstance(grid, Mapping) or not all(isinstance(name, str) for name in grid):
        raise TypeError(f"grid must map names of arguments to lists of values, got {grid!r}")
    if "seed" in grid:
        raise ValueError("grid must not contain seed: say seeds=...")
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        seeds = range(seeds)
    which = _values("seed", seeds) if hasattr(seeds, "__iter__") else [None]
    if not all(type(seed) is int for seed in which):
        raise TypeError(f"seeds must be a number of seeds or a list of integers, got {seeds!r}")
    axes = {name: _values(name, values) for name, values in grid.items()} | {"seed": which}
    for name, values in axes.items():
        labels = [_label(value) for value in values]
        if not labels or len(set(labels)) < len(labels):
            raise ValueError(f"the values of {name} must be at least one and all different, got {labels}")
    try:
        inspect.signature(function).bind(**dict.fromkeys(axes))
    except (TypeError, ValueError) as error:
        raise TypeError(f"function must take the arguments {', '.join(axes)}: {error}") from None
    return axes


def _values(name: str, values: Sequence) -> list:
    if isinstance(values, str | Mapping) or not hasattr(values, "__iter__") or getattr(values, "ndim", 1) != 1:
        raise TypeError(f"the values of {name} must be a list, got {values!r}")
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    # a row of a large tensor would be sent with all of it
    return [v.detach().clone().requires_grad_(v.requires_grad) if hasattr(v, "untyped_storage") else v for v in values]


def _column(name: str, values: list) -> np.ndarray:
    """The values as the table shows them."""
    labels = [_label(value) for value in values]
    if not all(-(2**63) <= label < 2**63 for label in labels if type(label) is int):
        raise ValueError(f"integers of {name} must lie in [-2**63, 2**63 - 1], got {labels}")
    nothing = "None" if {type(label) for label in labels} & {str} or {*labels} == {None} else np.nan
    return np.array([nothing if label is None else label for label in labels])


def _label(value: Any) -> Any:
    """What the table shows for a value of the grid."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    text = str(value)
    if "..." in text:  # shortened, as are long tensors, which may differ in what is left out
        with contextlib.suppress(TypeError):  # something in it has no content
            text += f" #{value_key(value)[:8]}"
    return text


class _Sweep:
    """The rows, the results found so far, and the work that finds the others."""

    def __init__(self, function: Callable, rows: list[Row], store: Cache | None, keys: list[str], dtypes: dict | None):
        self.function, self.rows, self.store, self.keys, self.dtypes = function, rows, store, keys, dtypes
        self.found: dict[int, Result] = {}
        self.mine: set[int] = set()  # rows that this process works on
        self.warned = False

    def recall(self, numbers: Iterable[int]) -> int:
        """Take from the cache what is there, and say how many that were."""
        there = {i: result for i in numbers if self.store and (result := self.store.read(self.keys[i])) is not None}
        for i, result in there.items():
            self.admit(i, result)
        return len(there)

    def work(self, executor: Executor, size: int, bar: tqdm) -> None:
        """Compute what is missing, so many calls at a time that every worker has a next one waiting."""
        call = _sendable(self.function, executor)
        limit = 2 * getattr(executor, "_max_workers", WORKERS) or 1  # private, but all of concurrent.futures has it
        waiting: dict[Future, list[int]] = {}
        failed: list[tuple[int, Exception]] = []
        batches, before = self.batches(size, bar), len(self.found)
        try:
            while True:
                while len(waiting) < limit and (batch := next(batches, None)):
                    waiting[self.submit(executor, call, batch)] = batch
                if not waiting:
                    break
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    error = CancelledError() if future.cancelled() else future.exception()
                    if error is not None and (_died(error) or not isinstance(error, Exception)):
                        raise error
                    batch = waiting.pop(future)
                    if error is None:
                        self.keep(batch, future.result(), bar)
                    else:
                        failed.append((batch[0], error))
                        self.release(batch)
                if len(failed) >= TRIES and len(failed) * size > len(self.found) - before:
                    break
            if failed:
                raise failed[0][1]
        except BaseException as error:
            for future, batch in waiting.items():
                if not future.cancel() and _succeeded(future):  # what was finished meanwhile
                    self.keep(batch, future.result(), bar)
            place = f"kept in {self.store.folder}: the same call goes on from there" if self.store else "lost"
            state = f"{len(self.found)} of {len(self.rows)} rows are finished and {place}"
            if _died(error):
                raise SweepError(f"the executor died ({type(error).__name__}: {error}); {state}") from error
            for i, other in [(i, other) for i, other in failed if other is not error][:TRIES]:
                error.add_note(f"and {type(other).__name__}: {other} in {_shown(self.function, self.rows[i])}")
            if len(failed) > TRIES:
                error.add_note(f"{len(failed)} calls failed")
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

    def submit(self, executor: Executor, call: Callable | bytes, batch: list[int]) -> Future:
        try:  # as bytes, so that every call has its own copy, and a tensor is not shared memory with a worker
            rows = cloudpickle.dumps([self.rows[i] for i in batch])
        except Exception as error:  # whatever the objects say
            raise TypeError(f"a value of the grid cannot be copied for each call ({error})") from error
        try:
            return executor.submit(_call, call, compute.profile(), rows, self.dtypes)
        except Exception as error:  # it was shut down or broken before
            raise BrokenExecutor(str(error)) from error

    def admit(self, i: int, result: Result) -> None:
        """Refuse a result that would not fit into the table as soon as it is there."""
        first = next(iter(self.found), i)
        if clash := set(self.rows[i]) & set(result):
            raise ValueError(f"a result must not have the name of an argument, got {', '.join(sorted(clash))}")
        if _form(result) != (expected := _form(self.found.get(first, result))):
            shapes = f"{self.rows[first]} gave {expected}, but {self.rows[i]} gave {_form(result)}"
            raise ValueError(f"all rows must return the same: {shapes}")
        self.found[i] = result

    def keep(self, batch: list[int], results: list[Result], bar: tqdm) -> None:
        for i, result in zip(batch, results, strict=True):
            self.admit(i, result)
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


def _shown(function: Callable, row: Row) -> str:
    return f"{_name(function)}({', '.join(f'{name}={value!r}' for name, value in row.items())})"


def _form(result: Result) -> dict[str, tuple]:
    """What must be the same in all rows: the shapes, and which results are texts."""
    return {name: (*value.shape, "text") if value.dtype.kind == "U" else value.shape for name, value in result.items()}


def _sendable(function: Callable, executor: Executor) -> Callable | bytes:
    """The function itself for this process; for others as bytes, by value when it was made in a notebook."""
    if isinstance(executor, ThreadPoolExecutor | _Here):
        return function
    loaded = loaded_code(function) if inspect.isfunction(function) else {}
    try:
        return cloudpickle.dumps((function, loaded))
    except Exception as error:  # whatever the objects that it uses say
        raise TypeError(
            f"{_name(function)} cannot be sent to another process ({error}): let it make what it needs itself"
        ) from error


@functools.lru_cache(8)  # once a process, not once a row
def _received(sent: bytes) -> Callable:
    if parent := multiprocessing.parent_process():  # a worker whose parent was killed would wait for work forever
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    function, loaded = pickle.loads(sent)
    for module, code in loaded.items():
        if module in sys.modules and loaded_module(module) != code:
            raise SweepError(
                f"a worker has imported another version of {module} than the process that started it: restart both"
            )
    return function


def _call(function: Callable | bytes, profile: str, sent: bytes, dtypes: dict | None) -> list[Result]:
    """The results of some rows; runs where the executor puts it. ``dtypes``: of the arrays of a batched call."""
    if away := isinstance(function, bytes):
        function = _received(function)
        if compute.profile() != profile:
            compute.use_profile(profile)  # a choice made in the process that started this one
    rows = pickle.loads(sent)
    try:
        if not dtypes:
            return [_result(function(**rows[0]))]
        arrays = {name: np.array([row[name] for row in rows], dtype) for name, dtype in dtypes.items()}
        returned = _result(function(**arrays))
        for name, value in returned.items():
            if value.shape[:1] != (len(rows),):
                raise ValueError(
                    f"{name} must have one entry for each of the {len(rows)} rows, got shape {value.shape}"
                )
        return [{name: value[i] for name, value in returned.items()} for i in range(len(rows))]
    except Exception as error:
        where = f"in {_shown(function, pickle.loads(sent)[0])}" + (f" and {len(rows) - 1} more rows" if dtypes else "")
        error.add_note(where)
        if away and not _travels(error):
            text = "".join(traceback.format_exception(error))
            raise SweepError(f"{type(error).__name__}: {error}, {where}\n{text}") from None
        raise


def _travels(error: Exception) -> bool:
    """Whether an error survives the way to another process: one whose ``__init__`` takes two arguments does not."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # whatever its class does
        return False


def _result(returned: Any) -> Result:
    """What a function returned, as arrays of their own on the CPU."""
    named = returned if isinstance(returned, Mapping) else {"value": returned}
    result = {}
    for name, value in named.items():
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value  # numpy has no such numbers
        try:
            value = np.asarray(value).copy()  # it may be a buffer that is used again
        except (TypeError, ValueError, RuntimeError):  # a ragged list, a sparse tensor
            value = np.array(None)
        if not isinstance(name, str) or value.dtype.kind not in "biufcU":
            raise TypeError(f"results must be numbers, texts or arrays of them, with a text as name: got {named!r}")
        result[name] = value
    if not result:
        raise TypeError("a function must return at least one result, got an empty dict")
    return result
