"""Ring all-reduce over TCP; imports neither TensorFlow nor another package of the runtime."""
