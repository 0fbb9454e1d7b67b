"""The checks of `doctor`: `examination` reads from the cluster, `checks` decides."""
