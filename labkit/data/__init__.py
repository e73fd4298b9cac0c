"""Images to learn from, as tensors on any device. ``digits`` is shipped with scikit-learn and needs no download."""
