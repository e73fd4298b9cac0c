"""The experiments: paired, exact in their bookkeeping, and with the verdicts of the theory notes."""

import numpy as np
import pytest
import torch

from labkit import compute
from labkit.depth.covariance import samples_to_see
from labkit.depth.jumpboard import direction, draw_features, mean_loss, scores
from labkit.depth.study import WAYS, block_scores, insertion, mean_scores, streams, students
from tests.verify import depth as verify

SEEDS = range(4)


@pytest.fixture(scope="module")
def done(task):
    old = students(task, 500, 60, SEEDS)
    return old, insertion(task, old, SEEDS)


def test_a_seed_is_a_student_whoever_else_is_there(task):
    together, alone = students(task, 300, 10, range(3)), students(task, 300, 10, [2])
    assert torch.equal(together.x[2], alone.x[0]) and torch.equal(together.y[2], alone.y[0])
    torch.testing.assert_close(together.model.nets([2])(alone.x), alone.model(alone.x), rtol=1e-4, atol=1e-5)


def test_an_insertion_is_that_of_its_seed_whoever_else_is_there(task):
    together, alone = (insertion(task, students(task, 300, 10, seeds), seeds, further=5) for seeds in ([0, 3], [3]))
    for way in WAYS:
        torch.testing.assert_close(together.risk[way][1:], alone.risk[way], rtol=1e-4, atol=1e-5)


def test_streams_of_different_purposes_are_different():
    draws = {torch.randn(1, generator=g).item() for purpose in range(5) for g in streams(range(20), purpose)}
    assert len(draws) == 100


def test_the_three_bars_are_the_change_exactly(done):
    _, found = done
    assert (found.bars.sum(1) - found.change("insert")).abs().max() < 1e-6
    assert set(found.risk) == set(found.train) == set(WAYS)
    assert (found.bars[:, 1] < 0).all() and (found.bars[:, 2] > 0).all()


def test_old_losses_are_those_of_the_old_network(done):
    old, found = done
    torch.testing.assert_close(found.old_train, mean_loss(*old))
    assert (found.train["jumpboard"] < found.old_train).all() and (found.train["insert"] < found.old_train).all()


def test_few_samples_make_insertion_worse_than_training_longer(done):
    """(500, 60) of the notes: everything that trains gets worse, insertion most."""
    _, found = done
    assert (found.against_control > 0.1).all() and (found.change("continue") > 0.1).all()
    assert not found.fell_back.any()


def test_many_samples_make_it_better(task):
    """(8000, 60) of the notes: all five ways gain, insertion more than the control."""
    found = insertion(task, students(task, 8000, 60, SEEDS), SEEDS)
    for way in WAYS:
        assert (found.change(way) < -0.003).all(), way
    assert (found.against_control < 0).all()


def test_a_wild_rate_falls_back(task):
    """Condition 2 fires, and the risk is that of the jumpboard."""
    old = students(task, 500, 60, SEEDS)
    found = insertion(task, old, SEEDS, lr=2.0, further=20, fallback=True)
    assert found.fell_back.all()
    torch.testing.assert_close(found.risk["insert"], found.risk["jumpboard"])
    torch.testing.assert_close(found.bars[:, 1:], torch.zeros(4, 2), rtol=0, atol=1e-6)


def test_on_few_digits_only_the_training_gradient_falls_with_depth():
    """(iii) of the notes: interpolation, not less to learn; on other digits the gradient rises."""
    shallow, deep = (verify.digit_signals(np.full(2, depth), np.arange(2)) for depth in (1, 8))
    assert (deep["train"] < shallow["train"] / 4).all() and (deep["test"] > shallow["test"]).all()


def test_a_sample_of_nothing_is_refused(task):
    with pytest.raises(ValueError, match="n must be >= 1, got 0"):
        students(task, 0, 10, SEEDS)
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        students(task, 10, 0, SEEDS)


def test_scores_of_many_widths_at_once_are_those_of_each_alone(task):
    model = students(task, 300, 20, range(2)).model.to(dtype=torch.float64)
    chosen, judged = (task.sample(400, compute.generator(seed)) for seed in (1, 2))
    found, w1 = block_scores(model, 1, chosen, judged, (4, 16)), draw_features(model, 16)
    for i, m in enumerate((4, 16)):
        alone = scores(model, direction(model, 1, *chosen, w1[:, :m]), *judged)
        torch.testing.assert_close(found[:, i], alone, rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match=r"blocks\[1\] must be >= 1, got 0"):
        block_scores(model, 1, chosen, judged, (4, 0))


def test_means_of_scores_scatter_as_one_over_the_root_of_n_and_half_of_tests_succeed_at_n_95():
    s = torch.randn(400_000, generator=compute.generator(0), dtype=torch.float64) - 0.2
    needed = int(samples_to_see(s))
    assert abs(needed / (1.645 / 0.2) ** 2 - 1) < 0.05
    means = mean_scores(s, needed)
    assert len(means) == 400_000 // needed and abs(means.mean() + 1) < 0.05
    assert abs(means.std() * 1.645 - 1) < 0.05  # one standard error is G/1.645 at n_95
    assert abs((means < -1).double().mean() - 0.5) < 0.03
    with pytest.raises(ValueError, match=r"n must lie in \[1, 400000\], the number of scores, got 400001"):
        mean_scores(s, 400_001)
