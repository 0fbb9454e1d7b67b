"""Pure builders: from a job to the manifests of its children, one kind of child a file."""
