"""Validation without a cluster: the CRD's schema and CEL rules, pod templates, and the result for each document."""
