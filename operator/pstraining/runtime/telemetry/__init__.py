"""Events, progress, counters and metrics of a task; imports no other package of the runtime."""
