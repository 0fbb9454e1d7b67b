"""A small client of the API server for the cluster's own tools.

A request costs one connection, while each start of kubectl costs a tenth of a second.
"""

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcluster.errors import ClusterError
from localcluster.layout import API_PORT

MERGE_PATCH = "application/merge-patch+json"


class ApiClient:
    """Sends JSON requests to the API server as the cluster's administrator."""

    def __init__(self, address: str, pki: Path) -> None:
        self.address = address
        self.pki = pki
        self._context: ssl.SSLContext | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = "application/json",
    ) -> tuple[int, str]:
        """Send one request; return the status and the body.

        Raises:
            ClusterError: the server cannot be reached.
        """
        try:
            link = http.client.HTTPSConnection(self.address, API_PORT, timeout=60, context=self._tls())
            try:
                data = None if body is None else json.dumps(body).encode()
                link.request(method, path, data, {"Content-Type": content_type, "Accept": "application/json"})
                answer = link.getresponse()
                return answer.status, answer.read().decode(errors="replace")
            finally:
                link.close()
        except (OSError, http.client.HTTPException) as error:
            raise ClusterError(f"the API server at {self.address} does not answer: {error}") from error

    def get(self, path: str) -> dict[str, Any] | None:
        """Read an object or a list; None when it does not exist."""
        status, text = self.request("GET", path)
        if status == 404:
            return None
        return self._result("GET", path, status, text)

    def create(self, path: str, body: Mapping[str, object]) -> bool:
        """Create an object; return False if it exists already."""
        status, text = self.request("POST", path, body)
        if status == 409 and "AlreadyExists" in text:
            return False
        self._result("POST", path, status, text)
        return True

    def patch(self, path: str, body: Mapping[str, object]) -> None:
        """Merge-patch an object."""
        status, text = self.request("PATCH", path, body, content_type=MERGE_PATCH)
        self._result("PATCH", path, status, text)

    def delete(self, path: str) -> bool:
        """Delete an object or a collection; return False if there is none."""
        status, text = self.request("DELETE", path)
        if status == 404:
            return False
        self._result("DELETE", path, status, text)
        return True

    def ready(self) -> bool:
        """Return whether the server reports that it is ready."""
        try:
            return self.request("GET", "/readyz")[0] == 200
        except ClusterError:
            return False

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
            context.load_cert_chain(str(self.pki / "admin.crt"), str(self.pki / "admin.key"))
            self._context = context
        return self._context

    @staticmethod
    def _result(method: str, path: str, status: int, text: str) -> dict[str, Any]:
        try:
            body = json.loads(text)
        except ValueError:
            body = {"message": text[:500]}
        if status >= 300:
            raise ClusterError(f"{method} {path}: {status} {body.get('message', '')}")
        return dict(body)
