"""Models of a kubeconfig. As in kubectl's decoder, types are strict, null is absent and unknown fields are ignored."""

import base64
import binascii
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value.translate({ord("\n"): None, ord("\r"): None}), validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


Data = Annotated[bytes, BeforeValidator(_decoded)]


class _KubeconfigPart(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", alias_generator=_kebab, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class NamedExtension(_KubeconfigPart):
    """An extension in a cluster's entry, such as a plugin's configuration."""

    name: str = ""
    extension: Any = None


class KubeconfigCluster(_KubeconfigPart):
    """The address of an API server and its certificate authority."""

    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str = ""
    certificate_authority_data: Data = b""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: list[NamedExtension] = Field(default_factory=list)


class ExecVariable(_KubeconfigPart):
    """An environment variable of a plugin."""

    name: str = ""
    value: str = ""


class ExecPlugin(_KubeconfigPart):
    """A credential plugin: a program that prints credentials."""

    command: str = ""
    args: list[str] = Field(default_factory=list)
    env: list[ExecVariable] = Field(default_factory=list)
    api_version: str = Field("", alias="apiVersion")
    install_hint: str = Field("", alias="installHint")
    provide_cluster_info: bool = Field(False, alias="provideClusterInfo")
    interactive_mode: str = Field("", alias="interactiveMode")


class AuthProvider(_KubeconfigPart):
    """Credentials that the client renews: oidc."""

    name: str = ""
    config: dict[str, str] = Field(default_factory=dict)


class User(_KubeconfigPart):
    """The user of a context: credentials, and the identity to impersonate."""

    client_certificate: str = ""
    client_certificate_data: Data = b""
    client_key: str = ""
    client_key_data: Data = b""
    token: str = ""
    token_file: str = Field("", alias="tokenFile")
    impersonate: str = Field("", alias="as")
    impersonate_uid: str = Field("", alias="as-uid")
    impersonate_groups: list[str] = Field(default_factory=list, alias="as-groups")
    impersonate_user_extra: dict[str, list[str]] = Field(default_factory=dict, alias="as-user-extra")
    username: str = ""
    password: str = ""
    auth_provider: AuthProvider | None = None
    exec: ExecPlugin | None = None


class Context(_KubeconfigPart):
    """A cluster, a user and a namespace."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class NamedCluster(_KubeconfigPart):
    """An entry of `clusters`."""

    name: str = ""
    cluster: KubeconfigCluster = KubeconfigCluster()


class NamedUser(_KubeconfigPart):
    """An entry of `users`."""

    name: str = ""
    user: User = User()


class NamedContext(_KubeconfigPart):
    """An entry of `contexts`."""

    name: str = ""
    context: Context = Context()


class File(_KubeconfigPart):
    """A kubeconfig file."""

    current_context: str = ""
    clusters: list[NamedCluster] = Field(default_factory=list)
    users: list[NamedUser] = Field(default_factory=list)
    contexts: list[NamedContext] = Field(default_factory=list)
