"""Kubeconfigs for the rows of kubectl_table."""

import base64
import json
from typing import Any

from tests.support.kubectl_rows import Row

Config = dict[str, Any]
ANYBODY = {"token": "t"}


def config(
    name: str = "first", server: str = "@plain@", user: Config | None = None, cluster: Config | None = None
) -> Config:
    """Return a kubeconfig with one cluster, user and context of the same name, and their namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
    }


def tls(user: Config | None = None, cluster: Config | None = None) -> Config:
    """Return a kubeconfig for the server with TLS."""
    trusted = {"certificate-authority-data": "@server.pem@", **(cluster or {})}
    return config(server="@tls@", user=ANYBODY if user is None else user, cluster=trusted)


def id_token(token: str = "", **claims: Any) -> Config:
    """Return a user with the auth-provider oidc, whose token is unsigned."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    settings = {"idp-issuer-url": "http://127.0.0.1:1", "client-id": "c", "id-token": token or ".".join([*parts, "s"])}
    return {"auth-provider": {"name": "oidc", "config": settings}}


def without(body: Config, *fields: str) -> Config:
    """Return a kubeconfig without some of its fields."""
    return {name: value for name, value in body.items() if name not in fields}


def plugin(script: str, **fields: Any) -> tuple[Config, str]:
    """Return a user with an exec plugin; the plugin is beside its kubeconfig."""
    own = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "interactiveMode": "Never", **fields}
    return tls({"exec": own}), f"#!/bin/sh\n{script}\n"


def printing(status: str, version: str = "v1") -> str:
    """Return the script of a plugin that prints credentials."""
    head = f'"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/{version}"'
    return f"echo '{{{head}, \"status\": {status}}}'"


def exec_row(name: str, script: str, refused: str = "", options: tuple[str, ...] = (), **fields: Any) -> Row:
    """Return a row with an exec plugin."""
    body, text = plugin(script, **fields)
    return Row(name, {"config": body, "login": text}, refused=refused, options=options)
