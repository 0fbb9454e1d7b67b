"""The worker: it pulls, computes and pushes, on the members of the active view; imports no chief."""
