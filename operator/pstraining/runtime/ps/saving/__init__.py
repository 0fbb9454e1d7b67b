"""The files and parts of a checkpoint on one parameter server, which reads and writes them as operations of a graph."""
