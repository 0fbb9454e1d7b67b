"""Developer tools that are not part of any released package."""
