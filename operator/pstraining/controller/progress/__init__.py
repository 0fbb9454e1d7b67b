"""Progress of training: programs report it over HTTPS, and the operator writes it to the status of their jobs."""
