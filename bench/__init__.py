"""Benchmarks: programs that measure, and the thresholds of their figures."""
