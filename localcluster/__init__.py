"""A real Kubernetes on one bare Linux machine, for the demo and the end-to-end tests.

Purpose: ``python3 -m localcluster up`` starts etcd, the control plane and real kubelets from
pinned Go modules; every node is a network namespace with its own containerd.

Invariants: standard library only (it runs before any virtual environment exists); it touches
nothing outside its run folder, its cache, its own namespaces, links and cgroups; ``down`` leaves
nothing but the cache. It imports nothing else of this repository.
"""
