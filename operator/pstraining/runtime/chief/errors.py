"""Errors of the chief's calls to the servers."""


class FencedError(Exception):
    """A server has another fence than this chief, or another set of parameters than it knew."""
