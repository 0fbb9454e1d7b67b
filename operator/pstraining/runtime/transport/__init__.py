"""The connection to the parameter servers: calls, errors, probes and traffic; imports no parameter store."""
