"""The figures of `kubectl pstraining plan`: pure computations on a job."""
