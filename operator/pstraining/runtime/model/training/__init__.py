"""The forward pass of one batch: objective, metrics and changes of state; imports no optimizer and no Keras model."""
