"""The one error of this package.

Everything a user can cause or repair is a ``ClusterError``: its text is printed as it is, without
a traceback. Any other exception is a bug and keeps its traceback.
"""


class ClusterError(Exception):
    """Something the user should read: what failed, why, and what to do."""
