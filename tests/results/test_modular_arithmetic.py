"""Modular addition: what the shipped tables say, and lesson 07 with them; the same code at other sizes."""

from dataclasses import replace

import numpy as np
import pytest

from labkit import compute, sweep, training
from labkit.results import load, modular_arithmetic
from labkit.results.modular_arithmetic import FULL, KAPPAS, PLACES, STANDARD, arrays, live, runs, share
from labkit.sweep import Table
from labkit.transfer.transformer import Transformer
from tests.verify import arithmetic as verify

TINY = replace(
    FULL,
    net=Transformer(vocabulary=9, width=8, heads=2, hidden=16, layers=2, norm=True),
    modulus=6,
    moduli=(6, 3, 9, 5),
    pretraining=4,
    fine_tuning=2,
    pretraining_record=2,
    record_every=1,
)


@pytest.fixture(scope="module")
def old():
    return arrays(load("modular_pretraining").table)


@pytest.fixture(scope="module")
def new():
    return runs()


# ---- what the tables say


def test_nothing_diverged_and_everything_was_learned(old, new):
    """AdamW with decay spikes now and then, so that a few losses are caught on their way down."""
    assert old["accuracy"].shape == (5, 16) and not old["diverged"].any() and not new["diverged"].any()
    assert (old["accuracy"].mean(1) > 0.95).all() and (old["accuracy"] > 0.9).all()
    for grid in (old, new):
        assert (grid["loss"] < 0.05).mean() > 0.97


def test_curves_start_at_chance_and_end_at_the_accuracy(old, new):
    assert (old["curve"][..., 0].mean() - 1 / 15) < 0.01
    for place, modulus in enumerate(new.axes["modulus"]):
        assert abs(new["curve"][place, ..., 0].mean() - 1 / modulus) < 0.02
    np.testing.assert_array_equal(old["curve"][..., -1], old["accuracy"])
    assert old.steps[[0, 1, -1]].tolist() == [0, 10, 1000] and new.steps[[0, 1, -1]].tolist() == [0, 25, 500]
    there = ~np.isnan(old["ninety"])
    step = np.searchsorted(old.steps, old["ninety"][there])
    rows = old["curve"][there]
    assert (rows[np.arange(len(rows)), step] > 0.8989).all() and (rows[np.arange(len(rows)), step - 1] < 0.9).all()


def test_shares_add_up_to_one(old, new):
    np.testing.assert_allclose(old["kept"].sum(-1), 1, atol=4e-3)
    np.testing.assert_allclose(new["spectrum"].sum(-1), 1, atol=8e-3)
    for place, modulus in enumerate(new.axes["modulus"]):
        assert not new["spectrum"][place, ..., modulus // 2 :].any()


def test_fine_tuning_starts_where_pretraining_ended(old, new):
    """Two tables of the same nets: what is kept and ‖E‖."""
    for modulus in new.axes["modulus"]:
        for fraction in new.axes["fraction"]:
            start = new.at("kept", modulus=modulus, fraction=fraction)[:, :, 0]
            np.testing.assert_allclose(start, old["kept"][:, :, 1], atol=1e-3)
            norm = new.at("norm", modulus=modulus, fraction=fraction)[:, :, 0, 0]
            np.testing.assert_allclose(norm, old["norm"][:, :, 1, 0], rtol=1e-4)


def test_all_places_are_one_at_kappa_1_and_scratch_is_not(new):
    """κ = 1 rescales nothing, so that where it is applied cannot matter."""
    between, scratch = runs("fine-tuning only"), runs("scratch")
    for modulus in between.axes["modulus"]:
        where = {"modulus": modulus, "kappa": 1.0}
        expected = new.at("curve", **where)[:, :8]
        np.testing.assert_allclose(between.at("curve", **where), expected, atol=2e-3)
        assert np.abs(scratch.at("curve", **where) - expected).max() > 0.1


def test_the_notes_are_reproduced():
    """Section 7 of the notes; `make verify` prints the same."""
    wrong = [str(claim) for claim in verify.claims() if not claim.ok]
    assert not wrong, "\n".join(wrong)


# ---- arrays and slices


def test_arrays_put_every_row_in_its_place():
    table = load("modular_controls").table
    grid = arrays(table)
    for row in range(0, len(table), 37):
        where = {name: table[name][row].item() for name in ("place", "modulus", "kappa", "fraction")}
        seed = table["seed"][row].item()
        assert grid.at("accuracy", **where, seed=seed) == table["curve"][row, -1]
        assert grid.at("pr_after", **where)[seed] == table["pr_after"][row]
    assert grid.axes["place"].tolist() == list(PLACES[1:]) and grid.axes["kappa"].tolist() == list(KAPPAS)


def test_a_value_that_is_not_there_is_refused(old):
    with pytest.raises(ValueError, match="there is no axis gamma, only kappa, seed"):
        old.at("curve", gamma=1)
    with pytest.raises(ValueError, match=r"kappa must be one of 0.1, 0.3, 1.0, 3.0, 10.0, got 2"):
        old.at("curve", kappa=2)
    with pytest.raises(ValueError, match="place must be one of pretraining, fine-tuning only, scratch, got 'both'"):
        runs("both")
    table = load("modular_pretraining").table
    with pytest.raises(ValueError, match=r"table must have one row for each of the \(5, 16\) values of kappa, seed"):
        arrays(Table({name: column[:-1] for name, column in table.columns.items()}))


def test_shares_are_those_of_the_common_frequencies():
    kept = np.arange(7.0)  # k = 1 … 7 of 15
    assert [share(kept, m) for m in (15, 5, 21, 7)] == [21, 2 + 5, 4, 0]


def test_the_spectrum_of_a_net_that_diverged_is_nan():
    net = Transformer(vocabulary=6, width=8, hidden=8)
    params = net.initial(3, training.generators(range(2)))
    params["embed"][1, 2, 3] = float("inf")
    found = modular_arithmetic.spectrum(net, params, 5)
    assert found[0].sum().item() == pytest.approx(1) and found[1].isnan().all()


# ---- a run now, other sizes, other devices


def test_a_live_run_is_one_of_the_shipped_nets_at_first(old):
    """The same seeds: the same curve until rounding has grown."""
    bars = []

    def progress(items):
        bars.append(0)
        for item in items:
            bars[0] += 1
            yield item

    run = live([0.3, 1.0], [0, 3], 5, 0.3, pretraining=40, fine_tuning=25, progress=progress)
    assert run.curve.shape == (2, 2, 5) and run.new_curve.shape == (2, 2, 2) and run.kept.shape == (2, 2, 7)
    assert run.steps.tolist() == [0, 10, 20, 30, 40] and run.new_steps.tolist() == [0, 25]
    assert bars == [len(run.steps) + len(run.new_steps)]
    for i, kappa in enumerate((0.3, 1.0)):
        np.testing.assert_allclose(run.curve[i], old.at("curve", kappa=kappa)[[0, 3], :5], atol=0.006)


def test_the_full_profile_is_the_same_code(monkeypatch):
    """Two layers, norms, float32: all three studies, tiny, with every place and κ."""
    monkeypatch.setattr(modular_arithmetic, "setup", lambda: TINY)
    with compute.use_profile("quick"):
        for make in ("pretraining", "fine_tuning", "controls"):
            made = getattr(modular_arithmetic, f"{make}_recipe")()
            table = sweep.run(made.study, made.grid, made.seeds, batched=made.batched, cache=False, progress=False)
            grid = arrays(table, TINY)
            for name in ("curve", "norm", "balancedness", "kept", "pr_after", "ensd", "loss"):
                assert np.isfinite(grid[name]).all(), (make, name)
            assert grid.steps[-1] == (TINY.pretraining if make == "pretraining" else TINY.fine_tuning)
            if make == "pretraining":  # with norms κ is only a rate: the untrained nets are one function
                curves = grid["curve"][..., 0]
                np.testing.assert_allclose(curves, np.broadcast_to(curves[2], curves.shape), atol=0.05)


def test_the_standard_and_the_full_setups_fit_their_tasks():
    for how in (STANDARD, FULL):
        assert max(how.modulus, *how.moduli) <= how.net.vocabulary
        same, subset, mixed, new = (np.gcd(how.modulus, m) for m in how.moduli)
        assert same == how.modulus and subset == how.moduli[1] and 1 < mixed < how.moduli[2] and new == 1


def test_a_study_is_the_same_on_every_device(device, monkeypatch):
    tiny = replace(TINY, net=replace(TINY.net, layers=1, norm=False), pretraining=3, fine_tuning=3)
    monkeypatch.setattr(modular_arithmetic, "setup", lambda: tiny)
    two = [np.array(pair) for pair in ((3, 5), (0.3, 3.0), (0.3, 0.3), (0, 1))]
    place = np.array(["fine-tuning only", "pretraining"])
    expected = modular_arithmetic.controls(place, *two)
    monkeypatch.setattr("labkit.compute.device", lambda: device.place)
    found = modular_arithmetic.controls(place, *two)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-3, err_msg=name)
