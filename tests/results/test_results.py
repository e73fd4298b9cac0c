import inspect
import itertools
import json
import re

import numpy as np
import pytest
import torch

from labkit import results, sweep
from labkit.compute import PROFILES, use_profile
from labkit.recovery import separation, theory
from labkit.recovery.hermite import lift_dim
from labkit.results import FOLDER, RECIPES, load, recipe, remake, scaling_law, shipped
from labkit.results.depth_advantage import LARGE
from labkit.results.recovery_by_scale import DIM, recovery
from labkit.sweep import Table
from tests.test_sweep import assert_same
from tests.verify import recovery as verify

LIMIT = 3e6  # bytes, of all shipped grids together


def test_every_recipe_is_shipped_and_nothing_else():
    assert {path.stem for path in FOLDER.glob("*.npz")} == set(RECIPES) == set(shipped())
    assert {path.stem for path in FOLDER.glob("*.json")} == set(RECIPES)


def test_all_shipped_grids_together_are_small():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.suffix in (".npz", ".json")) <= LIMIT


@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_grid_says_how_it_was_made(name):
    meta = load(name).meta
    assert re.fullmatch(rf"labkit sweep {name} --profile {meta['profile']} --device \w+", meta["command"])
    assert meta["profile"] in PROFILES and re.fullmatch(r"\d{4}-\d\d-\d\d", meta["date"])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in meta["versions"].values())
    assert {"labkit", "python", "numpy", "torch"} <= set(meta["versions"]) and meta["device"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_part_made_again_is_what_was_shipped(name):
    result = load(name)
    with use_profile(result.meta["profile"]):
        made = recipe(name)
        part = dict(made.grid) | {key: [value] for key, value in made.remake.items()}
        seeds = made.remake_seeds or made.seeds
        table = sweep.run(made.study, part, seeds, batched=made.batched, cache=False, progress=False)
    assert made.seeds == result.meta["seeds"]
    whole = len(result.table) / np.prod([len(made.grid[key]) for key in made.remake]) / made.seeds * seeds
    shipped = result.table.select(**made.remake)
    shipped = Table({key: column[shipped["seed"] < seeds] for key, column in shipped.columns.items()})
    assert list(shipped.columns) == list(table.columns) and len(shipped) == len(table) == whole
    for key, column in shipped.columns.items():
        tolerance = made.tolerances.get(key, 1e-9)
        if made.chaotic and key not in (*made.grid, "seed"):
            assert abs(table[key].mean() - column.mean()) <= tolerance, key
        elif column.dtype.kind in "fc":
            np.testing.assert_allclose(table[key], column, rtol=0, atol=tolerance, err_msg=key)
        else:
            np.testing.assert_array_equal(table[key], column, err_msg=key)


@pytest.mark.parametrize("function", [recipe, load])
def test_an_unknown_name_is_refused_with_those_there_are(function):
    with pytest.raises(ValueError, match="there is no .*result 'x', only recovery_by_scale"):
        function("x")


DAMAGE = {
    "table truncated": (".npz", lambda data: data[:-50]),
    "table empty": (".npz", lambda data: b""),
    "no table": (".npz", None),
    "json truncated": (".json", lambda data: data[:-5]),
    "json of something else": (".json", lambda data: b"[]"),
    "json without a checksum": (".json", lambda data: b"{}"),
    "json not in UTF-8": (".json", lambda data: b"\xff"),
    "no json": (".json", None),
}


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The shipped results where they can be damaged."""
    for path in FOLDER.glob("recovery_by_scale.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_result_is_refused_in_a_sentence(copy, damage):
    ending, change = DAMAGE[damage]
    path = copy / f"recovery_by_scale{ending}"
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    expected = "there is no shipped result" if damage == "no table" else "is damaged .*: make it anew, labkit sweep rec"
    with pytest.raises(ValueError, match=expected):
        load("recovery_by_scale")


def test_no_flipped_bit_of_a_table_is_overlooked(copy):
    path = copy / "recovery_by_scale.npz"
    good = path.read_bytes()
    for position in range(0, len(good), len(good) // 200):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1 << position % 8]) + good[position + 1 :])
        with pytest.raises(ValueError, match="is damaged"):
            load("recovery_by_scale")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_computed(copy, monkeypatch):
    monkeypatch.setattr(results.os, "access", lambda path, mode: False)  # root may write everywhere
    monkeypatch.setattr(sweep, "run", None)
    with pytest.raises(ValueError, match="the results are kept in .*, which cannot be written"):
        remake("recovery_by_scale")


def test_remake_writes_the_table_and_how_it_was_made(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="there is no shipped result"):
        load("recovery_by_scale")
    with use_profile("quick"):
        path = remake("recovery_by_scale", progress=False)
        made = recipe("recovery_by_scale")
    assert {item.name for item in tmp_path.iterdir() if item.is_file()} == {path.name, path.with_suffix(".json").name}
    result = load("recovery_by_scale")
    assert result.meta == json.loads(path.with_suffix(".json").read_text()) and result.meta["seeds"] == 8
    assert_same(result.table, sweep.run(made.study, made.grid, 8, batched=made.batched, cache=False, progress=False))


# ---- recovery_by_scale


def test_recovery_has_the_two_ends_of_lesson_01():
    """Large c: ℓ2, whose error is 1 − n/D on average. Small c: three spikes are found long before n = D."""
    curve = load("recovery_by_scale").table.mean("error", by=("c", "n"))
    lazy, rich = curve.select(c=10.0), curve.select(c=1e-8)
    np.testing.assert_array_less(np.abs(lazy["mean"] - (1 - lazy["n"] / DIM)), 3.5 * lazy["se"])
    assert rich.select(n=20)["mean"][0] < 1e-3 < 0.4 < lazy.select(n=20)["mean"][0]


def test_recovery_is_the_same_on_every_device(device, monkeypatch):
    arguments = np.array([1e-8, 10.0, 0.1]), np.array([20, 5, 20]), np.array([0, 1, 0])
    expected = recovery(*arguments)["error"]
    monkeypatch.setattr("labkit.compute.device", lambda: device.place)
    torch.testing.assert_close(device.back(recovery(*arguments))["error"], expected)


def test_slopes_are_those_of_theory_in_the_same_window():
    """Exact to .01 of the theory notes (see `make verify`), simulation to .03 of exact and nearer."""
    for (gamma, noise_std), (noted, _) in verify.SLOPES.items():
        found = scaling_law.compare(gamma, noise_std)
        asymptotic, simple, _, exact, simulation = found.slopes
        assert exact == pytest.approx(noted, abs=0.01) and simulation == pytest.approx(exact, abs=0.03)
        assert abs(simulation - exact) <= 0.01  # as lesson 09 says
        assert asymptotic == -1 + 0.5 / gamma < simple  # the simple law comes from above
        if noise_std:
            assert abs(simulation - asymptotic) <= 0.015
        else:  # steeper than the law, and seen to be
            assert 0.025 <= asymptotic - simulation <= 0.105 and asymptotic - simulation > 3 * found.slope_se
        assert (np.abs(found.error / np.interp(found.sizes, *found.curve) - 1) <= 0.04).all()


def test_recovery_at_a_given_n_improves_as_c_falls():
    table = load("recovery_by_scale").table.select(n=20)
    errors = [table.select(c=c)["error"] for c in sorted(set(table["c"]))]  # the same problems, seed by seed
    for smaller, larger in zip(errors, errors[1:], strict=False):
        gain = larger - smaller
        assert gain.mean() > -3 * gain.std(ddof=1) / len(gain) ** 0.5


# ---- lift_recovery


def test_lift_recovery_is_what_lesson_08_says():
    """γ = 1, n = 100 D. Plain at d = 48: the noise ends at three times the edge, feature 4 is hidden. Cleaned, strong
    features are as in the surrogate, weak ones are not; on the sphere a little better."""
    table = load("lift_recovery").table.select(dim=48, samples_per_dim=100.0)
    law = theory.overlap(100.0, 1.0, 12).numpy()
    plain, hygiene, sphere = (table.select(look=look) for look in ("plain", "hygiene", "sphere"))
    assert (plain["noise_edge"] / plain["edge"]).mean() == pytest.approx(3, abs=0.1)
    assert plain["overlap"][:, 3].mean() == pytest.approx(0.15, abs=0.005)
    assert np.abs(hygiene["noise_edge"] / hygiene["edge"] - 1).max() < 0.1
    for clean in (hygiene, sphere):
        short = law - clean["overlap"].mean(0)
        assert np.abs(short[:3]).max() < 0.03 and (short[4:7] > 0.1).all()
    assert (sphere["overlap"][:, :5].mean(0) > hygiene["overlap"][:, :5].mean(0)).all()


def test_lift_recovery_reproduces_the_notes():
    """Best overlaps k = 1 … 3 at d = 32 and 48 (theory notes, section c: two seeds), to .12."""
    notes = {
        (48, 20.0): ((0.68, 0.18, 0.05), (0.88, 0.70, 0.44), (0.89, 0.73, 0.46)),
        (48, 50.0): ((0.87, 0.61, 0.45), (0.95, 0.88, 0.78), (0.96, 0.89, 0.79)),
        (48, 100.0): ((0.93, 0.80, 0.65), (0.98, 0.94, 0.88), (0.98, 0.95, 0.89)),
        (32, 20.0): ((0.50, 0.09), (0.87, 0.64, 0.35), (0.90, 0.70, 0.47)),
        (32, 50.0): ((0.81, 0.24), (0.95, 0.88, 0.72), (0.96, 0.89, 0.75)),
        (32, 100.0): ((0.90, 0.72, 0.35), (0.97, 0.94, 0.85), (0.98, 0.94, 0.86)),
    }
    table = load("lift_recovery").table
    for (dim, size), looks in notes.items():
        for look, expected in zip(("plain", "hygiene", "sphere"), looks, strict=True):
            found = table.select(dim=dim, samples_per_dim=size, look=look)["overlap"].mean(0)
            tolerance = 0.25 if look == "plain" else 0.13  # two tasks there; plain ones differ from task to task
            assert found[: len(expected)].tolist() == pytest.approx(expected, abs=tolerance)


# ---- depth_advantage


def test_depth_advantage_has_the_samples_and_exponents_of_the_notes():
    """Within 15 % at each d, and the exponents within their errors of theory in the same window."""
    table, dims = load("depth_advantage").table, [10, 14, 18]
    for method, noted in (("spectral", [611, 1084, 1784]), ("kernel", [648, 1993, 4514])):
        dim, needed, log_error = separation.needed_by_dim(table, method)
        assert dim.tolist() == dims
        np.testing.assert_allclose(needed, noted, rtol=0.15)
        expected = torch.stack([separation.expected_samples(d, method) for d in dims])
        assert ((needed.log() - expected.cpu().log()).abs() <= 3 * log_error + 0.02).all()
        slope, se = separation.fit_exponent(dim, needed, log_error)
        line, _ = separation.fit_exponent(dim, expected.cpu(), log_error)
        assert abs(slope - line) <= 3 * se
    assert abs(slope - 3.28) <= 0.05 and se < 0.03  # of the kernel: far from 4


def test_tasks_of_the_full_profile_can_be_asked_for():
    for grid in LARGE:
        for values in itertools.product(*grid.values()):
            inspect.signature(separation.measured_error).bind(**dict(zip(grid, values, strict=True)), seed=0)
        size = lift_dim(grid["dim"][0], grid.get("degree", [2])[0])
        assert [n / size for n in grid["n"]] == pytest.approx([10, 30, 100])
