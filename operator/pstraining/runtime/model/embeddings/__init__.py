"""The embedding layer and its rows by key, for tables that are on the parameter servers; imports no optimizer."""
