"""Depth expansion: what one more block in a trained post-norm residual network gains at once, and what data charge.

=================  ====================================================================================================
``normalization``  RMSNorm and LayerNorm with eps: Jacobian, Lipschitz constants for a pair and for all, curvature
``network``        the post-norm residual network and its convolutional sibling, many seeds as one; inserting a block,
                   with every start, live or dead; training
``jumpboard``      activation gradients, the slope they give an inserted block, gradient and ridge directions, the step,
                   the gain along it; the signal without its bias; the fallback; two controls
``starts``         how gradient descent leaves each start of a block, live or dead
``covariance``     the covariance of activation gradients, how diagonal it is, how many samples show a direction
``task``           a teacher whose Bayes risk is known, and the digits as real data
``study``          students over many seeds, and what inserting a block does to them against training longer
``bounds``         generalization bounds of the class with the new block; routes A, B and B' to a test-risk guarantee
``scaling``        what assumptions on the gain of each insertion say about risk against depth and data
=================  ====================================================================================================

The mechanism is that of Cheng, Liu, Sun, Xia, Zhang, Liu and Zhang 2026, arXiv 2605.08297; proofs and constants are
derived here and are not the paper's. Layer 0 is what the stem gives, layer l what block l gives.
"""
