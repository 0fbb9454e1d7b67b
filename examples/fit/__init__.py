"""A plain Keras script with `fit`, and what it becomes as a parameter-server job."""
