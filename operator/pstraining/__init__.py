"""Parameter-server training on Kubernetes: the operator, the runtime library and the CLI of one product."""

__version__ = "0.1.0"
