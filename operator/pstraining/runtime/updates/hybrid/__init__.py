"""The mode Hybrid: rounds of the mode Sync for tables, a ring of workers for dense parameters; imports no asynchronous
mode."""
