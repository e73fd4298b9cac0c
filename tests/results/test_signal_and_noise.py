"""What lesson 13 says of the shipped tables, and the functions that read them."""

import numpy as np
import pytest
import torch

from labkit import compute, results
from labkit.depth import covariance, jumpboard, study, task
from labkit.results import signal_and_noise as grid

FIRST, MIDDLE, LAST = 0, 2, 4  # places


@pytest.fixture(scope="module")
def signals():
    return results.load("signal_and_noise").table


@pytest.fixture(scope="module")
def maps():
    return results.load("gradient_heat_maps").table


@pytest.fixture(scope="module")
def small():
    """Two networks that take no time."""
    teacher = task.TeacherTask(compute.generator(task.TEACHER_SEED))
    model = study.students(teacher, 300, 20, range(2), width=8).model
    return model, *(teacher.sample(500, compute.generator(seed), torch.float32) for seed in (1, 2))


def test_one_layer_is_measured_as_the_room_does(small):
    model, chosen, judged = small
    found = grid.look(model, 1, chosen, judged, chosen)
    g = jumpboard.activation_gradient(model, 1, *judged)
    torch.testing.assert_close(found["gradient"], g.square().sum(-1).mean(1).sqrt())
    torch.testing.assert_close(found["spectrum"].sum(1), g.var(1, correction=0).sum(1))
    assert found["spectrum"].shape == (2, grid.WIDEST) and (found["spectrum"][:, 8:] == 0).all()
    w1 = jumpboard.draw_features(model, grid.BLOCKS[-1])
    for i, m in enumerate(grid.BLOCKS):
        along = jumpboard.direction(model, 1, *chosen, w1[:, :m])
        alone = covariance.samples_to_see(jumpboard.scores(model, along, *judged))
        torch.testing.assert_close(found["needed"][:, i], alone, rtol=1e-3, atol=0)
    phi = jumpboard.features(model, model.bottom(judged[0], 1), jumpboard.draw_features(model, grid.SIGNAL_BLOCK))
    torch.testing.assert_close(found["signal"], jumpboard.debiased_signal(g, phi).debiased)


def test_a_view_is_the_covariance_whatever_the_order(small):
    model, _, judged = small
    cov = covariance.gradient_covariance(jumpboard.activation_gradient(model, 1, *judged))[0]
    plain, ordered, measures = grid.view(cov), grid.view(cov, sort=True), covariance.measures(cov)
    np.testing.assert_allclose(plain.correlations, covariance.correlation(cov))
    for name in ("mean", "energy", "rank"):
        assert abs(getattr(plain, name) - getattr(ordered, name)) < 1e-6
    assert abs(plain.rank - measures.effective_rank) < 1e-4 and abs(plain.share.sum() - 1) < 1e-6
    first = np.linalg.eigh(ordered.correlations)[1][:, -1]
    assert (np.diff(first) >= -1e-6).all() or (np.diff(first) <= 1e-6).all()


def test_shipped_views_are_matrices_of_correlations(maps):
    for width in (4, grid.WIDEST):
        found = grid.shipped_view(maps.select(depth=4, width=width, n=8000), MIDDLE)
        corr = found.correlations
        assert corr.shape == (width, width) and len(found.share) == width
        np.testing.assert_array_equal(corr, corr.T)
        np.testing.assert_array_equal(np.diag(corr), 1)
        assert np.abs(corr).max() <= 1 and np.linalg.eigvalsh(corr)[0] > -0.01 * width


def test_a_curve_has_the_usual_errors_and_the_slope_of_its_means():
    x, values = (1, 2, 4), np.array([[1.0, 3.0, 2.0], [2.0, 4.0, 6.0], [8.0, 4.0, 12.0]])
    found = grid.curve(x, values)
    np.testing.assert_allclose(found.mean, [2, 4, 8])
    np.testing.assert_allclose(found.se, values.std(1, ddof=1) / 3**0.5)
    assert found.slope == pytest.approx(1) and found.shown[3].startswith("1.00 ± ")
    np.testing.assert_allclose(grid.curve(x, 1 / values, lambda rate: 1 / rate).mean, 3 / (1 / values).sum(1))
    assert str(grid.curve(x, 1 / (values + 1))).startswith("−")


def test_the_error_of_a_slope_is_its_scatter():
    generator, x = np.random.default_rng(0), np.array([1, 2, 4, 8])
    found = [grid.curve(x, x[:, None] ** -0.5 * np.exp(0.2 * generator.normal(size=(4, 6)))) for _ in range(400)]
    slopes, errors = (np.array([getattr(one, name) for one in found]) for name in ("slope", "error"))
    assert abs(slopes.mean() + 0.5) < 4 * slopes.std() / 20
    assert 0.85 < np.sqrt((errors**2).mean()) / slopes.std() < 1.15


def test_curves_read_the_right_rows(signals):
    rows = signals.select(width=16, n=8000)
    deepest = rows.select(depth=16)
    assert grid.against(rows, "depth", "gradient", LAST).mean[-1] == pytest.approx(deepest["gradient"][:, LAST].mean())
    signal = deepest["signal"][:, MIDDLE].mean() ** 0.5
    assert grid.against(rows, "depth", "signal", MIDDLE).mean[-1] == pytest.approx(signal)
    spectrum = deepest["spectrum"][:, FIRST]
    rank = (spectrum.sum(1) / spectrum.max(1)).mean()
    assert grid.against(rows, "depth", "rank", FIRST).mean[-1] == pytest.approx(rank)
    wide = 1 / (1 / deepest["needed"][:, FIRST, -1]).mean()
    assert grid.against(deepest, "m", "needed", FIRST).mean[-1] == pytest.approx(wide)
    assert grid.against(rows, "depth", "needed", FIRST, m=256).mean[-1] == pytest.approx(wide)


def test_sliders_stand_on_stops():
    values = {"depth": 16.0, "width": 64.0, "n": 1000.0, "share": 1.0, "order": "sorted"}
    assert grid.stops(values) == {"depth": 16, "width": 64, "n": 1000, "place": 4}
    assert [grid.layer_at(share, 8) for share in grid.SHARES] == [1, 2, 4, 6, 8]


# ---- What the lesson says


def test_off_diagonal_energy_rises_with_width_and_effective_rank_hardly(signals, maps):
    rows = signals.select(depth=2, n=8000)
    energy, rank, entries = (
        grid.against(rows, "width", name, FIRST) for name in ("off_diagonal", "rank", "correlation")
    )
    np.testing.assert_allclose(energy.mean[[0, -1]], [0.25, 0.77], atol=0.005)
    np.testing.assert_allclose(rank.mean[[0, -1]], [1.8, 3.3], atol=0.05)
    assert (np.diff(energy.mean) > 3 * np.hypot(energy.se[1:], energy.se[:-1])).all() and entries.mean[-1] < 0.3
    for depth in grid.DEPTHS[1:]:  # far slower than d
        for n in grid.SIZES:
            found = grid.against(signals.select(depth=depth, n=n), "width", "rank", FIRST)
            assert found.slope + 3 * found.error < 0.8
    one = [grid.shipped_view(maps.select(depth=2, width=width, n=8000), FIRST) for width in (4, 16, grid.WIDEST)]
    assert one[2].mean < one[1].mean and one[2].mean < one[0].mean and one[0].energy < one[1].energy < one[2].energy
    assert one[0].rank < 2 and round(one[2].rank, 1) == 3.9
    narrow = grid.shipped_view(maps.select(depth=2, width=8, n=8000), FIRST)
    assert one[0].mean < narrow.mean and one[2].mean < narrow.mean and round(narrow.rank, 1) == 1.6
    few = signals.select(depth=4, width=4, n=1000)["off_diagonal"][:, MIDDLE]
    np.testing.assert_allclose(np.sort(few)[[0, 1, -1]], [0.02, 0.17, 0.55], atol=0.005)


def test_three_eigenvalues_are_left_in_the_last_layer(maps):
    last = maps["spectrum"][:, LAST]
    assert (last[:, 3] < 1e-5 * last[:, 0]).all()


def test_the_signal_falls_with_depth_only_in_the_middle_and_only_without_overfitting(signals):
    many, few = signals.select(width=16, n=64_000), signals.select(width=16, n=1000)
    size, signal = (grid.against(many, "depth", name, MIDDLE) for name in ("gradient", "signal"))
    assert str(size) == "−0.08 ± 0.01" and str(signal) == "−0.14 ± 0.06"
    first, last = grid.against(many, "depth", "gradient", FIRST), grid.against(many, "depth", "signal", LAST)
    assert first.slope > 3 * first.error and abs(last.slope) < 2 * last.error
    fresh, own = (grid.against(few, "depth", name, MIDDLE) for name in ("gradient", "train_gradient"))
    assert (round(fresh.slope, 2), round(own.slope, 2)) == (0.61, -0.42)
    assert fresh.slope > 3 * fresh.error and own.slope < -3 * own.error


def test_the_next_step_is_harder_to_see_in_a_deeper_network(signals):
    rows = signals.select(width=16, n=64_000)
    for place in (FIRST, MIDDLE, LAST):
        found = grid.against(rows, "depth", "needed", place)
        assert 0.55 < found.slope < 0.65 and found.slope > 3 * found.error
    few = grid.against(signals.select(width=16, n=1000), "depth", "needed", LAST)
    assert few.slope < -3 * few.error
    found = [
        grid.against(signals.select(width=width, n=64_000), "depth", "needed", place)
        for width in grid.WIDTHS
        for place in range(len(grid.SHARES))
    ]
    assert all(one.slope > 3 * one.error for one in found)
    assert [round(edge(one.slope for one in found), 1) for edge in (min, max)] == [0.4, 1.1]


def test_how_gradient_and_signal_fall_without_the_single_block(signals):
    """At depth 1 every place is the last layer: without it the powers are those that the lesson gives in brackets."""
    rows, depths = signals.select(width=16, n=64_000), grid.DEPTHS[1:]
    size, square = (
        np.array([rows.select(depth=depth)[name][:, MIDDLE] for depth in depths]).astype(float)
        for name in ("gradient", "signal")
    )
    assert str(grid.curve(depths, size)) == "−0.17 ± 0.02"
    assert str(grid.curve(depths, square, lambda mean: np.sqrt(mean.clip(grid.TINY)))) == "−0.15 ± 0.10"


def test_fresh_gradients_grow_less_in_narrow_and_wide_networks(signals):
    rows = [signals.select(width=width, n=1000) for width in (4, 32)]
    assert [round(grid.against(row, "depth", "gradient", MIDDLE).slope, 2) for row in rows] == [0.10, 0.16]


def test_the_width_of_a_block_helps_and_that_of_the_network_helps_or_harms(signals):
    slopes = []
    for n in grid.SIZES:
        rows = signals.select(depth=2, n=n)
        block, base = (
            grid.against(rows.select(width=16), "m", "needed", FIRST),
            grid.against(rows, "width", "needed", FIRST),
        )
        assert block.slope < -3 * block.error
        slopes.append(base)
    assert [round(base.slope, 2) for base in slopes] == [-0.63, 0.01, 0.54]
    assert slopes[0].slope < -3 * slopes[0].error and slopes[2].slope > 3 * slopes[2].error
    assert abs(slopes[1].slope) < slopes[1].error


def test_base_width_acts_otherwise_in_deeper_networks(signals):
    def base(depth, n, place):
        return grid.against(signals.select(depth=depth, n=n), "width", "needed", place)

    assert [round(base(depth, 8000, FIRST).slope, 2) for depth in (4, 8)] == [-0.30, -0.57]
    assert str(base(16, 64_000, FIRST)) == "−0.29 ± 0.12"
    last = [base(depth, 64_000, LAST) for depth in grid.DEPTHS]
    assert all(one.slope > 3 * one.error for one in last)


def test_the_signal_rises_with_depth_somewhere_with_8000_samples(signals):
    """The challenge of the depth panel can be met without going to few samples."""
    found = grid.against(signals.select(width=16, n=8000), "depth", "signal", FIRST)
    assert found.slope > 3 * found.error


def test_one_deep_and_wide_network_trains_badly(signals):
    for n in grid.SIZES:
        rows = signals.select(depth=16, width=32, n=n)
        others = np.delete(rows["train"], 1)
        assert rows["seed"][1] == 1 and rows["train"][1] > others.max() + 0.1


def test_maps_of_wide_networks_that_look_diagonal_are_not(maps):
    """The first challenge can be met, and then most of Σ lies off the diagonal. One narrow network is diagonal."""
    found = {
        (depth, width, n, place): grid.shipped_view(maps.select(depth=depth, width=width, n=n), place)
        for depth in grid.DEPTHS
        for width in (32, grid.WIDEST)
        for n in grid.SIZES
        for place in (FIRST, MIDDLE, LAST)
    }
    pale = [view for view in found.values() if view.mean < 0.22]
    assert pale and min(view.energy for view in pale) > 0.55
    assert round(grid.shipped_view(maps.select(depth=4, width=4, n=1000), MIDDLE).energy, 2) == 0.02
