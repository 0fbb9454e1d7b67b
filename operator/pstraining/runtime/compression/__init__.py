"""Gradients and parameters on the network: codecs, error feedback and the choice of a form; imports no update mode."""
