"""Ways to bring workers' gradients into the parameters, one a module."""
