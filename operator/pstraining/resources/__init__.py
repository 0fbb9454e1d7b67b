"""Pure builders: from a job to the manifests of its children, with one file for each kind of child."""
