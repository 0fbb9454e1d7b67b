"""One question per module, answered by pure functions; facts.py explains the two kinds of policies."""
