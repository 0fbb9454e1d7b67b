"""The artefacts of a release, which are reproducible: the same commit results in the same bytes."""
