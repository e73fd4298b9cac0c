"""Diagonal linear networks, f(x) = (w₊∘v₊ − w₋∘v₋)·x: a small model where pretraining shapes fine-tuning.

===============  ==========================================================================================
``penalty``      the cost q that an initialization puts on each coefficient; how pretraining rewrites it (√k);
                 ℓ-order, pretraining dependence and the four regimes
``interpolate``  where training ends: the interpolator of least penalty, its ℓ1 and ℓ2 limits
``flow``         how training gets there: gradient flow with trajectories, pretraining then fine-tuning, and
                 raw gradient descent for comparison
``tasks``        pairs of sparse tasks that share a chosen part of their features
``replica``      how well fine-tuning generalizes: predicted without training, and simulated
===============  ==========================================================================================

Definitions of c, λ, γ and of the regimes follow Anguita et al. 2026, arXiv 2602.20062; the formulas are
derived again and checked against simulation in ``tests/diagonal``.
"""
