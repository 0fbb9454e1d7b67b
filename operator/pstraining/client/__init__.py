"""Train from Python, without YAML: `from pstraining import Client`.

The package uses the kubectl plugin's library (`pstraining.cli`) for jobs on a cluster, and `pstraining.runtime.local`
for jobs as processes of this machine.
"""
