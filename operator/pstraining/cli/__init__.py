"""The kubectl plugin `kubectl pstraining`: one file a command; main.py puts them together."""
