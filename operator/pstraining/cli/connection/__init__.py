"""The cluster, the namespace and the identity of commands, found as kubectl finds them."""
