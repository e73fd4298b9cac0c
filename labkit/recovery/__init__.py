"""Sequential feature recovery: features hidden in a high-dimensional lift leave the noise one by one as samples grow.

==============  =======================================================================================================
``hermite``     the orthonormal Hermite lift of degree q, its size, inner products, the matrices behind degree 2
``teacher``     labels made of hidden directions in lifted space with power-law strengths; the Gaussian surrogate
``theory``      where the bulk ends, when a feature leaves it and how well it is then known; the scaling law that the
                steps add up to; the exact population moment for degree 2
``spectral``    the layer-wise algorithm: moment matrix, eigenvectors beyond the edge, latent regression, scalar readout
``lifted``      layer 1 alone on the real lift: what it finds plain, after cleaning, on the sphere
``reveal``      what n samples reveal of many features: surrogate, real lift, and the limit n = ∞
``kernel``      the baseline that learns in one layer: ridge regression with a dot-product kernel of degree 2q
``separation``  how many samples these two need, measured and expected, on the sphere
==============  =======================================================================================================

Model and scaling law: Wortsman-Zurich et al. 2026, arXiv 2605.14567. Constants, finite-size corrections and remedies:
derived here and checked against simulation in ``tests/recovery``.
"""
