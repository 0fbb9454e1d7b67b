"""ID tokens of the auth-provider oidc. The Kubernetes client library renews expired ones."""

import os
import shutil
import ssl
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pstraining.cli.connection.kubeconfig import merged
from pstraining.cli.connection.models import AuthProvider
from pstraining.cli.errors import CommandError
from pstraining.cli.output import yaml_text
from pstraining.cli.reading.sources import text_of
from pstraining.cli.reading.texts import first_document

WAITS: Final = 40
"""Number of tries to lock a kubeconfig."""
WAIT_SECONDS: Final = 0.05
"""Seconds between two tries."""
_AUTHORITIES: Final = {"idp-certificate-authority", "idp-certificate-authority-data"}
_EXPIRED: Final = "e30.eyJleHAiOjF9.e30"
"""A token, in the place of one that a kubeconfig lacks. The library only renews a token."""
_BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
"""The system's certificate authorities, where OpenSSL does not name them, as Go searches them (crypto/x509)."""


def current(provider: AuthProvider, user: str, origin: str) -> AuthProvider:
    """Return the provider with a valid ID token. A renewed one is stored, because refresh tokens may be single-use.

    Args:
        provider: the user's entry in the kubeconfig.
        user: the user's name in the kubeconfig.
        origin: path of the kubeconfig.

    Raises:
        CommandError: the provider is not oidc, or the token is missing or was not renewed.
    """
    if provider.name != "oidc":
        raise CommandError(
            f"The kubeconfig's user {user} has the auth-provider {provider.name}, which kubectl no longer supports. "
            "Use an exec plugin, such as gke-gcloud-auth-plugin or kubelogin."
        )
    settings = dict(provider.config)
    try:
        is_token = _renewed(settings, user, origin)
    # Errors come from four libraries. Each means that there is no token.
    except Exception as error:
        # Another command may have used the refresh token, which may be single-use, and stored the next one.
        newer = _stored(user, origin)
        if newer is not None and newer.config.get("id-token") != provider.config.get("id-token"):
            return current(newer, user, origin)
        raise CommandError(f"The ID token of user {user} was not renewed: {error}. Log in again.") from error
    if not is_token:
        raise CommandError(f"The id-token of user {user} is not a JSON Web Token. Log in again.")
    return provider.model_copy(update={"config": settings})


def _renewed(settings: dict[str, str], user: str, origin: str) -> bool:
    """Renew the ID token in the settings if it has expired, and return whether there is a token."""
    from kubernetes.config import kube_config

    # Without a certificate authority, the library would send the refresh token to any server.
    added = {} if _AUTHORITIES & settings.keys() else {"idp-certificate-authority": _system_authorities()}
    if "client-secret" not in settings:  # a public client, as of kubelogin: the library requires the field
        added["client-secret"] = ""
    if not settings.get("id-token"):  # with a refresh token alone, kubectl requests the first one
        added["id-token"] = _EXPIRED
    used = settings | added
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {}}],
        "users": [{"name": "u", "user": {"auth-provider": {"name": "oidc", "config": used}}}],
    }

    def store() -> None:
        settings.update({name: value for name, value in used.items() if added.get(name) != value})
        _store(settings, user, origin)

    library: Any = kube_config  # untyped upstream
    loader = library.KubeConfigLoader(config, config_persister=store)
    loader._load_authentication()
    if used["id-token"] == _EXPIRED:
        raise ValueError("the identity provider did not issue one")
    return bool(getattr(loader, "token", ""))


def _system_authorities() -> str:
    """Return the file of certificate authorities that kubectl trusts; without one, that of the requests' library."""
    import certifi

    found = (ssl.get_default_verify_paths().cafile, *_BUNDLES)
    return next((path for path in found if path and Path(path).is_file()), certifi.where())


def _stored(user: str, origin: str) -> AuthProvider | None:
    """Return a user's provider, as its kubeconfig has it now; None if it cannot be read."""
    try:
        found = merged([(origin, text_of(Path(origin).read_bytes()))]).users.get(user)
    except (OSError, UnicodeDecodeError, CommandError):
        return None
    return None if found is None else found.auth_provider


def _store(settings: dict[str, str], user: str, origin: str) -> None:
    """Write the settings of a user's provider into its kubeconfig."""
    with _locked(Path(f"{origin}.lock")):
        path = Path(origin).resolve()
        # Another reader or writer would change values such as 12:30 and 1e10, whose types differ in YAML's versions.
        content = first_document(origin, text_of(path.read_bytes()))
        for entry in content["users"]:
            if entry["name"] == user:
                entry["user"]["auth-provider"]["config"] = settings
        _replace(path, yaml_text(content))


@contextmanager
def _locked(lock: Path) -> Iterator[None]:
    """Hold the lock by which kubectl changes a kubeconfig. After WAITS, a lock that stays counts as left behind."""
    held = False
    for _ in range(WAITS):
        try:
            lock.touch(exist_ok=False)
        except FileExistsError:
            time.sleep(WAIT_SECONDS)
        except OSError:  # a folder that may not be written
            break
        else:
            held = True
            break
    try:
        yield
    finally:
        if held:
            lock.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """Write a file at once, so that no reader sees a part of it. It keeps its owner and its mode."""
    before = path.stat()
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError:  # a folder that may not be written
        path.write_text(text, encoding="utf-8")
        return
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        shutil.chown(name, before.st_uid, before.st_gid)
        os.chmod(name, stat.S_IMODE(before.st_mode))
        os.replace(name, path)
    except (OSError, AttributeError):  # of another owner, mounted by itself, or on a system without owners
        path.write_text(text, encoding="utf-8")
    finally:
        Path(name).unlink(missing_ok=True)
