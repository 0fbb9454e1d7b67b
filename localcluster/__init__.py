"""A real Kubernetes on one bare Linux machine, for the demo and the end-to-end tests.

Purpose: ``python3 -m localcluster up`` starts etcd, the control plane and real kubelets from
pinned Go modules. Every node is a network namespace with its own containerd.

Invariants: it imports only the standard library, because it runs before any virtual environment
exists. It changes only its run folder, its cache, its own namespaces, links and cgroups. ``down``
removes all of these except the cache. It imports no other package of this repository.
"""
