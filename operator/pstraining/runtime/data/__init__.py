"""A worker's data: sources, batches and epochs; imports no update mode and no compression."""
