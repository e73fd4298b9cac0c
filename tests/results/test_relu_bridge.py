"""What lesson 05 says of its grid, of the shipped table; and that the arrays are the table."""

import numpy as np
import pytest
import torch

from labkit.results import load
from labkit.results.relu_bridge import arrays
from labkit.transfer.protocol import SOURCES
from labkit.transfer.relu import norms_after

LAM_ENDS = (-0.9, 0.9)


@pytest.fixture(scope="module")
def table():
    return load("relu_bridge").table


def gap(table, by=(), **pair):
    """Paired difference of the error in units of its standard error."""
    found = table.difference("error", by=by, **pair)
    return float(found["mean"][0] / found["se"][0])


def cell(table, **where):
    return table.select(**{"gamma": 0.3, "n": 80} | where)


def test_arrays_are_the_table(table):
    grid = arrays(table)
    names = list(grid.axes)
    rng = np.random.default_rng(0)
    for row in rng.integers(len(table), size=50):
        place = tuple(int(np.flatnonzero(grid.axes[name] == table[name][row])[0]) for name in names)
        for name, values in grid.values.items():
            np.testing.assert_array_equal(values[place], table[name][row])
    norms = load("relu_norms").table
    place = np.flatnonzero((norms["c"] == 3.0) & (norms["lam"] == 0.9) & (norms["seed"] == 4))[0]
    found = arrays(norms)
    c, lam = (int(np.flatnonzero(found.axes[name] == value)[0]) for name, value in (("c", 3.0), ("lam", 0.9)))
    np.testing.assert_array_equal(found.values["w_norm"][c, lam, 4], norms["w_norm"][place])


def test_scratch_has_no_gamma_and_all_sources_are_there(table):
    errors = arrays(table).values["error"]  # c, lam, gamma, n, task, source, seed
    scratch = errors[..., SOURCES.index("scratch"), :]
    assert np.array_equal(scratch, scratch[:, :, :1].repeat(scratch.shape[2], 2))
    assert errors.shape[-1] >= 10


def test_what_did_not_converge_is_said_and_rare(table):
    assert np.array_equal(np.isnan(table["error"]), table["diverged"]) and table["diverged"].mean() < 0.01
    assert table["reached"].mean() > 0.99 and table["pt_reached"].mean() > 0.99


@pytest.mark.parametrize("task", ["subset", "new"])
def test_lambda_is_dead_at_small_c_and_alive_at_large(table, task):
    dead = gap(cell(table, c=0.03, task=task, source="pretrained"), lam=LAM_ENDS)
    assert abs(dead) < 3
    for c in (0.3, 3.0):
        assert gap(cell(table, c=c, task=task, source="pretrained"), lam=LAM_ENDS) > 3  # lambda > 0 is worse


def test_pretraining_helps_the_subset_and_hurts_the_new_task_where_it_is_reuse(table):
    sources = ("pretrained", "reset")
    for c in (0.03, 0.3):
        assert gap(cell(table, c=c, lam=-0.9, task="subset"), source=sources) > 3  # reset is worse
        assert gap(cell(table, c=c, lam=-0.9, task="new"), source=sources) < -3  # and better: negative transfer


def test_at_large_c_the_gain_of_lambda_is_richness_that_reset_has_too(table):
    here = cell(table, c=3.0, task="subset")
    assert gap(here.select(source="reset"), lam=LAM_ENDS) > 3
    share = [here.select(lam=lam, source=s)["error"].mean() for lam in LAM_ENDS for s in ("pretrained", "reset")]
    assert abs(share[1] - share[0]) < 0.25 * (share[2] - share[0])  # what pretraining adds, against what lambda does


def test_finite_steps_break_the_invariant_at_small_c_only(table):
    drift = {c: table.select(c=c)["drift"].max() for c in (0.03, 0.3, 3.0)}
    assert drift[3.0] < 0.01 < 0.1 < drift[0.3] < 1 < drift[0.03]


def test_the_formula_of_the_norms_holds_where_the_invariant_does():
    table = load("relu_norms").table.select(c=3.0)
    for row in range(len(table)):
        w, v = (table[name][row].astype(float) for name in ("w_norm", "v_norm"))
        expected = norms_after(torch.as_tensor(np.sqrt(w * v)), 3.0, float(table["lam"][row]))
        assert table["drift"][row] < 0.01
        np.testing.assert_allclose(expected.w.numpy(), w, rtol=0.05)
