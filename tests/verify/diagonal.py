"""Pretraining, then fine-tuning, of diagonal networks: the simulations beside the replica theory (theory notes, e).

Ours are other samples of the same experiment: D = 400, 40 trials, error normalized so that the zero predictor has 1.
"""

import torch

from labkit import compute, sweep
from labkit.diagonal.interpolate import min_penalty
from labkit.diagonal.penalty import root_k_finetune
from labkit.diagonal.tasks import FULL, NONE, PARTIAL, SUBSET, TaskPair, design
from tests.verify.claim import Claim

DIM, TRIALS = 400, 40
SOME = TaskPair(0.2, 0.3, 0)
CASES = [  # task, c, lam, gamma, n/D in fine-tuning, in pretraining (None: learned perfectly), noise_var, error, se
    (FULL, 0.1, 1, 0.1, 0.2, None, 0, 0.1231, 0.0039),
    (FULL, 0.1, -0.9, 0.1, 0.2, None, 0, 0.2672, 0.0079),
    (NONE, 1e-2, 1, 0.1, 0.3, None, 0, 0.9014, 0.0109),
    (NONE, 1e-3, -0.95, 0.1, 0.3, None, 0, 0.5922, 0.0121),
    (NONE, 0.1, -0.5, 0.1, 0.6, None, 0, 0.1132, 0.0047),
    (SOME, 0.1, -0.9, 0.1, 0.2, None, 0, 0.2920, 0.0099),
    (SUBSET, 1e-3, 1, 0.01, 0.2, None, 0, 0.4683, 0.0075),
    (SUBSET, 1e-3, -0.98, 0.01, 0.2, None, 0, 0.0868, 0.0084),
    (PARTIAL, 1e-2, 0, 0.1, 0.3, None, 0, 0.2922, 0.0099),
    (PARTIAL, 0.1, -0.8, 0.3, 0.2, None, 0, 0.5733, 0.0067),
    (PARTIAL, 10, 0, 0, 0.5, None, 0, 0.4896, 0.0048),
    (TaskPair(0.3, 1, 0), 1e-3, -0.5, 0.1, 0.3, 0.5, 0, 0.6037, 0.0092),
    (FULL, 1e-2, -0.8, 0.1, 0.3, 0.3, 0, 0.2068, 0.0101),
    (SOME, 0.1, -0.9, 0.1, 0.3, 0.5, 0, 0.1850, 0.0094),
    (SOME, 0.1, -0.9, 0.1, 0.4, None, 0.05, 0.1076, 0.0029),
]


def transfer(task, c, lam, gamma, alpha_ft, alpha_pt, noise_var, seed):
    """‖β_FT − β*_FT‖²/D at the end of training."""
    generator = compute.generator(seed)
    star_pt, star_ft = task.sample(DIM, generator)
    beta_pt = star_pt
    if alpha_pt is not None:
        x = design(round(alpha_pt * DIM), DIM, generator)
        beta_pt = min_penalty(x, x @ star_pt, 2 * c).beta
    x = design(round(alpha_ft * DIM), DIM, generator)
    noise = torch.randn(len(x), generator=generator, dtype=torch.float64, device="cpu").to(x)
    root_k = root_k_finetune(beta_pt, c, lam, gamma)
    return ((min_penalty(x, x @ star_ft + noise_var**0.5 * noise, root_k).beta - star_ft) ** 2).mean()


def claims():
    names = ("task", "c", "lam", "gamma", "alpha_ft", "alpha_pt", "noise_var")
    for *values, error, se in CASES:
        grid = {name: [value] for name, value in zip(names, values, strict=True)}
        ours = sweep.run(transfer, grid, TRIALS, progress=False).mean("value", by="task")
        task, c, lam, gamma, alpha_ft, alpha_pt, noise_var = values
        shares = f"{task.rho_pt:g}/{task.rho_shared:g}/{task.rho_new:g}"
        alphas = f"{alpha_ft:g}/{'–' if alpha_pt is None else alpha_pt}"
        label = f"ρ {shares}, c {c:g}, λ {lam:g}, γ {gamma:g}, α {alphas}" + f", σ² {noise_var:g}" * bool(noise_var)
        yield Claim(label, float(ours["mean"][0]), error, float(ours["se"][0]), se)
