"""Runs the plugin as a user would, on clusters that give answers which users can meet.

Its processes are forked from a parent that has imported it (tests/support/warm.py): an import costs a second of a
processor. tests/e2e/test_docs.py runs the installed plugin.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pstraining.cli.exit_codes import ExitCode
from tests.support.kube import Kube, Target
from tests.support.warm import Parent

ROOT = Path(__file__).parents[2]
CLI = ("-m", "pstraining.cli.main")
NO_SUCH_VERSION = (
    "from pstraining.api import names\n"
    "names.VERSION, names.API_VERSION = 'v9', f'{names.GROUP}/v9'\n"
    "from pstraining.cli.main import main\n"
    "main()"
)
"""Runs the plugin as of an API version that this cluster lacks. To delete the CRD instead would delete all users' jobs.
"""
SEPARATED = """
import os, runpy, sys
module, folder, *arguments = sys.argv[1:]
for number, name in enumerate(("stdin", "stdout", "stderr")):
    os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY if number else os.O_RDONLY), number)
sys.argv[:] = [module, *arguments]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module whose standard streams are files of a folder, because a warm parent gives its forks a single output."""
SECONDS = 300
"""Seconds within which a command ends on a busy machine; some wait until a job runs."""
Ran = subprocess.CompletedProcess[str]


@cache
def warm_parent() -> Parent:
    """Return this process's warm parent of plugins, which ends with this process."""
    parent = Parent("cli", PYTHONPATH=str(ROOT / "operator"))
    atexit.register(parent.close)
    return parent


def forked(arguments: Sequence[str], environment: Mapping[str, str], given: str) -> Ran:
    """Run the plugin in a fork of the warm parent."""
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "wb") as nothing:
        folder = Path(name)
        for stream, text in (("stdin", given), ("stdout", ""), ("stderr", "")):
            (folder / stream).write_text(text)
        command = ("-c", SEPARATED, CLI[1], name, *arguments)
        process = warm_parent().spawn(command, environment, nothing.fileno())
        try:
            code = process.wait(SECONDS)
        finally:
            process.kill()
        return Ran((*CLI, *arguments), code, (folder / "stdout").read_text(), (folder / "stderr").read_text())


def run(
    target: Target, *arguments: str, given: str = "", program: tuple[str, ...] = CLI, with_context: bool = True
) -> Ran:
    """Run a command as a user would."""
    environment = {**os.environ, "KUBECONFIG": target.kubeconfig, "PYTHONPATH": str(ROOT / "operator")}
    context = ("--context", target.context) if with_context else ()
    if program == CLI:
        return forked((*arguments, *context), environment, given)
    command = (sys.executable, *program, *arguments, *context)
    return subprocess.run(
        command, check=False, env=environment, input=given, capture_output=True, text=True, timeout=SECONDS
    )


def failed(ran: Ran, code: ExitCode = ExitCode.ERROR) -> str:
    """Return the one-line error message of a command that must fail."""
    assert ran.returncode == code, ran
    assert "Traceback" not in ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("Error: ")]
    return line


def kubeconfig(kube: Kube, folder: Path, name: str, **changes: Any) -> Target:
    """Return a kubeconfig for this cluster, with other credentials or another address."""
    server = changes.get("server", kube.host)
    trusted = {"certificate-authority": kube.configuration.ssl_ca_cert} if server == kube.host else {}
    path = folder / name
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": server, **trusted}}],
                "users": [{"name": "u", "user": {"token": changes.get("token", "none")}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "here",
            }
        )
    )
    return Target(str(path), "here")


def nobody_here(kube: Kube, namespace: str, folder: Path) -> Target:
    """Return the cluster for a service account without any right."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    made = kube.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token", review)
    return kubeconfig(kube, folder, "nobody", token=made["status"]["token"])
