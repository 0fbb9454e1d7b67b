"""The checks of `doctor`: `examination` and `job_evidence` read from the cluster, `checks` and `job_causes` decide."""
