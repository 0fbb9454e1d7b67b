"""The kubectl plugin `kubectl pstraining`: one file per command, registered in command_table.py."""
