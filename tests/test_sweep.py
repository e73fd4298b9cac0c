import functools
import importlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import timeit
from collections import Counter
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest
import torch

from labkit import compute, sweep
from labkit.cache import CacheError, study_key
from labkit.diagonal.tasks import FULL, NONE
from labkit.sweep import SweepError, Table, run
from tests.calibration import time_factor
from tests.studies import batched_study, counted, dying, study
from tests.test_cache import define

GRID = {"lam": [-0.5, 0.0, 0.5], "n": [20, 40]}


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """A cache of its own for every test."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))


def calls(log):
    return Counter(Path(log).read_text().splitlines()) if Path(log).exists() else Counter()


def assert_same(table, other):
    assert list(table.columns) == list(other.columns)
    for name, column in table.columns.items():
        np.testing.assert_array_equal(column, other[name], strict=True)  # shape and dtype too


# ---- what comes out


def test_one_row_for_each_point_and_seed_the_seed_moving_fastest():
    table = run(study, GRID, seeds=[3, 5], cache=False, progress=False)
    rows = [(lam, n, seed) for lam in GRID["lam"] for n in GRID["n"] for seed in (3, 5)]
    assert list(zip(*(table[name].tolist() for name in ("lam", "n", "seed")), strict=True)) == rows
    assert table["curve"].shape == (12, 3) and table["steps"].tolist() == [n + seed for _, n, seed in rows]
    assert [table[name].dtype.kind for name in table.columns] == list("fiiffiUU")
    for row, error in zip(rows, table["error"], strict=True):
        assert error == float(study(*row)["error"])


@pytest.mark.parametrize("size", [True, 1, 5, 100])
def test_batched_gives_the_same_table(size):
    serial = run(study, GRID, seeds=4, cache=False, progress=False)
    assert_same(serial, run(batched_study, GRID, seeds=4, batched=size, cache=False, progress=False))
    assert_same(serial, run(batched_study, GRID, seeds=4, batched=size, progress=False))
    assert_same(serial, run(batched_study, GRID, seeds=4, batched=size, progress=False))  # from the cache


@contextmanager
def dask_cluster():
    distributed = pytest.importorskip("distributed", reason="dask[distributed] is not installed")
    place = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**place) as cluster, distributed.Client(cluster) as client:
        yield client.get_executor()


EXECUTORS = {
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": lambda: ProcessPoolExecutor(4, get_context("spawn")),
    "dask": dask_cluster,
}


@pytest.mark.parametrize("kind", EXECUTORS)
def test_every_executor_gives_the_same_table_and_knows_the_profile(kind):
    with compute.use_profile("quick"), EXECUTORS[kind]() as executor:
        serial = run(study, GRID, seeds=4, cache=False, progress=False)
        options = {"executor": executor, "progress": False}
        assert set(serial["profile"]) == {"quick"}
        assert_same(serial, run(study, GRID, seeds=4, cache=False, **options))
        assert_same(serial, run(batched_study, GRID, seeds=4, batched=7, **options))
        assert_same(serial, run(study, GRID, seeds=4, **options))  # filled by the executor ...
        assert_same(serial, run(study, GRID, seeds=4, progress=False))  # ... read here
        local = define("k = 2\ndef study(x, seed): return x * seed * k")  # as made in a notebook
        assert run(local, {"x": [1, 2]}, seeds=3, **options)["value"].tolist() == [0, 2, 4, 0, 4, 8]
        with pytest.raises(ZeroDivisionError) as error:
            run(define("def study(x, seed): return 1 // x"), {"x": [1, 0]}, **options)
        assert "in study(x=0, seed=0)" in error.value.__notes__


def grown(lam, seed):
    out = np.zeros_like(lam)
    out[:] = 0.5 + lam
    return out


@pytest.mark.parametrize("values", [[1, 0.5], [True, 3], [1, 2]])
def test_what_a_batched_function_gets_does_not_depend_on_the_batch(values):
    tables = [run(grown, {"lam": values}, 2, batched=size, cache=False, progress=False) for size in (1, 2, 3, True)]
    for table in tables:
        assert_same(tables[0], table)
    run(grown, {"lam": values[:1]}, 2, batched=True, progress=False)
    assert_same(tables[0], run(grown, {"lam": values}, 2, batched=True, progress=False))  # as int, 1 is another call


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(2)])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros, lambda size: [0.0] * size])
def test_results_and_values_are_copies(make, executor):
    """A study may return a buffer that it uses again, and write into the values that it gets."""
    buffer, given, options = make(2), make(2), {"executor": executor, "progress": False}

    def reuse(x, seed):
        buffer[0] += x
        return buffer

    def change(w, seed):
        w[0] += 1
        return w

    expected = [1, 3, 6]
    assert run(reuse, {"x": [1, 2, 3]}, cache=False, progress=False)["value"][:, 0].tolist() == expected
    for _ in range(2):
        assert run(change, {"w": [given]}, seeds=3, **options)["value"].tolist() == [[1, 0]] * 3
        assert list(given) == [0, 0]


def test_long_tensors_that_differ_where_their_text_is_shortened():
    one, other = torch.zeros(3000), torch.zeros(3000)
    other[1500] = 1
    table = run(lambda w, seed: w.sum(), {"w": [one, other]}, seeds=2, progress=False)
    assert table.select(w=other)["value"].tolist() == [1, 1] and table.mean("value", by="w")["mean"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="all different"):
        run(lambda w, seed: w.sum(), {"w": [one, one.clone()]}, progress=False)


def test_none_among_numbers_is_nan_in_the_table():
    table = run(lambda alpha, seed: alpha is None, {"alpha": [None, 1, 2.5]}, seeds=2, progress=False)
    np.testing.assert_array_equal(table["alpha"], [np.nan, np.nan, 1, 1, 2.5, 2.5])
    assert all(table.select(alpha=value)["value"].tolist() == [True, True] for value in (None, np.nan))
    assert table.mean("value", by="alpha")["count"].tolist() == [2, 2, 2]
    mixed = run(lambda x, seed: 0, {"x": ["a", 1, None]}, progress=False)
    assert mixed["x"].tolist() == ["a", "1", "None"] and len(mixed.select(x=1)) == len(mixed.select(x=None)) == 1


def test_seeds_may_come_from_a_generator():
    assert run(lambda seed: seed, {}, (2 * i for i in range(3)), progress=False)["value"].tolist() == [0, 2, 4]
    assert run(lambda seed: seed, {}, torch.tensor([5, 7]), progress=False)["seed"].tolist() == [5, 7]


def test_results_in_half_precision():
    table = run(lambda seed: {"a": torch.ones(2).bfloat16(), "b": torch.ones(2).half()}, {}, progress=False)
    assert table["a"].tolist() == table["b"].tolist() == [[1, 1]]


def test_tensors_become_arrays():
    def study(x, seed):
        weights = torch.full((2,), x, requires_grad=True)
        return {"sum": weights.sum(), "weights": weights, "many": weights > 0}

    table = run(study, {"x": [1.0, -2.0]}, cache=False, progress=False)
    assert table["sum"].dtype == np.float32 and table["sum"].tolist() == [2, -4]
    assert table["weights"].tolist() == [[1, 1], [-2, -2]] and table["many"].tolist() == [[True] * 2, [False] * 2]


def test_values_that_are_no_numbers_are_shown_as_text():
    table = run(lambda task, seed: task.rho_ft, {"task": [FULL, NONE]}, cache=False, progress=False)
    assert table["task"].tolist() == [str(FULL), str(NONE)]
    assert table.select(task=NONE)["value"].tolist() == [NONE.rho_ft]


def test_numbers_of_numpy_reach_the_function_as_those_of_python():
    types = run(lambda x, seed: f"{type(x).__name__} {type(seed).__name__}", {"x": np.linspace(0, 1, 2)}, cache=False)
    assert set(types["value"]) == {"float int"}


def test_the_bar_counts_what_was_there_before(tmp_path, capsys):
    grid = {"log": [str(tmp_path / "log")], "x": [1, 2]}
    run(counted, grid, seeds=2)
    assert "4/4" in capsys.readouterr().err
    run(counted, grid, seeds=3)
    shown = capsys.readouterr().err
    assert "counted:  67%" in shown and "4/6" in shown and "6/6" in shown
    run(counted, grid, seeds=3, progress=False)
    assert capsys.readouterr() == ("", "")


# ---- the table


def test_mean_se_and_count_by_group():
    rng = np.random.default_rng(0)
    error, n = rng.standard_normal((60, 2)), np.repeat([30, 10, 20], 20)
    table = Table({"n": n, "c": np.tile(["a", "b"], 30), "error": error}).mean("error", by=("n", "c"))
    assert list(zip(table["n"], table["c"], strict=True)) == [(n, c) for n in (30, 10, 20) for c in "ab"]
    for i in range(6):
        group = error[(n == table["n"][i]) & (np.tile(["a", "b"], 30) == table["c"][i])]
        np.testing.assert_allclose(table["mean"][i], group.mean(0))
        np.testing.assert_allclose(table["se"][i], np.sqrt(((group - group.mean(0)) ** 2).sum(0) / 9 / 10))
    assert table["count"].tolist() == [10] * 6


def test_a_single_row_has_no_standard_error():
    table = Table({"n": np.array([1, 2, 2]), "error": np.array([1.0, 2.0, 4.0])}).mean("error", by="n")
    np.testing.assert_array_equal(table["se"], [np.nan, 1.0])


@pytest.mark.parametrize("by", [(), "mean", ("n", "se"), "count"])
def test_mean_refuses_groups_it_cannot_name(by):
    with pytest.raises(ValueError, match="by must name columns other than mean, se and count"):
        Table({"n": np.arange(2), "mean": np.arange(2), "se": np.arange(2), "count": np.arange(2)}).mean("n", by)


def test_select_finds_numbers_to_rounding_and_names_what_there_is():
    table = Table({"c": np.array([0.1 + 0.2, 1e-8, 2e-8, 0.0]), "name": np.array(list("abba")), "k": np.arange(4)})
    assert table.select(c=0.3)["k"].tolist() == [0] and table.select(c=np.float64(1e-8))["k"].tolist() == [1]
    assert table.select(c=0)["k"].tolist() == [3] and table.select(name="b", k=2)["c"].tolist() == [2e-8]
    with pytest.raises(ValueError, match="no row has name = z; its values are a, b"):
        table.select(name="z")
    with pytest.raises(ValueError, match="no row has name = a, k = 1 together"):
        table.select(name="a", k=1)
    with pytest.raises(KeyError, match="there is no column 'd', only c, name, k"):
        table.select(d=1)


def test_differences_are_taken_seed_by_seed():
    rng = np.random.default_rng(0)
    n, arm, seed = (part.ravel() for part in np.meshgrid([10, 20], [0, 1], range(50), indexing="ij"))
    common = rng.standard_normal((2, 50))
    error = common[n // 10 - 1, seed] + arm * n + 0.01 * rng.standard_normal(200)
    order = rng.permutation(200)
    table = Table(
        {"n": n[order], "arm": np.array(["off", "on"])[arm][order], "seed": seed[order], "error": error[order]}
    )
    change = table.difference("error", by="n", arm=("off", "on"))
    expected = {k: error[(n == k) & (arm == 1)] - error[(n == k) & (arm == 0)] for k in (10, 20)}
    for row, k in enumerate(change["n"].tolist()):
        assert change["mean"][row] == pytest.approx(expected[k].mean())
        assert change["se"][row] == pytest.approx(expected[k].std(ddof=1) / 50**0.5) and change["count"][row] == 50
    assert list(change.columns) == ["n", "mean", "se", "count"] and (change["se"] < 0.01).all()
    alone = table.select(n=10).difference("error", arm=("on", "off"))
    assert list(alone.columns) == ["mean", "se", "count"] and alone["mean"][0] == pytest.approx(-expected[10].mean())
    with pytest.raises(ValueError, match="must have one row each for every seed"):
        table.difference("error", arm=("off", "on"))  # two rows, n = 10 and 20, for each seed
    with pytest.raises(ValueError, match="one column with two values is needed"):
        table.difference("error", arm="on")


def test_mean_treats_nan_as_a_value_and_refuses_texts():
    table = Table({"a": np.array([np.nan, 1, np.nan]), "x": np.array([1.0, 2, 3]), "s": np.array(list("abc"))})
    assert table.mean("x", by="a")["mean"].tolist() == [2, 2]
    with pytest.raises(ValueError, match="the column s holds texts, which have no mean"):
        table.mean("s", by="a")


def test_mean_of_many_groups_takes_no_longer_than_of_few():
    x, options = np.zeros(20_000), {"number": 1, "repeat": 3}
    tables = [Table({"n": np.arange(len(x)) % groups, "x": x}) for groups in (2000, 20_000)]
    few, many = (min(timeit.repeat(lambda t=t: t.mean("x", by="n"), **options)) for t in tables)
    assert many < 30 * few  # quadratic: 100 times


@pytest.mark.parametrize(
    ("column", "value", "place"),
    [
        (np.arange(-0.3, 0.3, 0.1), 0, 3),
        (np.arange(-0.3, 0.3, 0.1), 0.1, 4),
        (np.array([0.1, 0.2], np.float32).astype(float), 0.1, 0),
        (np.array([0.0, 1e-12, 1.0]), 0, 0),
        (np.array([1.0, 1 + 1e-9]), 1 + 1e-9, 1),
        (np.array([np.nan, 1.0]), np.nan, 0),
        (np.array([2**60, 2**60 + 1]), 2**60 + 1, 1),
    ],
)
def test_select_takes_the_number_that_is_meant(column, value, place):
    assert Table({"x": column, "k": np.arange(len(column))}).select(x=value)["k"].tolist() == [place]


@pytest.mark.parametrize(
    ("column", "value"),
    [([1e-12, 1.0], 0), ([1.0, 2.0], 1.001), ([1.0], np.nan), ([1.0], "a"), (["1.5"], 1), ([1, 2], 1.4)],
)
def test_select_does_not_take_another(column, value):
    with pytest.raises(ValueError, match="no row has x"):
        Table({"x": np.array(column)}).select(x=value)


@pytest.mark.parametrize("name", ["tab", "tab.npz", "v1.2"])
def test_a_table_is_found_under_the_name_it_was_saved_by(tmp_path, name):
    table = Table({"file": np.arange(2), "λ": np.ones((2, 2)), "allow_pickle": np.array(["a", "b"])})
    table.save(tmp_path / name)
    assert_same(table, Table.load(tmp_path / name))
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_a_saved_table_is_the_same_when_loaded(tmp_path):
    table = run(study, GRID, seeds=2, cache=False, progress=False)
    table.save(tmp_path / "table.npz")
    assert_same(table, Table.load(tmp_path / "table.npz"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"\x80\x04N.", np.arange(3)])
def test_loading_something_else_is_refused(tmp_path, content):
    if isinstance(content, np.ndarray):
        file = io.BytesIO()
        np.save(file, content)
        content = file.getvalue()
    (tmp_path / "table.npz").write_bytes(content)
    with pytest.raises(ValueError, match="table.npz is not a table"):
        Table.load(tmp_path / "table.npz")


def test_a_table_of_objects_is_refused_unread(tmp_path):
    np.savez(tmp_path / "table.npz", x=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="is not a table: Object arrays cannot be loaded"):
        Table.load(tmp_path / "table.npz")


# ---- interrupted, and at the same time

STRANGER = """
import sys, time
from labkit import sweep
log, table, points = sys.argv[1], sys.argv[2], int(sys.argv[4])
def study(x, seed):
    with open(log, "a") as file:
        file.write(f"{x} {seed}\\n")
    time.sleep(float(sys.argv[3]))
    return x * seed
sweep.run(study, {"x": list(range(points))}, seeds=4, progress=False).save(table)
"""


def start(tmp_path, name, wait, points):
    """Another process with a study of 4·points rows; its calls go to ``name``.log, its table to ``name``.npz."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [str(tmp_path / "log"), str(tmp_path / f"{name}.npz"), str(wait), str(points)]
    command = [sys.executable, "-W", "error", str(tmp_path / "stranger.py"), *words]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def finished(tmp_path):
    return {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file() and not path.suffix}


def expected(points):
    return np.multiply.outer(np.arange(points), np.arange(4)).ravel()


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path):
    first = start(tmp_path, "first", wait=0.02, points=50)
    while len(finished(tmp_path)) < 60:
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept, before = finished(tmp_path), calls(tmp_path / "log")
    assert 60 <= len(kept) < 200 and len(before) - len(kept) in (0, 1)  # one may have been in the making

    second = start(tmp_path, "second", wait=0, points=50)
    assert (second.communicate()[1], second.returncode) == ("", 0)
    assert np.array_equal(Table.load(tmp_path / "second.npz")["value"], expected(50))
    after = calls(tmp_path / "log")
    assert len(after) == 200 and len(kept) + sum(after.values()) - sum(before.values()) == 200
    assert kept <= finished(tmp_path) and not list((tmp_path / "cache").rglob("*.claim"))


WITH_POOL = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from labkit import sweep
def study(folder, x, seed):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(0.05)
    return x
if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        sweep.run(study, {"folder": [sys.argv[1]], "x": list(range(10_000))}, executor=pool, progress=False)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_the_workers_of_a_killed_process_end_too(tmp_path):
    workers = tmp_path / "workers"
    workers.mkdir()
    (tmp_path / "with_pool.py").write_text(WITH_POOL)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, str(tmp_path / "with_pool.py"), str(workers)], env=environment)
    while len(list(workers.iterdir())) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    patience = time.monotonic() + 60
    while alive := [path.name for path in workers.iterdir() if (Path("/proc") / path.name).exists()]:
        assert time.monotonic() < patience, alive
        time.sleep(0.02)


def test_two_processes_share_the_work(tmp_path):
    both = [start(tmp_path, name, wait=0.005, points=125) for name in ("one", "other")]
    for process in both:
        assert (process.communicate()[1], process.returncode) == ("", 0)  # no warning either
    done = calls(tmp_path / "log")
    assert len(done) == 500 and sum(done.values()) <= 502  # at the end each may do what the other is just doing
    for name in ("one", "other"):
        assert np.array_equal(Table.load(tmp_path / f"{name}.npz")["value"], expected(125))
    assert len(finished(tmp_path)) == 500 and len(list((tmp_path / "cache").rglob("*"))) == 502


def test_an_error_of_the_function_keeps_what_is_finished(tmp_path):
    source = "def study(log, x, seed):\n    counted(log, x, seed)\n    return 1 // (x < {} or seed < 1) * x"
    grid = {"log": [str(tmp_path / "log")], "x": [0, 1, 2]}
    broken = define(source.format(1), counted=counted)
    with pytest.raises(ZeroDivisionError) as error:
        run(broken, grid, seeds=2, progress=False)
    where, other, kept = error.value.__notes__
    assert where.startswith("in study(log=") and where.endswith("x=1, seed=1)")
    assert other.startswith("and ZeroDivisionError: ") and other.endswith("x=2, seed=1)")
    assert kept.startswith("4 of 6 rows are finished and kept in ") and kept.endswith("goes on from there")
    with pytest.raises(ZeroDivisionError):
        run(broken, grid, seeds=2, progress=False)
    assert list(calls(tmp_path / "log").values()) == [1, 1, 1, 2, 1, 2] and not list(tmp_path.rglob("*.claim"))


@pytest.mark.parametrize("executor", [None, ThreadPoolExecutor(1)])
def test_a_study_that_always_fails_is_not_tried_on_every_row(tmp_path, executor):
    broken = define("def study(log, x, seed):\n    counted(log, x, seed)\n    return 1 // 0", counted=counted)
    with pytest.raises(ZeroDivisionError) as error:
        run(broken, {"log": [str(tmp_path / "log")], "x": range(100)}, executor=executor, progress=False)
    assert len(calls(tmp_path / "log")) <= sweep.TRIES + 2 and "0 of 100 rows" in error.value.__notes__[-1]


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    source = "def study(log, stop, x, seed):\n    if x == 5 and Path(stop).exists(): raise KeyboardInterrupt\n"
    patient = define(source + "    return counted(log, x, seed)", counted=counted, Path=Path)
    grid = {"log": [str(tmp_path / "log")], "stop": [str(tmp_path / "stop")], "x": range(10)}
    (tmp_path / "stop").touch()
    with pytest.raises(KeyboardInterrupt) as error:
        run(patient, grid, progress=False)
    assert error.value.__notes__[0].startswith("5 of 10 rows are finished and kept")
    (tmp_path / "stop").unlink()
    assert run(patient, grid, progress=False)["x"].tolist() == list(range(10))
    assert set(calls(tmp_path / "log").values()) == {1} and not list((tmp_path / "cache").rglob("*.claim"))


class Losing(Executor):
    """Loses its worker in the thirteenth call and says so as Dask does: real workers die at any time."""

    def __init__(self):
        from distributed.scheduler import KilledWorker

        self.calls, self.error = 0, KilledWorker("study", SimpleNamespace(address="tcp://127.0.0.1:0"), 0)

    def submit(self, function, *args):
        future, self.calls = sweep.Future(), self.calls + 1
        if self.calls == 13:
            future.set_exception(self.error)
        else:
            future.set_result(function(*args))
        return future


def test_a_cluster_that_loses_a_worker_keeps_what_is_finished(tmp_path):
    pytest.importorskip("distributed", reason="dask[distributed] is not installed")
    grid = {"log": [str(tmp_path / "log")], "x": range(16)}
    with pytest.raises(SweepError, match=r"the executor died \(KilledWorker: .* of 16 rows are .* kept"):
        run(counted, grid, executor=Losing(), progress=False)
    assert 12 <= len(finished(tmp_path)) < 16
    assert run(counted, grid, progress=False)["x"].tolist() == list(range(16))
    assert set(calls(tmp_path / "log").values()) == {1}


def test_an_executor_that_dies_keeps_what_is_finished(tmp_path):
    grid = {"log": [str(tmp_path / "log")], "alive": [str(tmp_path / "alive")], "x": range(16)}
    with (
        EXECUTORS["processes"]() as executor,
        pytest.raises(SweepError, match=r"the executor died .* of 16 rows are .* kept"),
    ):
        run(dying, grid, executor=executor, progress=False)
    before = calls(tmp_path / "log")
    kept = len(finished(tmp_path))
    (tmp_path / "alive").touch()
    table = run(dying, grid, progress=False)
    assert table["x"].tolist() == list(range(16))
    assert sum(calls(tmp_path / "log").values()) - sum(before.values()) == 16 - kept


class Stubborn(Exception):
    """Survives pickle.dumps, but not pickle.loads, as many errors of libraries."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def stubborn(x, seed):
    raise Stubborn(x, seed)


def test_an_error_that_cannot_be_sent_comes_as_text():
    with EXECUTORS["processes"]() as executor, pytest.raises(SweepError, match=r"Stubborn: 1 and 0, in stubborn\(x=1"):
        run(stubborn, {"x": [1]}, executor=executor, progress=False)


VERSIONED = "from labkit import sweep\nK = {0}\ndef inner(x): return {0} * x\ndef study(x, seed): return inner(x)\n"


@pytest.mark.parametrize("edited", [VERSIONED.format(2), VERSIONED.format(1).replace("K = 1", "K = 2")])
def test_workers_that_import_another_version_are_noticed(tmp_path, monkeypatch, edited):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "versioned.py").write_text(VERSIONED.format(1))
    module = importlib.import_module("versioned")
    try:
        with EXECUTORS["processes"]() as executor:
            run(module.study, {"x": [1]}, executor=executor, progress=False)
        (tmp_path / "versioned.py").write_text(edited)
        expected = pytest.raises(SweepError, match="imported another version of versioned than the process that")
        with EXECUTORS["processes"]() as executor, expected:
            run(module.study, {"x": [2]}, executor=executor, progress=False)
    finally:
        del sys.modules["versioned"]


@pytest.mark.skipif(not Path("/proc").exists(), reason="counts open files in /proc")
def test_tensors_are_sent_without_open_files():
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        options = {"executor": executor, "cache": False, "progress": False}
        run(total, {"w": [torch.full((4,), 0)]}, **options)
        before = len(os.listdir("/proc/self/fd"))
        call, rows = sweep._sendable(total, executor), [[{"w": torch.full((4,), i)}] for i in range(200)]
        jobs = [executor.submit(sweep._call, call, "standard", cloudpickle.dumps(row), None) for row in rows]
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        assert [job.result()[0]["value"] for job in jobs] == [4 * i for i in range(200)]


def total(w, seed=0):
    return w.sum()


def test_what_does_not_fit_is_noticed_at_once(tmp_path):
    for wrong in ("{'x': 1}", "np.zeros(x)", "x if x != 1 else 'diverged'"):
        source = "def study(log, x, seed):\n    counted(log, x, seed)\n    return " + wrong
        (tmp_path / "log").unlink(missing_ok=True)
        grid = {"log": [str(tmp_path / "log")], "x": range(50)}
        with pytest.raises(ValueError, match="all rows must return the same|must not have the name of an argument"):
            run(define(source, counted=counted, np=np), grid, progress=False)
        assert len(calls(tmp_path / "log")) <= 2


def test_a_study_may_go_to_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_CACHE", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "far").mkdir()
    roam = define("import os\ndef study(to, x, seed): os.chdir(to); return x")
    for cache in (True, "there", "~/mine"):
        monkeypatch.chdir(tmp_path)
        run(roam, {"to": [str(tmp_path / "far")], "x": [1, 2, 3]}, progress=False, cache=cache)
    assert {path.name for path in tmp_path.iterdir()} == {"far", "here", "there", "mine"}
    assert not list((tmp_path / "far").iterdir()) and not list(tmp_path.rglob("*.claim"))


def test_an_executor_that_was_shut_down_is_a_sentence():
    with ThreadPoolExecutor(1) as executor:
        pass
    with pytest.raises(SweepError, match="the executor died .*shutdown.*; 0 of 1 rows are finished and kept in"):
        run(lambda seed: 1, {}, executor=executor, progress=False)


class Hopeless(Executor):
    """Cancels whatever it is given, as a cluster does that is closed."""

    def submit(self, function, *args):
        future = sweep.Future()
        future.cancel()
        future.set_running_or_notify_cancel()
        return future


def test_a_cluster_that_was_closed_is_a_sentence():
    with pytest.raises(SweepError, match=r"the executor died \(CancelledError: \); 0 of 1 rows are finished and lost"):
        run(lambda seed: 1, {}, executor=Hopeless(), cache=False, progress=False)


# ---- the cache


def test_only_what_is_new_is_computed(tmp_path):
    log = str(tmp_path / "log")
    run(counted, {"log": [log], "x": [1, 2]}, seeds=2, progress=False)
    table = run(counted, {"x": [2, 3], "log": [log]}, seeds=[1, 2], progress=False)
    assert table["value"].tolist() == [2, 4, 3, 6]
    assert set(calls(log).values()) == {1} and len(calls(log)) == 7
    run(counted, {"log": [log], "x": [1]}, seeds=2, progress=False, cache=tmp_path / "elsewhere")
    run(counted, {"log": [log], "x": [1]}, seeds=2, progress=False, cache=False)
    assert calls(log)["1 0"] == 3


def test_a_damaged_entry_costs_its_row_only(tmp_path):
    grid = {"log": [str(tmp_path / "log")], "x": [1, 2, 3]}
    run(counted, grid, seeds=2, progress=False)
    path = next(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="is damaged .*; it is computed again"):
        table = run(counted, grid, seeds=2, progress=False)
    assert table["value"].tolist() == [0, 1, 0, 2, 0, 3]
    assert sorted(calls(tmp_path / "log").values()) == [1] * 5 + [2]
    run(counted, grid, seeds=2, progress=False)
    assert sum(calls(tmp_path / "log").values()) == 7


def test_a_full_disk_is_one_warning_and_the_table_is_made(tmp_path, monkeypatch):
    grid = {"log": [str(tmp_path / "log")], "x": [1, 2, 3]}
    run(counted, grid, seeds=1, progress=False)
    write = Path.write_bytes

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(UserWarning, match="No space left on device: from here on results are not kept") as warned:
        assert run(counted, grid, seeds=2, progress=False)["value"].tolist() == [0, 1, 0, 2, 0, 3]
    assert len(warned) == 1
    monkeypatch.setattr(Path, "write_bytes", write)
    run(counted, grid, seeds=2, progress=False)
    assert calls(tmp_path / "log") == Counter({"1 0": 1, "2 0": 1, "3 0": 1, "1 1": 2, "2 1": 2, "3 1": 2})


def test_a_claim_of_a_process_that_was_killed_delays_but_does_not_stop(tmp_path):
    grid = {"log": [str(tmp_path / "log")], "x": [1, 2, 3]}
    run(counted, grid, progress=False)
    for path in [path for path in (tmp_path / "cache").rglob("*") if path.is_file()][:2]:
        path.rename(path.with_suffix(".claim"))
    assert run(counted, grid, progress=False)["x"].tolist() == [1, 2, 3]
    assert sorted(calls(tmp_path / "log").values()) == [1, 2, 2] and len(finished(tmp_path)) == 3


def test_a_cached_row_costs_little():
    def constant(x, seed):
        return {"error": 0.5, "curve": np.zeros(20)}

    grid = {"x": list(range(100))}
    run(constant, grid, seeds=3, progress=False)
    start = time.perf_counter()
    run(constant, grid, seeds=3, progress=False)
    assert (time.perf_counter() - start) / 300 <= 2e-3 * time_factor()


# ---- bad input


def two(x, seed):
    return x


@pytest.mark.parametrize(
    ("function", "grid", "options", "error", "words"),
    [
        (two, {"x": 3}, {}, TypeError, "the values of x must be a list, got 3"),
        (two, {"x": "abc"}, {}, TypeError, "the values of x must be a list, got 'abc'"),
        (two, {"x": torch.zeros(2, 2)}, {}, TypeError, "the values of x must be a list"),
        (two, {"x": []}, {}, ValueError, "the values of x must be at least one and all different"),
        (two, {"x": [1, 2, 1]}, {}, ValueError, "the values of x must be at least one and all different"),
        (two, {"x": [1], "seed": [1]}, {}, ValueError, "grid must not contain seed"),
        (two, {"y": [1]}, {}, TypeError, "function must take the arguments y, seed: .*'x'"),
        (lambda x: x, {"x": [1]}, {}, TypeError, "function must take the arguments x, seed"),
        (two, {"x": [1]}, {"seeds": 0}, ValueError, "the values of seed must be at least one"),
        (two, {"x": [1]}, {"seeds": [1, 1]}, ValueError, "the values of seed must be at least one and all different"),
        (
            two,
            {"x": [1]},
            {"seeds": True},
            TypeError,
            "seeds must be .* a list of integers, got True",
        ),
        (two, {"x": [1]}, {"seeds": 2.0}, TypeError, "seeds must be .* a list of integers, got 2.0"),
        (two, {"x": [1]}, {"seeds": [0.5]}, TypeError, "seeds must be a number of seeds or a list of integers"),
        (two, {"x": [1]}, {"batched": -1}, ValueError, "batched must be True, False or a number of rows, got -1"),
        (two, {"x": [1]}, {"batched": None}, ValueError, "batched must be True, False or a number of rows, got None"),
        (two, {"x": [1]}, {"batched": "yes"}, ValueError, "batched must be True, False or a number of rows, got 'yes'"),
        (two, {"x": [1]}, {"batched": 1.5}, ValueError, "batched must be True, False or a number of rows, got 1.5"),
        (two, {"x": [1]}, {"cache": 5}, TypeError, "cache must be True, False or a folder, got 5"),
        (two, {"x": [1]}, {"cache": ""}, TypeError, "cache must be True, False or a folder, got ''"),
        (two, {"x": [1]}, {"cache": None}, TypeError, "cache must be True, False or a folder, got None"),
        (two, {"x": [1]}, {"cache": "a\0b"}, CacheError, "cannot be written .*null"),
        (functools.partial(two, 1), {}, {}, TypeError, "function must be one made by def, got functools.partial"),
        (two, [1], {}, TypeError, r"grid must map names of arguments to lists of values, got \[1\]"),
        (two, None, {}, TypeError, "grid must map names of arguments to lists of values, got None"),
        (two, {1: [1]}, {}, TypeError, "grid must map names of arguments to lists of values"),
        (two, {"x": [1]}, {"seeds": [0, 2**63]}, ValueError, r"integers of seed must lie in \[-2\*\*63, 2\*\*63 - 1\]"),
        (two, {"x": [0, -(2**70)]}, {}, ValueError, r"integers of x must lie in \[-2\*\*63, 2\*\*63 - 1\]"),
        (
            two,
            {"x": [torch.ones(2).to_sparse()]},
            {},
            TypeError,
            "the argument x is of type Tensor, which has no conte",
        ),
        (two, {"x": [torch.ones(2, device="meta")]}, {}, TypeError, "the argument x is of type Tensor, which has no"),
        (two, {"x": [threading.Lock()]}, {"cache": False}, TypeError, "a value of the grid cannot be copied for each"),
        (lambda seed: torch.ones(2).to_sparse(), {}, {}, TypeError, "results must be numbers, texts or arrays"),
        (lambda seed: [[1], [1, 2]], {}, {}, TypeError, "results must be numbers, texts or arrays"),
        (two, {"x": [None, 1]}, {"batched": True}, ValueError, "a batched function needs numbers or texts"),
        (two, {"x": [FULL]}, {"batched": True}, ValueError, "a batched function needs numbers or texts"),
        (two, {"x": [1]}, {"executor": 4}, TypeError, r"executor must be .*client.get_executor\(\)\), got a int"),
        (two, {"x": [object()]}, {}, TypeError, "the argument x is of type object, which has no content"),
        (len, {}, {"cache": True}, TypeError, "function must take the arguments seed"),
        (lambda seed: None, {}, {}, TypeError, "results must be numbers, texts or arrays of them"),
        (lambda seed: {}, {}, {}, TypeError, "at least one result, got an empty dict"),
        (lambda seed: {1: 2}, {}, {}, TypeError, "with a text as name"),
        (lambda seed: {"seed": 2}, {}, {}, ValueError, "a result must not have the name of an argument, got seed"),
        (lambda seed: np.zeros(seed), {}, {"seeds": 2}, ValueError, r"all rows must return the same.*\(0,\).*\(1,\)"),
        (lambda seed: {"ab"[seed]: 0}, {}, {"seeds": 2}, ValueError, "all rows must return the same"),
        (
            lambda seed: 1.0,
            {},
            {"batched": 2},
            ValueError,
            r"one entry for each of the 1 rows, got shape \(\)",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(function, grid, options, error, words):
    with pytest.raises(error, match=words):
        run(function, grid, **{"progress": False, **options})


def test_a_function_without_source_needs_no_cache():
    variables = {"__name__": "__main__"}
    exec("def study(x, seed): return x", variables)
    with pytest.raises(ValueError, match="the source of study cannot be read"):
        run(variables["study"], {"x": [1]}, progress=False)
    assert run(variables["study"], {"x": [1]}, progress=False, cache=False)["value"].tolist() == [1]


def test_a_cache_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="cannot be written"):
        run(counted, {"log": [str(tmp_path / "log")], "x": [1]}, progress=False)
    assert not calls(tmp_path / "log")


def test_what_cannot_be_sent_is_refused_in_a_sentence():
    def locked(seed):
        return lock

    lock = get_context("spawn").Lock()
    with ProcessPoolExecutor(1) as executor, pytest.raises(TypeError, match="locked cannot be sent"):
        run(locked, {}, executor=executor, cache=False, progress=False)


def test_a_study_of_labkit_and_torch_has_a_key():
    source = "def study(x, seed): return FULL.sample(x, compute.generator(seed))[0], torch.relu, np.exp"
    assert study_key(define(source, FULL=FULL, compute=compute, torch=torch, np=np))
