"""Handwritten digits with pstraining's runtime library."""
