"""Activation gradients of trained post-norm networks: spectrum of their covariance, signal, and samples to see it.

What lesson 13 shows over depth, width, layer and number of training samples: the teacher–student task, students with
hidden = width, trained as in ``depth.study.students``. All is measured on samples that the networks have not seen; the
control is ``train_gradient``. Layers are places along the network, `SHARES` of its depth.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labkit import compute
from labkit.depth import covariance, jumpboard, study
from labkit.depth.network import PostNormResNet
from labkit.depth.task import TEACHER_SEED, TeacherTask
from labkit.results import Recipe
from labkit.sweep import Table

DEPTHS, WIDTHS, SIZES = (1, 2, 4, 8, 16), (4, 8, 16, 32), (1000, 8000, 64_000)
WIDEST = 64  # in the heat maps only
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the depth
BLOCKS = (8, 16, 32, 64, 128, 256)  # width m of an inserted block
SIGNAL_BLOCK = 64  # features behind ‖M‖
STEPS = 400
POPULATION = 20_000  # fresh samples that choose a direction, and as many that judge it
CHOOSE, JUDGE = 1, 2  # seeds of these samples
TOLERANCES = {  # training is in float32, and steps amplify how a processor rounds: well below the scatter over seeds
    **dict.fromkeys(("gradient", "train_gradient", "off_diagonal", "correlation", "spectrum"), 0.02),
    **{"signal": 2e-3, "floor": 5e-4, "risk": 3e-3, "train": 3e-3, "correlations": 0.05, "needed": 150.0},
}
TINY = 1e-8  # of ‖M‖² without bias, which may turn out negative


def nearest(value: float, among: Sequence[float]) -> float:
    """The element of ``among`` that is nearest in ratio: where a slider stands on the grid.

    >>> nearest(5.0, DEPTHS)
    4
    """
    return min(among, key=lambda stop: abs(math.log(stop / value)))


def layer_at(share: float, depth: int) -> int:
    """The layer at a share of the depth, from 1 to depth.

    >>> [layer_at(share, 16) for share in SHARES], layer_at(0.5, 1)
    ([1, 4, 8, 12, 16], 1)
    """
    return max(1, int(share * depth + 0.5))


def gradients(depth: np.ndarray, width: np.ndarray, n: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """Of each seed, at one depth, width and n; the axes after the seed are place, then m or eigenvalue.

    Returns ``risk`` and ``train`` (nats); ``gradient`` and ``train_gradient``, rms ‖g‖ (place); ``signal``, ‖M‖²
    without bias, and its ``floor``, the bias of ‖M̂‖² (place); ``spectrum``, eigenvalues of Σ_g, 0 beyond the width
    (place, `WIDEST`); ``off_diagonal`` and ``correlation``, the mean |corr| (place); ``needed``, n_95 of the
    ridge direction (place, m).
    """
    depth, width, n = (int(values[0]) for values in (depth, width, n))
    task = TeacherTask(compute.generator(TEACHER_SEED))
    old = study.students(task, n, STEPS, [int(s) for s in seed], width, depth)
    chosen, judged = (task.sample(POPULATION, compute.generator(s), torch.float32) for s in (CHOOSE, JUDGE))
    own = old.x[:, :POPULATION], old.y[:, :POPULATION]
    layers = [layer_at(share, depth) for share in SHARES]
    at = {layer: look(old.model, layer, chosen, judged, own) for layer in dict.fromkeys(layers)}
    found = {name: torch.stack([at[layer][name] for layer in layers], 1) for name in at[1]}
    found["risk"] = task.risk(old.model, judged[0])
    found["train"] = jumpboard.mean_loss(old.model, *own)
    return {name: value.cpu().numpy() for name, value in found.items()}


def look(
    model: PostNormResNet,
    layer: int,
    chosen: tuple[Tensor, Tensor],
    judged: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
) -> dict[str, Tensor]:
    """What `gradients` returns of one layer, each (net, ...)."""
    g = jumpboard.activation_gradient(model, layer, *judged)
    w1 = jumpboard.draw_features(model, SIGNAL_BLOCK)
    phi = jumpboard.features(model, model.bottom(judged[0], layer), w1)
    measures = covariance.measures(covariance.gradient_covariance(g))
    spectrum = g.new_zeros(len(g), WIDEST)
    spectrum[:, : model.width] = measures.eigenvalues
    signal = jumpboard.debiased_signal(g, phi)
    return {
        "gradient": rms(g),
        "train_gradient": rms(jumpboard.activation_gradient(model, layer, *own)),
        "signal": signal.debiased,
        "floor": signal.floor,
        "spectrum": spectrum,
        "off_diagonal": measures.off_diagonal,
        "correlation": measures.mean_correlation,
        "needed": covariance.samples_to_see(study.block_scores(model, layer, chosen, judged, BLOCKS)),
    }


def rms(g: Tensor) -> Tensor:
    return g.square().sum(-1).mean(1).sqrt()


def heat_maps(depth: np.ndarray, width: np.ndarray, n: np.ndarray, seed: np.ndarray) -> dict[str, np.ndarray]:
    """Of the first of these students alone: ``correlations``, to 1/100, above the diagonal of a matrix of `WIDEST`
    rows (place, pair), 0 beyond the width, and the ``spectrum`` (place, `WIDEST`) and ``off_diagonal`` (place) of
    the same Σ_g.
    """
    depth, width, n = (int(values[0]) for values in (depth, width, n))
    task = TeacherTask(compute.generator(TEACHER_SEED))
    model = study.students(task, n, STEPS, [int(s) for s in seed], width, depth).model
    judged = task.sample(POPULATION, compute.generator(JUDGE), torch.float32)
    place = {}
    for layer in dict.fromkeys(layer_at(share, depth) for share in SHARES):
        cov = covariance.gradient_covariance(jumpboard.activation_gradient(model, layer, *judged))
        whole = cov.new_zeros(len(cov), WIDEST, WIDEST)
        whole[:, :width, :width] = covariance.correlation(cov)
        spectrum = cov.new_zeros(len(cov), WIDEST)
        spectrum[:, :width] = torch.linalg.eigvalsh(cov).flip(-1)
        row, column = torch.triu_indices(WIDEST, WIDEST, 1)
        place[layer] = {
            "correlations": (100 * whole[:, row, column]).round() / 100,
            "spectrum": spectrum,
            "off_diagonal": covariance.off_diagonal_energy(cov),
        }
    chosen = [place[layer_at(share, depth)] for share in SHARES]
    found = {name: torch.stack([part[name] for part in chosen], 1).cpu().numpy() for name in chosen[0]}
    return found | {"correlations": found["correlations"].astype(np.float16)}


class View(NamedTuple):
    """One Σ_g for ``plots.covariance``: correlations (d, d), share (d,) of the variance of each eigenvalue, largest
    first, mean |correlation| between coordinates, off-diagonal energy, effective rank.
    """

    correlations: np.ndarray
    share: np.ndarray
    mean: float
    energy: float
    rank: float


def view(cov: Tensor, sort: bool = False) -> View:
    """The `View` of a covariance (d, d). sort: coordinates in the order of their entries in the first eigenvector of
    the correlations, which shows who moves together.

    >>> found = view(torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> round(found.mean, 3), round(found.energy, 3), round(found.rank, 3)
    (0.167, 0.143, 2.0)
    """
    found, corr = covariance.measures(cov), covariance.correlation(cov).cpu().numpy()
    return _view(corr, found.eigenvalues.cpu().numpy(), found.off_diagonal, sort)


def shipped_view(rows: Table, place: int, sort: bool = False) -> View:
    """The `View` of the one network in ``rows`` of the shipped `heat_maps`, at a place; sort as in `view`."""
    width = int(rows["width"][0])
    upper = np.zeros((WIDEST, WIDEST))
    upper[np.triu_indices(WIDEST, 1)] = rows["correlations"][0, place]
    corr = (upper + upper.T + np.eye(WIDEST))[:width, :width]
    return _view(corr, rows["spectrum"][0, place, :width], rows["off_diagonal"][0, place], sort)


def _view(corr: np.ndarray, eigenvalues: np.ndarray, energy: float, sort: bool) -> View:
    order = np.argsort(np.linalg.eigh(corr)[1][:, -1]) if sort else np.arange(len(corr))
    corr, share = corr[np.ix_(order, order)], eigenvalues / eigenvalues.sum()
    mean = covariance.mean_correlation(torch.as_tensor(corr)).item()
    return View(corr, share, mean, float(energy), float(1 / share[0]))


class Curve(NamedTuple):
    """A mean over seeds at each x, the slope of its logarithm against ln x, and standard errors of both."""

    x: np.ndarray
    mean: np.ndarray
    se: np.ndarray
    slope: float
    error: float

    @property
    def shown(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
        """What ``plots.power`` needs: x, means, standard errors, the exponent in words."""
        return self.x, self.mean, self.se, str(self)

    def __str__(self) -> str:
        return f"{self.slope:.2f} ± {self.error:.2f}".replace("-", "−")


def curve(x: Sequence[float], values: np.ndarray, mean: Callable[[np.ndarray], np.ndarray] = np.array) -> Curve:
    """The `Curve` of values (x, seed).

    mean: what is made of the average over seeds, > 0: its root of squares, its inverse of rates. Standard errors
    leave out one seed at a time (jackknife); for a plain average that is the usual one.

    >>> print(curve([1, 10, 100], np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])))
    1.00 ± 0.00
    """
    seeds = values.shape[1]
    rest = (values.sum(1, keepdims=True) - values) / (seeds - 1)  # averages without one seed (x, seed)
    whole, parts = mean(values.mean(1)), mean(rest)
    slope, slopes = (np.polyfit(np.log(x), np.log(found), 1)[0] for found in (whole, parts))
    se, error = (np.sqrt(np.var(found, axis=-1) * (seeds - 1)) for found in (parts, slopes))
    return Curve(np.asarray(x), whole, se, float(slope), float(error))


def against(rows: Table, x: str, name: str, place: int, m: int = SIGNAL_BLOCK) -> Curve:
    """The `Curve` of a result of `gradients` at a place against x: "depth", "width", "n", or "m" of one kind of net.

    rows: of the shipped table, one kind of network for each x. name: "gradient", "train_gradient", "off_diagonal",
    "correlation", "rank" (r_eff), "signal" (‖M‖, root of the mean square) or "needed" (n_95 of width m, the harmonic
    mean: 1/n_95 is 0 for a network that shows no descent).
    """
    if name == "needed":
        rates = 1 / rows["needed"][:, place]
        stops, values = (BLOCKS, rates.T) if x == "m" else (None, rates[:, BLOCKS.index(m)])
    else:
        spectrum = rows["spectrum"][:, place]
        stops, values = None, spectrum.sum(-1) / spectrum[:, 0] if name == "rank" else rows[name][:, place]
    if stops is None:
        stops = list(dict.fromkeys(rows[x].tolist()))
        values = values.reshape(len(stops), -1)
    means = {"needed": lambda rate: 1 / rate, "signal": lambda square: np.sqrt(square.clip(TINY))}
    return curve(stops, values.astype(float), means.get(name, np.array))


def stops(values: Mapping[str, float]) -> dict[str, float]:
    """Where sliders stand on the grid: depth, width and n as they are in the table, share as its index in `SHARES`.

    >>> stops({"depth": 3.0, "n": 1e4, "share": 0.5, "m": 8})
    {'depth': 4, 'n': 8000, 'place': 2}
    """
    among = {"depth": DEPTHS, "width": (*WIDTHS, WIDEST), "n": SIZES}
    found = {name: nearest(values[name], some) for name, some in among.items() if name in values}
    return found | {"place": round(values["share"] * (len(SHARES) - 1))}


def recipe() -> Recipe:
    seeds = compute.pick(quick=2, standard=6, full=24)
    return Recipe(
        gradients,
        grid={"depth": DEPTHS, "width": WIDTHS, "n": SIZES},
        seeds=seeds,
        remake={"depth": 2, "width": 8, "n": 8000},
        batched=seeds,
        tolerances=TOLERANCES,
    )


def heat_map_recipe() -> Recipe:
    return Recipe(
        heat_maps,
        grid={"depth": DEPTHS, "width": (*WIDTHS, WIDEST), "n": SIZES},
        seeds=1,
        remake={"depth": 2, "width": 8, "n": 8000},
        batched=1,
        tolerances=TOLERANCES,
    )
