"""What lesson 05 says of its grid, of the shipped table; and that the arrays are the table."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.compute import PROFILES, use_profile
from labkit.results import load
from labkit.results.relu_bridge import SIZES, arrays, bridge, norms, norms_recipe, recipe
from labkit.transfer.protocol import SOURCES
from labkit.transfer.relu import TASKS, norms_after


@pytest.fixture(scope="module")
def table():
    return load("relu_bridge").table


@pytest.fixture(scope="module")
def errors(table):
    """(c, task, n, source) -> error (lam, gamma, seed): seeds are compared in averages over what is not asked about."""
    grid = arrays(table)
    assert list(grid.axes) == ["c", "lam", "gamma", "n", "task", "source", "seed"]
    assert grid.axes["lam"].tolist() == [-0.99, -0.9, 0.0, 0.9, 0.99]
    return lambda **where: grid.values["error"][
        np.ix_(*(np.flatnonzero(v == where.get(name, v)) for name, v in grid.axes.items()))
    ].squeeze((0, 3, 4, 5))


def in_errors(gap):
    """Mean over the standard error: gap (..., seed), averaged over all but the seeds."""
    gap = gap.reshape(-1, gap.shape[-1]).mean(0)
    return gap.mean() / (gap.std(ddof=1) / len(gap) ** 0.5)


def by_lam(error):
    """What λ > 0 adds to the error of λ < 0: (gamma, seed)."""
    return error[3:].mean(0) - error[:2].mean(0)


def test_arrays_are_the_table(table):
    grid = arrays(table)
    names = list(grid.axes)
    rng = np.random.default_rng(0)
    for row in rng.integers(len(table), size=50):
        place = tuple(int(np.flatnonzero(grid.axes[name] == table[name][row])[0]) for name in names)
        for name, values in grid.values.items():
            if name == "both_reached":
                continue
            np.testing.assert_array_equal(values[place], table[name][row])
    shipped = load("relu_norms").table
    place = np.flatnonzero((shipped["c"] == 3.0) & (shipped["lam"] == 0.9) & (shipped["seed"] == 4))[0]
    found = arrays(shipped)
    c, lam = (int(np.flatnonzero(found.axes[name] == value)[0]) for name, value in (("c", 3.0), ("lam", 0.9)))
    np.testing.assert_array_equal(found.values["w_norm"][c, lam, 4], shipped["w_norm"][place])


def test_scratch_has_no_gamma_and_all_sources_are_there(table):
    errors = arrays(table).values["error"]  # c, lam, gamma, n, task, source, seed
    scratch = errors[..., SOURCES.index("scratch"), :]
    assert np.array_equal(scratch, scratch[:, :, :1].repeat(scratch.shape[2], 2))
    assert errors.shape[-1] >= 10


def test_what_did_not_converge_is_said_and_rare(table):
    assert np.array_equal(np.isnan(table["error"]), table["diverged"]) and table["diverged"].mean() < 0.01
    assert table["reached"].mean() > 0.99 and table["pt_reached"].mean() > 0.99


def test_seeds_that_stopped_at_a_step_limit_can_be_counted(table):
    """Row by row: a pretrained net counts where pretraining did not end, and there only."""
    grid = arrays(table)
    late = {source: ~grid.at("both_reached", source=source) for source in SOURCES}
    for row in np.flatnonzero(~table["reached"] | ~table["pt_reached"]):
        place = {name: table[name][row] for name in grid.axes}
        own = not table["reached"][row] or (place["source"] == "pretrained" and not table["pt_reached"][row])
        where = tuple(grid.axes[name].tolist().index(place[name]) for name in grid.axes if name != "source")
        assert late[place["source"]][where] == own
    assert sum(part.sum() for part in late.values()) == sum(
        ~table["reached"] | (table["source"] == "pretrained") & ~table["pt_reached"]
    )
    assert "both_reached" not in arrays(load("relu_norms").table).values


@pytest.mark.parametrize("task", ["subset", "new"])
def test_lambda_is_dead_at_small_c_and_alive_at_large(errors, task):
    gaps = [by_lam(errors(c=c, task=task, n=80, source="pretrained")) for c in (0.03, 0.3, 1.0, 3.0)]
    assert abs(gaps[0].mean()) < 0.02 and abs(in_errors(gaps[0])) < 3
    assert all(in_errors(gap) >= 3 for gap in gaps[1:])  # λ > 0 is worse
    means = [gap.mean() for gap in gaps]
    assert means == sorted(means) and means[-1] > 0.25


@pytest.mark.parametrize("c", [0.03, 0.1, 0.3])
def test_small_scales_reuse_pretraining_helps_the_subset_and_hurts_the_new_task(errors, c):
    added = {
        task: errors(c=c, task=task, n=80, source="reset") - errors(c=c, task=task, n=80, source="pretrained")
        for task in ("subset", "new")
    }
    assert in_errors(added["subset"]) > 3 and in_errors(added["new"]) < -3


def test_at_large_c_the_gain_of_lambda_is_richness_that_reset_has_too(errors):
    pretrained, reset = (errors(c=3.0, task="subset", n=80, source=source) for source in ("pretrained", "reset"))
    assert in_errors(by_lam(reset)) > 3
    assert abs((reset - pretrained)[:2].mean()) < 0.1 * by_lam(pretrained).mean()  # reuse where λ < 0: next to nothing


def test_a_single_task_knows_little_of_lambda_at_large_c(errors):
    scratch = errors(c=3.0, task="subset", n=80, source="scratch")[:, 0]  # lam, seed
    assert (
        scratch.mean(1).max() - scratch.mean(1).min()
        < 0.08
        < 0.25
        < by_lam(errors(c=3.0, task="subset", n=80, source="pretrained")).mean()
    )


def test_finite_steps_break_the_invariant_at_small_c_only(table):
    drift = {c: table.select(c=c)["drift"].max() for c in (0.03, 0.3, 3.0)}
    assert drift[3.0] < 0.01 < 0.1 < drift[0.3] < 1 < drift[0.03]


def test_the_formula_of_the_norms_holds_where_the_invariant_does():
    table = load("relu_norms").table.select(c=3.0)
    for row in range(len(table)):
        w, v = (table[name][row].astype(float) for name in ("w_norm", "v_norm"))
        expected = norms_after(torch.as_tensor(np.sqrt(w * v)), 3.0, float(table["lam"][row]))
        assert table["drift"][row] < 0.01  # below a percent, so the formula is to hold to 5 %
        np.testing.assert_allclose(expected.w.numpy(), w, rtol=0.05)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_asks_for_what_can_be(profile):
    with use_profile(profile):
        made, of_norms = recipe(), norms_recipe()
    sizes = SIZES[made.grid["dim"][0]]
    assert sizes.units + sizes.ft_units <= sizes.dim and sizes.hidden % 2 == 0 and made.seeds >= 3
    rows = np.prod([len(values) for name, values in made.grid.items() if name not in ("c", "lam")]) * made.seeds
    assert rows == made.batched and of_norms.grid["dim"] == made.grid["dim"] and of_norms.seeds == made.seeds


def test_the_large_profile_is_the_same_code(monkeypatch):
    """100 inputs through the study that made the table, with limits of a few steps."""
    few = replace(SIZES[100], hidden=16, n_pt=30, n_test=50, pt_steps=3, ft_steps=3)
    monkeypatch.setitem(SIZES, 100, few)
    one = {"dim": 100, "c": 0.3, "lam": 0.9, "gamma": 0.3, "n": 20}
    rows = {name: np.full(6, value) for name, value in one.items()}
    rows |= {"task": np.repeat(TASKS, 3), "source": np.tile(SOURCES, 2), "seed": np.array([4, 4, 4, 7, 7, 7])}
    found = bridge(**rows)
    assert set(found) == set(load("relu_bridge").table.columns) - set(rows)
    assert all(values.shape == (6,) for values in found.values())
    assert np.isfinite(found["error"]).all() and (found["pt_steps"] == 3).all() and not found["reached"].any()
    assert norms(*(rows[name] for name in ("dim", "c", "lam", "seed")))["w_norm"].shape == (6, 16)
