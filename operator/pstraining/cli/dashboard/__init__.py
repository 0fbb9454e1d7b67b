"""A page that shows jobs, served on loopback with the user's own rights: what is read, kept and answered."""
