"""The artefacts of a release, made of one commit: the same commit gives the same bytes."""
