"""Moves the training state between checkpoints and servers, in pieces of bounded size; imports no report."""
