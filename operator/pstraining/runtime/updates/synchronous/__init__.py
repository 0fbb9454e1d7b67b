"""The mode Sync: rounds of all workers, committed on all members; imports no other mode."""
