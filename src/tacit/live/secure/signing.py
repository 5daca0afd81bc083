"""Signatures with the keys of the federation's certificates (ECDSA, P-256, SHA-256)."""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_ALGORITHM = ec.ECDSA(hashes.SHA256())


def sign(key: ec.EllipticCurvePrivateKey, body: bytes) -> bytes:
    """Return the signature of `body`."""
    return key.sign(body, _ALGORITHM)


def is_signed(public: ec.EllipticCurvePublicKey, signature: bytes, body: bytes) -> bool:
    """True if `signature` is a valid signature of `body` under the public key `public`."""
    try:
        public.verify(signature, body, _ALGORITHM)
    except InvalidSignature:
        return False
    return True


def public_bytes(key: Any) -> bytes:
    """Encode a public key in DER."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)


def read_public(raw: bytes) -> ec.EllipticCurvePublicKey:
    """Decode a public key; raise ValueError if it is not an elliptic-curve key."""
    try:
        key = serialization.load_der_public_key(raw)
    except UnsupportedAlgorithm:
        raise ValueError("the bytes are not a public key of a supported type") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the key is not an elliptic-curve key")
    return key


def fingerprint(raw: bytes) -> str:
    """Return the SHA-256 of a public key in DER, as `tacit certs list` shows it."""
    return hashlib.sha256(raw).hexdigest()
