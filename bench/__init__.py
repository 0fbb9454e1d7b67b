"""Benchmarks: programs that measure, and the thresholds that they are held to."""
