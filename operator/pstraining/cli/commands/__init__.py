"""The commands of `kubectl pstraining`, one module each."""
