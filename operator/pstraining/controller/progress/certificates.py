"""The certificates of the endpoint for progress: an authority's in a Secret, and a server's, created at each start.

Pods get the authority's certificate when they start and keep it, so the authority must outlive every job.
"""

import base64
import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from pstraining.kube.errors import Conflict, NotFound

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 3650
SKEW: Final = timedelta(hours=1)
"""Maximum time by which a pod's clock may be behind."""
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


class SecretPort(Protocol):
    """Reads and creates Secrets."""

    async def get_secret(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Read a Secret."""

    async def create_secret(self, namespace: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create a Secret; Conflict if it exists already."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


def new_authority(now: datetime) -> Pair:
    """Return a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pstraining progress authority")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    built = _builder(name, name, key, now, AUTHORITY_DAYS)
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(usage, critical=True)
    built = built.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _pair(built.sign(key, hashes.SHA256()), key)


def sign_server(authority: Pair, host: str, now: datetime) -> Pair:
    """Return a server's certificate for a host name or an IP address.

    Raises:
        ValueError: the authority is unreadable, has expired, or has the key of another certificate.
    """
    issuer, issuer_key = x509.load_pem_x509_certificate(authority.certificate), _private(authority.key)
    if issuer.public_key() != issuer_key.public_key():
        raise ValueError("the key belongs to another certificate")
    if issuer.not_valid_after_utc <= now:
        raise ValueError("the certificate has expired")
    key = ec.generate_private_key(ec.SECP256R1())
    built = _builder(x509.Name([]), issuer.subject, key, now, SERVER_DAYS)
    built = built.add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=True)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    built = built.add_extension(identifier, critical=False)
    return _pair(built.sign(issuer_key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - SKEW,
        not_valid_after=now + timedelta(days=days),
    )


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem, None)
    except (TypeError, UnsupportedAlgorithm) as error:  # a key with a password, or of an unknown kind
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not an elliptic-curve key")
    return key


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM), private)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def server_context(pair: Pair) -> ssl.SSLContext:
    """Return the TLS settings of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # no client resumes a session, and two tickets are a tenth of a handshake's time
    # OpenSSL only reads files. This file is in memory, because the root file system is read-only.
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pair.key + pair.certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def host_of(url: str) -> str:
    """Return the host of a URL."""
    return urlsplit(url).hostname or ""


async def load_authority(port: SecretPort, namespace: str, name: str) -> Pair:
    """Return the authority in the Secret of this name, which is created if it does not exist.

    Raises:
        ApiError: the Secret can be neither read nor created.
        ValueError: the Secret holds no authority.
    """
    try:
        found = await port.get_secret(namespace, name)
    except NotFound:
        made = new_authority(datetime.now(UTC))
        body = _secret(namespace, name, made)
        try:
            found = await port.create_secret(namespace, body)
        except Conflict:
            found = await port.get_secret(namespace, name)
    data = found.get("data") or {}
    try:
        return Pair(*(base64.b64decode(data[field]) for field in (CERTIFICATE, KEY)))
    except KeyError as error:
        raise ValueError(f"Secret {name} has no {error}: delete it, and restart the operator") from None


def _secret(namespace: str, name: str, pair: Pair) -> dict[str, Any]:
    data = {CERTIFICATE: pair.certificate, KEY: pair.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": namespace},
        "data": {field: base64.b64encode(content).decode() for field, content in data.items()},
    }
