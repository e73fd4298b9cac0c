"""Pretraining and fine-tuning in nonlinear networks: what of the solvable theory survives, and which controls it takes.

==================  ===================================================================================================
``representation``  how many dimensions two sets of features share: effective number, CKA, and the version in unit space
``protocol``        pretrain to a loss, draw the readout anew, fine-tune to a loss; the controls reset and scratch
``relu``            two layers of ReLU and an orthonormal teacher: the bridge from the diagonal network
``resnet``          residual networks for images, without a norm and with batch norm, and their exact rescalings
``digits``          the experiment on 8 × 8 digits: plain and centered fine-tuning, rates chosen by training loss only
``images``          the same at paper scale: CIFAR-100 to its classes, held-out classes and SVHN, one run that resumes
``arithmetic``      addition mod M: the task, the characters that two moduli share, the Fourier power of an embedding
``transformer``     a small Transformer that learns it, its exact rescalings, what gradient flow conserves of its norms
==================  ===================================================================================================

The question is that of Anguita, Locatello, Saxe, Mondelli, Mancini, Lippl and Domine 2026, arXiv 2602.20062. Their code
for nonlinear networks was not at hand: sizes, rates, losses and controls here are our choice.
"""
