"""Transfers of state to members that return: whole, or in chunks while training continues."""
