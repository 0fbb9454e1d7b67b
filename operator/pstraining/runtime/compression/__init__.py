"""Compression of gradients and parameters: codecs, error feedback, selection of a format; imports no update mode."""
