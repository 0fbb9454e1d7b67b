"""Train from Python, without YAML: `from pstraining import Client`.

The package stands on the library under the kubectl plugin (`pstraining.cli`), and on `pstraining.runtime.local` for
jobs as processes of this machine.
"""
