"""Selection of a command's cluster, namespace and identity, by kubectl's rules, and requests with them."""
