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


def test_a_curve_has_the_slope_of_each_seed():
    x, values = (1, 2, 4), np.array([[1.0, 3.0], [2.0, 12.0], [4.0, 48.0]])
    found = grid.curve(x, values)
    np.testing.assert_allclose([found.slope, found.error], [1.5, 0.5])
    np.testing.assert_allclose([found.mean, found.se], [[2, 7, 26], [1, 5, 22]])
    np.testing.assert_allclose(grid.curve(x, values, geometric=True).mean, [3**0.5, 24**0.5, 192**0.5])
    assert found.shown[2] == "1.50 ± 0.50" and str(grid.curve(x, 1 / values)) == "−1.50 ± 0.50"


def test_curves_read_the_right_rows(signals):
    rows = signals.select(width=16, n=8000)
    deepest = rows.select(depth=16)
    assert grid.against(rows, "depth", "gradient", LAST).mean[-1] == pytest.approx(deepest["gradient"][:, LAST].mean())
    signal = np.sqrt(deepest["signal"][:, MIDDLE]).mean()
    assert grid.against(rows, "depth", "signal", MIDDLE).mean[-1] == pytest.approx(signal)
    spectrum = deepest["spectrum"][:, FIRST]
    rank = (spectrum.sum(1) / spectrum.max(1)).mean()
    assert grid.against(rows, "depth", "rank", FIRST).mean[-1] == pytest.approx(rank)
    wide = np.exp(np.log(deepest["needed"][:, FIRST, -1]).mean())
    assert grid.against(deepest, "m", "needed", FIRST).mean[-1] == pytest.approx(wide)
    assert grid.against(rows, "depth", "needed", FIRST, m=256).mean[-1] == pytest.approx(wide)


def test_sliders_stand_on_stops():
    values = {"depth": 16.0, "width": 64.0, "n": 1000.0, "share": 1.0, "order": "sorted"}
    assert grid.stops(values) == {"depth": 16, "width": 64, "n": 1000, "place": 4}
    assert [grid.layer_at(share, 8) for share in grid.SHARES] == [1, 2, 4, 6, 8]


# ---- What the lesson says
