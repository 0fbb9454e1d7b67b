"""A task's settings, its cluster and the start of its process; imports no other package of the runtime."""
