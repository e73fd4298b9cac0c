"""The teacher's labels against its probabilities, Bayes risk as a minimum, risks against drawn labels."""

import math

import pytest
import torch

from labkit import compute
from labkit.depth import task as room
from labkit.depth.jumpboard import mean_loss, sample_losses
from labkit.depth.network import LOSSES, PostNormResNet
from labkit.depth.task import TeacherTask, digits_sample
from tests.depth.conftest import generators


def test_labels_follow_the_probabilities(task):
    """χ² of 400 labels at each input whose classes are all likely enough, 3 degrees of freedom each, to 4 sd."""
    x = task.sample_inputs(200, compute.generator(1))
    p = task.probabilities(x)
    torch.testing.assert_close(p.sum(1), torch.ones(200, dtype=torch.float64))
    torch.testing.assert_close(p, (3 * task.teacher(x)[0]).softmax(-1))
    x, draws = x[p.amin(1) > 0.02], 400

    class Fixed(TeacherTask):
        def sample_inputs(self, n, generator, dtype=None):
            return x.repeat(draws, 1)

    y = Fixed(compute.generator(room.TEACHER_SEED)).sample(len(x) * draws, compute.generator(2))[1]
    counts = torch.nn.functional.one_hot(y.view(draws, -1), 4).sum(0)
    expected = draws * task.probabilities(x)
    chi, freedom = ((counts - expected) ** 2 / expected).sum().item(), 3 * len(x)
    assert len(x) > 20 and abs(chi - freedom) <= 4 * math.sqrt(2 * freedom)


def test_the_last_coordinate_is_one(task):
    x = task.sample_inputs(4000, compute.generator(3))
    assert x.shape == (4000, 9) and (x[:, -1] == 1).all()
    assert x[:, :8].mean().abs() < 4 / math.sqrt(32_000) and abs(x[:, :8].var() - 1) < 4 * math.sqrt(2 / 32_000)


def test_nobody_beats_the_bayes_risk(task):
    """The teacher at its own temperature reaches it; other temperatures and another network do not."""
    x = task.sample_inputs(5000, compute.generator(4))
    bayes, teacher = task.bayes_risk(x), task.teacher

    def at(temperature):
        scaled = teacher.params | {"out": temperature * teacher.params["out"]}
        return PostNormResNet(9, 16, 4, 16, 4, params=scaled)

    torch.testing.assert_close(task.risk(at(3.0), x)[0], bayes)
    assert all(task.risk(at(t), x).item() > bayes + 1e-4 for t in (0.0, 1.0, 2.5, 3.5, 10.0))
    assert task.risk(at(0.0), x).item() == pytest.approx(math.log(4))
    torch.testing.assert_close(task.risk(at(1e6), x, "prob")[0], task.bayes_risk(x, "prob"))
    assert task.risk(at(3.0), x, "prob") > task.bayes_risk(x, "prob")


def test_bayes_risk_of_the_course_is_that_of_the_notes(task):
    x = task.sample_inputs(40_000, compute.generator(5))
    assert 0.571 <= task.bayes_risk(x).item() <= 0.583


@pytest.mark.parametrize("loss", LOSSES)
def test_risk_is_the_mean_over_drawn_labels(task, trained, loss):
    x, y = task.sample(40_000, compute.generator(6))
    drawn = sample_losses(trained(x), y, loss)
    exact = task.losses(trained, x, loss)
    difference = (drawn - exact).mean(1)
    assert (difference.abs() <= 4 * (drawn - exact).std(1) / 200).all()
    torch.testing.assert_close(exact.mean(1), task.risk(trained, x, loss))
    assert (exact.var(1) < 0.6 * drawn.var(1)).all()  # what taking the expectation over y saves
    torch.testing.assert_close(drawn.mean(1), mean_loss(trained, x, y, loss))


def test_a_population_goes_through_in_parts(task, trained, monkeypatch):
    x = task.sample_inputs(1000, compute.generator(7))
    whole = task.losses(trained, x)
    monkeypatch.setattr(room, "ROWS", 300)
    torch.testing.assert_close(task.losses(trained, x), whole)


def test_samples_come_from_their_generators(task):
    one = task.sample(30, compute.generator(1))
    again = task.sample(30, compute.generator(1))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    xs, ys = task.sample_each(30, generators(1))
    assert xs.shape == (3, 30, 9) and ys.shape == (3, 30)
    assert torch.equal(xs[0], one[0]) and torch.equal(ys[0], one[1]) and not torch.equal(xs[1], xs[0])
    x, y = task.sample(30, compute.generator(1), torch.float32)
    assert x.dtype == torch.float32 and torch.equal(y, one[1])
    assert torch.equal(
        TeacherTask(compute.generator(5)).teacher.params["in"], TeacherTask(compute.generator(5)).teacher.params["in"]
    )


def test_digits_are_vectors_or_images():
    sample = digits_sample(1000, compute.generator(0))
    assert sample.x.shape == (1000, 65) and sample.x_test.shape == (797, 65) and (sample.x[:, 64] == 1).all()
    pictures = digits_sample(1000, compute.generator(0), images=True)
    assert pictures.x.shape == (1000, 1, 8, 8)
    torch.testing.assert_close(pictures.x.flatten(1), sample.x[:, :64])
    assert torch.equal(pictures.y, sample.y) and set(sample.y.tolist()) == set(range(10))
    both = torch.cat([sample.x, sample.x_test])
    assert len(torch.unique(both, dim=0)) == len(torch.unique(digits_sample(1, compute.generator(0)).x_test, dim=0)) + 1


REFUSED = {
    "dim must be >= 1, got 0": lambda task: TeacherTask(compute.generator(0), dim=0),
    "temperature must be positive and finite, got 0": lambda task: TeacherTask(compute.generator(0), temperature=0.0),
    "n must be >= 1, got 0": lambda task: task.sample(0, compute.generator(0)),
    "loss must be one of ce, prob, got 'mse'": lambda task: task.bayes_risk(torch.ones(2, 9), "mse"),
    r"n must be an integer in \[1, 1796\]": lambda task: digits_sample(1797, compute.generator(0)),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused(sentence, task):
    with pytest.raises(ValueError, match=sentence):
        REFUSED[sentence](task)


def test_a_seed_is_no_generator(task):
    with pytest.raises(TypeError, match="generator must be a torch.Generator, got 0"):
        TeacherTask(0)
    with pytest.raises(TypeError, match="generator must be a torch.Generator, got 0"):
        task.sample(5, 0)
