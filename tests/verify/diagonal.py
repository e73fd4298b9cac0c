"""Pretraining, then fine-tuning, of diagonal networks: simulations beside the replica theory (theory notes, e).

Ours are other samples of the same experiment, 40 trials, error normalized so that the zero predictor has 1. Each is
compared with the noted simulation and with our theory, whose dimension is infinite: hence 5 % of room at D = 400. Where
a transition is near, the notes also have D = 1600, and the room shrinks with the dimension.
"""

from labkit import compute, sweep
from labkit.diagonal.replica import generalization_error, simulate
from labkit.diagonal.tasks import FULL, NONE, PARTIAL, SUBSET, TaskPair
from tests.verify.claim import Claim

TRIALS = 40
SOME, WIDE = TaskPair(0.2, 0.3, 0), TaskPair(0.3, 1, 0)
CASES = [  # task, c, lam, gamma, n/D in fine-tuning, in pretraining (None: learned perfectly), noise_var; D, error, se
    (FULL, 0.1, 1, 0.1, 0.2, None, 0, 400, 0.1231, 0.0039),
    (FULL, 0.1, -0.9, 0.1, 0.2, None, 0, 400, 0.2672, 0.0079),
    (NONE, 1e-2, 1, 0.1, 0.3, None, 0, 400, 0.9014, 0.0109),
    (NONE, 1e-3, -0.95, 0.1, 0.3, None, 0, 400, 0.5922, 0.0121),
    (NONE, 0.1, -0.5, 0.1, 0.6, None, 0, 400, 0.1132, 0.0047),
    (SOME, 0.1, -0.9, 0.1, 0.2, None, 0, 400, 0.2920, 0.0099),
    (SUBSET, 1e-3, 1, 0.01, 0.2, None, 0, 400, 0.4683, 0.0075),
    (SUBSET, 1e-3, -0.98, 0.01, 0.2, None, 0, 400, 0.0868, 0.0084),
    (SUBSET, 1e-3, -0.98, 0.01, 0.2, None, 0, 1600, 0.0821, 0.0045),
    (PARTIAL, 1e-2, 0, 0.1, 0.3, None, 0, 400, 0.2922, 0.0099),
    (PARTIAL, 0.1, -0.8, 0.3, 0.2, None, 0, 400, 0.5733, 0.0067),
    (PARTIAL, 10, 0, 0, 0.5, None, 0, 400, 0.4896, 0.0048),
    (WIDE, 1e-3, -0.5, 0.1, 0.3, 0.5, 0, 400, 0.6037, 0.0092),
    (WIDE, 1e-3, -0.5, 0.1, 0.3, 0.5, 0, 1600, 0.6260, 0.0069),
    (FULL, 1e-2, -0.8, 0.1, 0.3, 0.3, 0, 400, 0.2068, 0.0101),
    (SOME, 0.1, -0.9, 0.1, 0.3, 0.5, 0, 400, 0.1850, 0.0094),
    (SOME, 0.1, -0.9, 0.1, 0.4, None, 0.05, 400, 0.1076, 0.0029),
    (SOME, 0.1, -0.9, 0.1, 1.5, None, 0.05, 400, 0.1000, 0.0017),
]


def transfer(task, c, lam, gamma, alpha_ft, alpha_pt, noise_var, dim, seed):
    setting = task, c, lam, gamma, alpha_ft, alpha_pt, noise_var
    found = simulate(*setting, dim=dim, trials=TRIALS, generator=compute.generator(seed))
    return {"mean": found.mean, "se": found.standard_error, "converged": found.converged.all()}


def claims():
    names = ("task", "c", "lam", "gamma", "alpha_ft", "alpha_pt", "noise_var", "dim")
    for *values, error, se in CASES:
        grid = {name: [value] for name, value in zip(names, values, strict=True)}
        found = sweep.run(transfer, grid, progress=False)
        assert found["converged"].all()
        ours = float(found["mean"][0]), float(found["se"][0])
        *setting, dim = values
        task, c, lam, gamma, alpha_ft, alpha_pt, noise_var = setting
        shares = f"{task.rho_pt:g}/{task.rho_shared:g}/{task.rho_new:g}"
        alphas = f"{alpha_ft:g}/{'–' if alpha_pt is None else alpha_pt}"
        label = f"ρ {shares}, c {c:g}, λ {lam:g}, γ {gamma:g}, α {alphas}" + f", σ² {noise_var:g}" * bool(noise_var)
        label += f", D {dim}" * (dim != 400)
        yield Claim(label, ours[0], error, ours[1], se)
        theory = float(generalization_error(*setting, accuracy="reference").error)
        yield Claim("   … our theory", ours[0], theory, ours[1], tolerance=0.05 * theory * 400 / dim)
