"""One question a file, each answered by a pure function of the snapshot."""
