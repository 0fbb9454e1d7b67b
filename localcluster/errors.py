"""The one error of this package.

A ``ClusterError`` reports a problem that the user can cause or repair. Its text is printed without
a traceback. Any other exception is a bug and keeps its traceback.
"""


class ClusterError(Exception):
    """An error for the user; its text has the failed action, the reason and the way out."""
