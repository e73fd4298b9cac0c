"""When one more block lowers the test risk: depth expansion of post-norm residual networks."""
