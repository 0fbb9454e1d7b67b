"""The dashboard: a page that shows jobs, served on loopback with the user's own rights."""
