"""A plain Keras script with `fit`, and its conversion to a parameter-server job."""
