"""The two replica equations solved the plain way, one setting at a time: numpy, a quadrature in z, nested root finding.

Shares only the mathematics with labkit.diagonal.replica: E prox′ is E[z·(prox − β*)]/ω by Stein's lemma, and
pretraining and fine-tuning are both `solve`. Used by the tests as a second opinion, by `make bench` as the naive way.
"""

import numpy as np
from scipy.optimize import brentq

EDGES = np.arange(-8.0, 9.0)  # panels in z
PT_EDGES = np.arange(-7.0, 8.0, 2)
RULE, PT_RULE = np.polynomial.legendre.leggauss(32), np.polynomial.legendre.leggauss(12)


def shrink(r, a, b):
    """t with a·sinh t + b·t = r, elementwise."""
    size = np.abs(r)
    t = np.minimum(size / (a + b), np.arcsinh(size / a))
    for _ in range(100):
        step = (a * np.sinh(t) + b * t - size) / (a * np.cosh(t) + b)
        t = t - step
        if np.all(np.abs(step) <= 1e-13 * (1 + t)):
            break
    return np.sign(r) * t


def quadrature(star, root_k, omega, tau, edges=EDGES, rule=RULE):
    """prox, z and the probability of each node for kinds (kinds,) of coordinates: (kinds, panels, nodes).

    Gauss–Legendre panels whose ends are equidistant in z; in a panel the nodes are those of t, prox = √k/2·sinh t.
    """
    node, weight = rule
    star, a, b = star[:, None], root_k[:, None] / 2, tau / 2
    edge = shrink(star + omega * edges, a, b)  # (kinds, edges)
    half, middle = np.diff(edge)[..., None] / 2, (edge[:, 1:] + edge[:, :-1])[..., None] / 2
    t = middle + half * node
    star, a = star[..., None], a[..., None]
    beta = a * np.sinh(t)
    z = (beta + b * t - star) / omega
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (a * np.cosh(t) + b) / omega
    return beta, z, density * half * weight


def averages(share, star, root_k, omega, tau):
    """E prox′ and E(prox − β*)² over kinds of coordinates and over z."""
    beta, z, probability = quadrature(star, root_k, omega, tau)
    error = beta - star[:, None, None]
    return [share @ (probability * f).sum((1, 2)) for f in (z * error / omega, error**2)]


def solve(share, star, root_k, alpha, noise_var=0.0):
    """Error, ω, τ: an outer root in ln ω², and for each ω an inner one in ln τ."""
    log_tau = 0.0

    def error(x):
        nonlocal log_tau
        omega = np.exp(x / 2)
        lack = lambda y: averages(share, star, root_k, omega, np.exp(y))[0] - alpha  # noqa: E731
        low, high = log_tau - 0.5, log_tau + 0.5
        while lack(low) < 0:
            low -= 1
        while lack(high) > 0:
            high += 1
        log_tau = brentq(lack, low, high, xtol=1e-12)
        return averages(share, star, root_k, omega, np.exp(log_tau))[1]

    excess = lambda x: np.log((noise_var + error(x)) / alpha) - x  # noqa: E731
    low = high = np.log((noise_var + (1 - alpha) * (share * star**2).sum()) / alpha)
    if excess(low) > 0:
        while excess(high) > 0:
            high += 1
    else:
        while excess(low) < 0:
            low -= 1
    x = brentq(excess, low, high, xtol=1e-11)
    return error(x), np.exp(x / 2), np.exp(log_tau)


def kinds(task, c=None, alpha_pt=None):
    """Shares, β*_FT and β̂_PT of the coordinates; pretraining is perfect without alpha_pt."""
    star_pt, share = np.array([0, task.rho_pt**-0.5]), np.array([1 - task.rho_pt, task.rho_pt])
    beta_pt, weight = star_pt[:, None], share[:, None]
    if alpha_pt is not None:
        root_k = np.full(2, 2 * c)
        _, omega, tau = solve(share, star_pt, root_k, alpha_pt)
        beta_pt, _, probability = quadrature(star_pt, root_k, omega, tau, PT_EDGES, PT_RULE)
        beta_pt, weight = beta_pt.reshape(2, -1), (share[:, None, None] * probability).reshape(2, -1)
    active = np.array([[task.rho_new], [task.rho_shared]])
    share = np.concatenate([weight * (1 - active), weight * active])
    star = np.repeat([0, task.rho_ft**-0.5], weight.size)
    beta_pt = np.concatenate([beta_pt, beta_pt])
    keep = share.ravel() > 1e-12
    return share.ravel()[keep], star[keep], beta_pt.ravel()[keep]


def generalization_error(task, c, lam, gamma, alpha_ft, alpha_pt=None, noise_var=0.0):
    share, star, beta_pt = kinds(task, c=c, alpha_pt=alpha_pt)
    root_k = 2 * (1 + lam) * (c + np.hypot(c, beta_pt)) + gamma**2
    return solve(share, star, root_k, alpha_ft, noise_var)
